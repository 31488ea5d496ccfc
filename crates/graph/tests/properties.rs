//! Properties of small graphs, over all that edits can do to them.

mod model;

use std::collections::{BTreeMap, BTreeSet};

use model::{Edit, Key, Model, Value, apply, same};
use moorline_graph::Graph;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Few keys, so that edits meet.
const KEYS: Key = 10;

fn simple_edit() -> impl Strategy<Value = Edit> {
    let (key, value) = (0..KEYS, 0..3_u8);
    prop_oneof![
        3 => (key.clone(), value.clone()).prop_map(|(key, value)| Edit::Insert(key, value)),
        1 => (key.clone(), value.clone()).prop_map(|(key, value)| Edit::Set(key, value)),
        1 => key.clone().prop_map(Edit::Remove),
        8 => (key.clone(), key.clone()).prop_map(|(from, to)| Edit::Connect(from, to)),
        2 => (key.clone(), key.clone()).prop_map(|(from, to)| Edit::Disconnect(from, to)),
        3 => (key.clone(), key.clone(), value.clone()).prop_map(|(from, to, value)| Edit::AddConnect(from, to, value)),
        3 => (key, value).prop_map(|(key, value)| Edit::AddConnectRoot(key, value)),
    ]
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let merge = vec(simple_edit(), 0..12).prop_map(Edit::Merge);
    vec(prop_oneof![12 => simple_edit(), 1 => merge], 0..60)
}

fn build(edits: &[Edit]) -> (Graph<Key, Value>, Model) {
    let (mut graph, mut model) = (Graph::new(), Model::default());
    for edit in edits {
        apply(edit, &mut graph, &mut model);
    }
    (graph, model)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn every_edit_does_what_the_naive_model_does(edits in edits()) {
        let (mut graph, mut model) = (Graph::new(), Model::default());
        for edit in &edits {
            apply(edit, &mut graph, &mut model);
            same(&graph, &model);
        }
    }

    #[test]
    fn equality_knows_vertices_and_edges_but_not_their_order(edits in edits(), shuffled in any::<u64>(), change in simple_edit()) {
        let (mut graph, mut model) = build(&edits);
        let mut random = fastrand::Rng::with_seed(shuffled);
        let mut other = Model { vertices: model.vertices.clone(), edges: model.edges.clone() };
        random.shuffle(&mut other.vertices);
        random.shuffle(&mut other.edges);
        let mut twin = Graph::new();
        for (key, value) in &other.vertices {
            twin.insert(*key, *value);
        }
        for (from, to) in &other.edges {
            twin.connect(from, to).unwrap();
        }
        prop_assert_eq!(&twin, &graph);
        prop_assert!(graph.difference(&twin).is_empty());

        let sets = |model: &Model| {
            let vertices: BTreeMap<Key, Value> = model.vertices.iter().copied().collect();
            let edges: BTreeSet<(Key, Key)> = model.edges.iter().copied().collect();
            (vertices, edges)
        };
        let (vertices, edges) = sets(&model);
        apply(&change, &mut graph, &mut model);
        let (later_vertices, later_edges) = sets(&model);
        prop_assert_eq!(twin == graph, (&vertices, &edges) == (&later_vertices, &later_edges));
        let difference = twin.difference(&graph);
        let missing = |here: &BTreeMap<Key, Value>, there: &BTreeMap<Key, Value>| -> BTreeSet<Key> {
            here.keys().filter(|key| !there.contains_key(key)).copied().collect()
        };
        prop_assert_eq!(difference.added.into_iter().collect::<BTreeSet<_>>(), missing(&later_vertices, &vertices));
        prop_assert_eq!(difference.removed.into_iter().collect::<BTreeSet<_>>(), missing(&vertices, &later_vertices));
        let changed = vertices.iter().filter(|(key, value)| later_vertices.get(key).is_some_and(|later| later != *value));
        prop_assert_eq!(difference.changed.into_iter().collect::<BTreeSet<_>>(), changed.map(|(key, _)| *key).collect());
        prop_assert_eq!(difference.added_edges.into_iter().collect::<BTreeSet<_>>(), &later_edges - &edges);
        prop_assert_eq!(difference.removed_edges.into_iter().collect::<BTreeSet<_>>(), &edges - &later_edges);
    }

    #[test]
    fn what_is_written_reads_back_the_same(edits in edits()) {
        let (graph, model) = build(&edits);
        let written = serde_json::to_string(&graph).unwrap();
        let read: Graph<Key, Value> = serde_json::from_str(&written).unwrap();
        same(&read, &model);
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), written);
    }

    #[test]
    fn a_ready_set_hands_out_each_vertex_after_what_it_depends_on(
        edits in edits(), choices in vec(any::<(bool, bool, usize)>(), 0..80),
    ) {
        let (graph, model) = build(&edits);
        let mut ready = graph.ready_set();
        let mut in_flight: Vec<Key> = Vec::new();
        let (mut completed, mut failed, mut blocked) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let depends_on = |later: Key, earlier: Key| later != earlier && model.reaches(later, earlier);
        // The given choices first, then whatever ends the execution.
        let ending = std::iter::repeat((true, true, 0));
        for (take, succeeds, which) in choices.into_iter().chain(ending) {
            let startable = model.vertices.iter().map(|(key, _)| *key).filter(|key| {
                !in_flight.contains(key) && !completed.contains(key) && !failed.contains(key) && !blocked.contains(key)
                    && model.edges.iter().all(|(from, to)| from != key || completed.contains(to))
            }).collect::<Vec<_>>();
            prop_assert_eq!(ready.ready(), startable.len());
            prop_assert_eq!(ready.in_flight(), in_flight.len());
            prop_assert_eq!(ready.remaining(), graph.len() - completed.len() - failed.len() - blocked.len());
            if take && !startable.is_empty() {
                let (key, value) = ready.pop().unwrap();
                prop_assert_eq!(Some(key), startable.first());
                prop_assert_eq!(Some(*value), model.get(*key));
                in_flight.push(*key);
            } else if in_flight.is_empty() {
                if startable.is_empty() {
                    prop_assert_eq!(ready.pop(), None);
                    break;
                }
            } else {
                let key = in_flight.swap_remove(which % in_flight.len());
                if succeeds {
                    ready.complete(&key).unwrap();
                    completed.insert(key);
                } else {
                    let newly: Vec<Key> = model.vertices.iter().map(|(key, _)| *key)
                        .filter(|other| depends_on(*other, key) && !blocked.contains(other)).collect();
                    prop_assert_eq!(ready.fail(&key).unwrap().into_iter().copied().collect::<Vec<_>>(), newly.clone());
                    failed.insert(key);
                    blocked.extend(newly);
                }
                prop_assert_eq!(ready.complete(&key).unwrap_err().0, key);
                prop_assert!(ready.fail(&key).is_err());
            }
        }
        prop_assert_eq!(ready.remaining(), 0);
    }
}
