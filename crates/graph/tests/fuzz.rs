//! Long random sequences of edits, compared edit by edit with the naive model.
//!
//! A few seconds by default; `MOORLINE_FUZZ_SECONDS` says for how long, `MOORLINE_FUZZ_SEED` where to begin. A failure
//! names the seed of its sequence.

mod model;

use std::io::Write as _;
use std::time::{Duration, Instant};

use fastrand::Rng;
use model::{Edit, Key, Model, apply, same};
use moorline_graph::Graph;
use petgraph::algo::{dijkstra, has_path_connecting, toposort};
use petgraph::graphmap::DiGraphMap;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text}"))
    })
}

/// Runs sequences from one seed after another until the time is up, and at least one.
fn for_a_while(mut sequence: impl FnMut(&mut Rng)) {
    struct NameSeed(u64);
    impl Drop for NameSeed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let _ = writeln!(std::io::stderr(), "failed with MOORLINE_FUZZ_SEED={}", self.0);
            }
        }
    }
    let until = Instant::now() + Duration::from_secs(number("MOORLINE_FUZZ_SECONDS", 3));
    for seed in number("MOORLINE_FUZZ_SEED", 1).. {
        let _named = NameSeed(seed);
        sequence(&mut Rng::with_seed(seed));
        if Instant::now() >= until {
            return;
        }
    }
}

fn random_edit(random: &mut Rng, keys: Key) -> Edit {
    let (a, b, value) = (random.u16(..keys), random.u16(..keys), random.u8(..3));
    match random.u8(..100) {
        0..10 => Edit::Insert(a, value),
        10..13 => Edit::Set(a, value),
        13..17 => Edit::Remove(a),
        17..68 => Edit::Connect(a, b),
        68..76 => Edit::Disconnect(a, b),
        76..86 => Edit::AddConnect(a, b, value),
        86..97 => Edit::AddConnectRoot(a, value),
        _ => {
            let count = random.usize(..2 * usize::from(keys));
            let merge_free = |random: &mut Rng| loop {
                match random_edit(random, keys) {
                    Edit::Merge(_) => {}
                    edit => return edit,
                }
            };
            Edit::Merge((0..count).map(|_| merge_free(random)).collect())
        }
    }
}

#[test]
fn small_graphs_do_after_every_edit_what_the_naive_model_does() {
    for_a_while(|random| {
        let keys = random.u16(2..16);
        let (mut graph, mut model) = (Graph::new(), Model::default());
        for _ in 0..200 {
            apply(&random_edit(random, keys), &mut graph, &mut model);
            same(&graph, &model);
        }
    });
}

/// Large enough for searches to be given up and vertices to be lifted many tiers.
#[test]
fn larger_graphs_agree_with_petgraph_on_every_edge() {
    for_a_while(|random| {
        let keys = random.u32(200..600);
        let mut graph = Graph::new();
        let mut oracle: DiGraphMap<u32, ()> = DiGraphMap::new();
        for key in 0..keys {
            graph.insert(key, ());
            oracle.add_node(key);
        }
        for _ in 0..2 * keys {
            let (from, to) = (random.u32(..keys), random.u32(..keys));
            if from == to || random.u8(..20) == 0 {
                assert_eq!(graph.disconnect(&from, &to), oracle.remove_edge(from, to).is_some());
            } else if has_path_connecting(&oracle, to, from, None) {
                let refused = graph.connect(&from, &to).unwrap_err();
                let moorline_graph::ConnectError::Cycle(path) = refused else {
                    panic!("{from} -> {to} closes a cycle: {refused}");
                };
                let shortest: usize = dijkstra(&oracle, to, Some(from), |_| 1)[&from];
                assert_eq!((path.len(), path[0], path[path.len() - 1]), (shortest + 2, to, to));
                assert!(
                    path[..=shortest]
                        .windows(2)
                        .all(|step| oracle.contains_edge(step[0], step[1]))
                );
            } else {
                assert_eq!(graph.connect(&from, &to), Ok(oracle.add_edge(from, to, ()).is_none()));
            }
            graph.check_invariants().expect("the inner invariants hold");
        }
        assert!(toposort(&oracle, None).is_ok());
        assert_eq!(graph.edge_count(), oracle.edge_count());
    });
}
