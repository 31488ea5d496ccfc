//! Graphs: the shapes that plans have, built, validated and walked.
//!
//! Ours is the best of several runs, since whatever else the machine does can only add to a run; the peer runs once,
//! because once takes it seconds. Keys are strings, as long as the names of objects are, and their copies are timed.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use moorline_graph::Graph;

use crate::{peers, report::Row};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![star_beside_peer(), star()];
    rows.extend(layered());
    rows
}

fn star_beside_peer() -> Row {
    const CHILDREN: usize = 1_024;
    const BAR: f64 = 3_000.0;
    let ours = milliseconds(best_of(50, &names(CHILDREN + 1)[..], build_validate_walk));
    let answer = peers::go(&["graph", &CHILDREN.to_string()]).and_then(|answer| {
        let seconds = answer["seconds"].as_f64();
        seconds.ok_or_else(|| format!("the Go peer did not say how long it took: {answer}"))
    });
    let peer = answer.as_ref().ok().map(|seconds| seconds * 1e3);
    let ratio = peer.map(|peer| peer / ours);
    Row {
        krate: "graph",
        work: "build, validate and walk a root with 1,024 children, best of 50".to_owned(),
        unit: "ms",
        ours,
        peer,
        peer_name: Some(answer.map_or_else(|why| why, |_| "map-of-edges graph in Go, once".to_owned())),
        ratio,
        bar: "≥ 3,000 x faster".to_owned(),
        holds: ratio.is_none_or(|ratio| ratio >= BAR),
    }
}

fn star() -> Row {
    let ours = milliseconds(best_of(50, &names(2_049)[..], build_validate_walk));
    alone(
        "build, validate and walk a root with 2,048 children, best of 50",
        "ms",
        ours,
        "< 2 ms",
        ours < 2.0,
    )
}

/// How many times longer a vertex may take among 100,000 than among 10,000 for the growth to be called linear.
///
/// The work for a vertex is the same: added layer by layer, no edge needs a search. What grows is the way to memory. By
/// the sizes of its parts the smaller graph with its names takes some 4 MB, about a second-level cache, and the larger
/// one ten times that. The tolerance allows for it and no more is claimed; quadratic growth would show as a factor of ten.
const LINEAR: f64 = 4.0;

fn layered() -> [Row; 3] {
    let in_order = |vertices| Layered::new(vertices, Arrival::LayerByLayer);
    // Ten small ones at a time, so that both sides of the comparison are disturbed alike.
    let ten_small = |layered: &Layered| (0..10).map(|_| build_and_order(layered)).sum::<usize>();
    let small = best_of(20, &in_order(10_000), ten_small).as_secs_f64();
    let large = best_of(20, &in_order(100_000), build_and_order).as_secs_f64();
    let shuffled = milliseconds(best_of(5, &Layered::new(100_000, Arrival::Shuffled), build_and_order));
    let ours = large * 1e3;
    let growth = large / small;
    [
        alone(
            "layered graph of 100,000 vertices and 300,000 edges: build and order, best of 20",
            "ms",
            ours,
            "< 200 ms",
            ours < 200.0,
        ),
        alone(
            "the same, over ten of 10,000 vertices and 30,000 edges: growth, best of 20 each",
            "x",
            growth,
            "linear: ≤ 4 x, for the caches that the larger one outgrows",
            growth <= LINEAR,
        ),
        alone(
            "the same with vertices and edges in random order, best of 5",
            "ms",
            shuffled,
            "< 1000 ms",
            shuffled < 1_000.0,
        ),
    ]
}

fn alone(work: &str, unit: &'static str, ours: f64, bar: &str, holds: bool) -> Row {
    Row {
        krate: "graph",
        work: work.to_owned(),
        unit,
        ours,
        peer: None,
        peer_name: None,
        ratio: None,
        bar: bar.to_owned(),
        holds,
    }
}

fn build_validate_walk(names: &[String]) -> usize {
    let mut graph = Graph::new();
    let (root, children) = names.split_first().expect("there is a root");
    graph.insert(root.clone(), ());
    for child in children {
        graph
            .add_connect_root(child.clone(), ())
            .expect("the root is the only one");
    }
    graph.validate().expect("the root is the only one");
    walk(&graph)
}

/// In which order the vertices and edges of a layered graph are added.
#[derive(Clone, Copy, PartialEq)]
enum Arrival {
    /// As they depend on each other, which is how a plan is written.
    LayerByLayer,
    /// Without any order, so that the kept one has to change again and again. Not the worst case, which is contrived.
    Shuffled,
}

/// Layers of vertices, each vertex pointing at three of the next layer.
struct Layered {
    names: Vec<String>,
    edges: Vec<(usize, usize)>,
}

impl Layered {
    const LAYERS: usize = 100;

    fn new(vertices: usize, arrival: Arrival) -> Self {
        let width = vertices / Self::LAYERS;
        let mut edges = Vec::with_capacity(3 * vertices);
        for layer in 0..Self::LAYERS - 1 {
            // The last layer points at nothing, and the first makes up for it.
            let degree = if layer == 0 { 6 } else { 3 };
            for place in 0..width {
                for edge in 0..degree {
                    let target = (7 * place + 13 * layer + edge * width / 7) % width;
                    edges.push((layer * width + place, (layer + 1) * width + target));
                }
            }
        }
        assert_eq!(edges.len(), 3 * vertices, "three edges a vertex");
        if arrival == Arrival::Shuffled {
            let mut random = fastrand::Rng::with_seed(1);
            let mut turn: Vec<usize> = (0..vertices).collect();
            random.shuffle(&mut turn);
            for (from, to) in &mut edges {
                (*from, *to) = (turn[*from], turn[*to]);
            }
            random.shuffle(&mut edges);
        }
        Self {
            names: names(vertices),
            edges,
        }
    }
}

fn build_and_order(layered: &Layered) -> usize {
    let mut graph = Graph::with_capacity(layered.names.len(), layered.edges.len());
    for name in &layered.names {
        graph.insert(name.clone(), ());
    }
    for (from, to) in &layered.edges {
        graph
            .connect(&layered.names[*from], &layered.names[*to])
            .expect("layers point one way");
    }
    assert_eq!(graph.edge_count(), layered.edges.len(), "no edge is there twice");
    walk(&graph)
}

fn walk(graph: &Graph<String, ()>) -> usize {
    let mut walked = 0;
    for vertex in graph.reverse_topological() {
        black_box(vertex);
        walked += 1;
    }
    walked
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("namespace/object-{number}")).collect()
}

fn best_of<I: ?Sized, T>(times: usize, input: &I, work: impl Fn(&I) -> T) -> Duration {
    let measure = |_| {
        let begin = Instant::now();
        black_box(work(input));
        begin.elapsed()
    };
    (0..times).map(measure).min().expect("there is at least one run")
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
