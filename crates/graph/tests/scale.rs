//! A million vertices: nothing recurses, and no order of insertion is slow.

use moorline_graph::{ConnectError, Graph};

const SIZE: u32 = 1_000_000;

fn chain(edges: impl IntoIterator<Item = (u32, u32)>) -> Graph<u32, ()> {
    let mut graph = Graph::with_capacity(SIZE as usize, SIZE as usize);
    for key in 0..SIZE {
        graph.insert(key, ());
    }
    for (from, to) in edges {
        assert_eq!(graph.connect(&from, &to), Ok(true));
    }
    graph
}

fn forward() -> impl Iterator<Item = (u32, u32)> {
    (1..SIZE).map(|key| (key - 1, key))
}

fn keys<'g>(walk: impl Iterator<Item = (&'g u32, &'g ())>) -> impl Iterator<Item = u32> {
    walk.map(|(key, ())| *key)
}

#[test]
fn a_chain_of_a_million_walks_in_every_order() {
    let graph = chain(forward());
    assert!(keys(graph.topological()).eq(0..SIZE));
    assert!(keys(graph.reverse_topological()).eq((0..SIZE).rev()));
    assert!(keys(graph.topological_by(|a, b| b.cmp(&a))).eq(0..SIZE));
    assert!(keys(graph.breadth_first().unwrap()).eq(0..SIZE));
    assert_eq!(graph.validate(), Ok(&0));
    assert_eq!(graph.levels().len(), SIZE as usize);
    let mut ready = graph.ready_set();
    for expected in (0..SIZE).rev() {
        assert_eq!(ready.pop(), Some((&expected, &())));
        ready.complete(&expected).unwrap();
    }
    let mut ready = graph.ready_set();
    ready.pop();
    assert_eq!(ready.fail(&(SIZE - 1)).unwrap().len(), SIZE as usize - 1);
}

#[test]
fn a_chain_of_a_million_closed_to_a_ring_is_refused_with_its_whole_path() {
    let mut graph = chain(forward());
    let Err(ConnectError::Cycle(path)) = graph.connect(&(SIZE - 1), &0) else {
        panic!("the ring was accepted");
    };
    assert!(path.into_iter().eq((0..SIZE).chain([0])));
}

#[test]
fn a_chain_of_a_million_can_be_built_from_its_end() {
    let from_end = chain((1..SIZE).rev().map(|key| (key, key - 1)));
    assert!(keys(from_end.topological()).eq((0..SIZE).rev()));
    let from_head = chain((1..SIZE).map(|key| (key, key - 1)));
    assert!(keys(from_head.topological()).eq((0..SIZE).rev()));
    assert!(from_end == from_head);
}

#[test]
fn a_chain_of_a_million_can_be_built_in_random_order() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut names: Vec<u32> = (0..SIZE).collect();
    random.shuffle(&mut names);
    let mut edges: Vec<_> = names.windows(2).map(|pair| (pair[0], pair[1])).collect();
    random.shuffle(&mut edges);
    assert!(keys(chain(edges).topological()).eq(names));
}

#[test]
fn two_chains_of_a_million_merge_and_differ() {
    let mut graph = chain(forward());
    let before = graph.clone();
    let mut sub = Graph::new();
    sub.insert(SIZE, ());
    for key in SIZE + 1..2 * SIZE {
        sub.add_connect(&(key - 1), key, ()).unwrap();
    }
    // Reaches into the receiving graph, so that the merged chains are one behind the other.
    sub.add_connect(&(2 * SIZE - 1), 1, ()).unwrap();
    graph.merge(sub).unwrap();
    assert!(graph.has_edge(&0, &SIZE));
    assert_eq!(
        (graph.len(), graph.edge_count()),
        (2 * SIZE as usize, 2 * SIZE as usize)
    );
    let difference = before.difference(&graph);
    assert!(difference.added.into_iter().eq(SIZE..2 * SIZE));
    assert_eq!(difference.added_edges.len(), SIZE as usize + 1);
    assert!(difference.removed.is_empty() && difference.changed.is_empty() && difference.removed_edges.is_empty());

    let written = serde_json::to_vec(&graph).unwrap();
    assert!(serde_json::from_slice::<Graph<u32, ()>>(&written).unwrap() == graph);
}
