//! The graph as one would write it without thinking of speed, and edits that are made to it and to the real one alike.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use moorline_graph::{ConnectError, ConnectRootError, Graph, MergeError, RootError};

pub(crate) type Key = u16;
pub(crate) type Value = u8;

/// Lists in insertion order, and nothing else.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) vertices: Vec<(Key, Value)>,
    pub(crate) edges: Vec<(Key, Key)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Insert(Key, Value),
    Set(Key, Value),
    Remove(Key),
    Connect(Key, Key),
    Disconnect(Key, Key),
    AddConnect(Key, Key, Value),
    AddConnectRoot(Key, Value),
    /// Merges the graph that these edits make.
    Merge(Vec<Edit>),
}

impl Model {
    pub(crate) fn get(&self, key: Key) -> Option<Value> {
        self.vertices
            .iter()
            .find(|(other, _)| *other == key)
            .map(|(_, value)| *value)
    }

    pub(crate) fn insert(&mut self, key: Key, value: Value) -> Option<Value> {
        if let Some((_, old)) = self.vertices.iter_mut().find(|(other, _)| *other == key) {
            return Some(std::mem::replace(old, value));
        }
        self.vertices.push((key, value));
        None
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Value> {
        let at = self.vertices.iter().position(|(other, _)| *other == key)?;
        self.edges.retain(|(from, to)| *from != key && *to != key);
        Some(self.vertices.remove(at).1)
    }

    pub(crate) fn reaches(&self, from: Key, to: Key) -> bool {
        let mut seen = BTreeSet::from([from]);
        let mut stack = vec![from];
        while let Some(at) = stack.pop() {
            if at == to {
                return true;
            }
            stack.extend(
                self.edges
                    .iter()
                    .filter(|edge| edge.0 == at && seen.insert(edge.1))
                    .map(|edge| edge.1),
            );
        }
        false
    }

    /// What connecting must answer; the path of a cycle is checked elsewhere.
    pub(crate) fn connect(&mut self, from: Key, to: Key) -> Result<bool, ConnectError<Key>> {
        for end in [from, to] {
            if self.get(end).is_none() {
                return Err(ConnectError::MissingVertex(end));
            }
        }
        if from == to {
            return Err(ConnectError::SelfEdge(from));
        }
        if self.edges.contains(&(from, to)) {
            return Ok(false);
        }
        if self.reaches(to, from) {
            return Err(ConnectError::Cycle(Vec::new()));
        }
        self.edges.push((from, to));
        Ok(true)
    }

    pub(crate) fn add_connect(
        &mut self,
        from: Key,
        key: Key,
        value: Value,
    ) -> Result<Option<Value>, ConnectError<Key>> {
        if self.get(from).is_none() {
            return Err(ConnectError::MissingVertex(from));
        }
        let mut after = self.clone();
        let old = after.insert(key, value);
        after.connect(from, key)?;
        *self = after;
        Ok(old)
    }

    pub(crate) fn roots(&self) -> Vec<Key> {
        let rootless = |key: &Key| self.edges.iter().all(|(_, to)| to != key);
        self.vertices.iter().map(|(key, _)| *key).filter(rootless).collect()
    }

    pub(crate) fn root(&self) -> Result<Key, RootError<Key>> {
        match self.roots()[..] {
            [] => Err(RootError::NoVertex),
            [root] => Ok(root),
            _ => Err(RootError::SeveralRoots(self.roots())),
        }
    }

    pub(crate) fn merge(&mut self, sub: &Self) -> Result<(), MergeError<Key>> {
        if sub.vertices.is_empty() {
            return Ok(());
        }
        if self.vertices.is_empty() {
            *self = sub.clone();
            return Ok(());
        }
        let root = self.root().map_err(MergeError::Root)?;
        let mut after = self.clone();
        for (key, value) in &sub.vertices {
            if after.insert(*key, *value).is_some_and(|old| old != *value) {
                return Err(MergeError::Conflict(*key));
            }
        }
        for (from, to) in &sub.edges {
            after.connect(*from, *to).map_err(MergeError::Connect)?;
        }
        for sub_root in sub.roots() {
            if sub_root != root && after.edges.iter().all(|(_, to)| *to != sub_root) {
                after.connect(root, sub_root).map_err(MergeError::Connect)?;
            }
        }
        *self = after;
        Ok(())
    }

    pub(crate) fn reversed(&self) -> Self {
        Self {
            vertices: self.vertices.clone(),
            edges: self.edges.iter().map(|(from, to)| (*to, *from)).collect(),
        }
    }

    /// Again and again the first listed vertex all of whose predecessors are gone.
    pub(crate) fn topological(&self, listed: &[Key]) -> Vec<Key> {
        let mut left = listed.to_vec();
        let mut walked = Vec::new();
        while !left.is_empty() {
            let free = |key: &Key| !self.edges.iter().any(|(from, to)| to == key && left.contains(from));
            let at = left.iter().position(free).expect("the model has no cycle");
            walked.push(left.remove(at));
        }
        walked
    }

    pub(crate) fn distances(&self, root: Key) -> BTreeMap<Key, usize> {
        let mut distances = BTreeMap::from([(root, 0)]);
        let mut queue = VecDeque::from([root]);
        while let Some(at) = queue.pop_front() {
            let next = distances[&at] + 1;
            for (_, to) in self.edges.iter().filter(|(from, _)| *from == at) {
                distances.entry(*to).or_insert_with(|| {
                    queue.push_back(*to);
                    next
                });
            }
        }
        distances
    }

    pub(crate) fn height(&self, key: Key) -> usize {
        let successors = self.edges.iter().filter(|(from, _)| *from == key);
        successors.map(|(_, to)| self.height(*to) + 1).max().unwrap_or(0)
    }
}

/// Makes one edit to both and compares what they answer.
pub(crate) fn apply(edit: &Edit, graph: &mut Graph<Key, Value>, model: &mut Model) {
    match edit {
        Edit::Insert(key, value) => assert_eq!(graph.insert(*key, *value), model.insert(*key, *value)),
        Edit::Set(key, value) => {
            assert_eq!(
                graph.get_mut(key).map(|old| *old = *value).is_some(),
                model.get(*key).is_some()
            );
            if model.get(*key).is_some() {
                model.insert(*key, *value);
            }
        }
        Edit::Remove(key) => assert_eq!(graph.remove(key), model.remove(*key)),
        Edit::Connect(from, to) => {
            let answer = graph.connect(from, to);
            same_answer(answer, model.connect(*from, *to), model, (*from, *to));
        }
        Edit::Disconnect(from, to) => {
            let at = model.edges.iter().position(|edge| edge == &(*from, *to));
            assert_eq!(graph.disconnect(from, to), at.is_some());
            at.map(|at| model.edges.remove(at));
        }
        Edit::AddConnect(from, key, value) => {
            let answer = graph.add_connect(from, *key, *value);
            same_answer(answer, model.add_connect(*from, *key, *value), model, (*from, *key));
        }
        Edit::AddConnectRoot(key, value) => {
            let answer = graph.add_connect_root(*key, *value);
            match (model.root(), answer) {
                (Err(expected), answer) => assert_eq!(answer, Err(ConnectRootError::Root(expected))),
                (Ok(_), Err(ConnectRootError::Root(error))) => panic!("there is a root: {error}"),
                (Ok(root), Err(ConnectRootError::Connect(error))) => {
                    same_answer(Err(error), model.add_connect(root, *key, *value), model, (root, *key));
                }
                (Ok(root), Ok(old)) => assert_eq!(model.add_connect(root, *key, *value), Ok(old)),
            }
        }
        Edit::Merge(edits) => {
            let (mut sub_graph, mut sub_model) = (Graph::new(), Model::default());
            for edit in edits {
                apply(edit, &mut sub_graph, &mut sub_model);
            }
            match (graph.merge(sub_graph), model.merge(&sub_model)) {
                (
                    Err(MergeError::Connect(ConnectError::Cycle(path))),
                    Err(MergeError::Connect(ConnectError::Cycle(_))),
                ) => assert_eq!(path.first(), path.last()),
                (answer, expected) => assert_eq!(answer, expected),
            }
        }
    }
}

fn same_answer<T: PartialEq + std::fmt::Debug>(
    answer: Result<T, ConnectError<Key>>,
    expected: Result<T, ConnectError<Key>>,
    model: &Model,
    refused: (Key, Key),
) {
    match (answer, expected) {
        (Err(ConnectError::Cycle(path)), Err(ConnectError::Cycle(_))) => {
            is_shortest_cycle(&path, model, refused);
        }
        (answer, expected) => assert_eq!(answer, expected),
    }
}

/// The path leads along edges of the graph from the refused target to the refused source, and back by the refused edge.
fn is_shortest_cycle(path: &[Key], model: &Model, (from, to): (Key, Key)) {
    let [way @ .., last] = path else {
        panic!("a cycle has a path");
    };
    assert_eq!((way.first(), way.last(), *last), (Some(&to), Some(&from), to));
    for step in way.windows(2) {
        assert!(
            model.edges.contains(&(step[0], step[1])),
            "{step:?} of {path:?} is no edge"
        );
    }
    assert_eq!(
        way.len() - 1,
        model.distances(to)[&from],
        "{path:?} is not the shortest way"
    );
}

/// Compares all that can be asked of a graph.
pub(crate) fn same(graph: &Graph<Key, Value>, model: &Model) {
    graph.check_invariants().expect("the inner invariants hold");
    let keys: Vec<Key> = model.vertices.iter().map(|(key, _)| *key).collect();
    assert_eq!(
        graph.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>(),
        model.vertices
    );
    assert_eq!(
        graph.edges().map(|(from, to)| (*from, *to)).collect::<Vec<_>>(),
        model.edges
    );
    assert_eq!(
        (graph.len(), graph.edge_count()),
        (model.vertices.len(), model.edges.len())
    );
    assert_eq!(graph.roots().copied().collect::<Vec<_>>(), model.roots());
    assert_eq!(graph.root().copied(), model.root());
    assert_eq!(graph.validate().copied(), model.root());
    for key in &keys {
        let successors: Vec<Key> = model
            .edges
            .iter()
            .filter(|edge| edge.0 == *key)
            .map(|edge| edge.1)
            .collect();
        let predecessors: Vec<Key> = model
            .edges
            .iter()
            .filter(|edge| edge.1 == *key)
            .map(|edge| edge.0)
            .collect();
        assert_eq!(
            (graph.out_degree(key), graph.in_degree(key)),
            (successors.len(), predecessors.len())
        );
        assert_eq!(graph.successors(key).copied().collect::<Vec<_>>(), successors);
        assert_eq!(graph.predecessors(key).copied().collect::<Vec<_>>(), predecessors);
        assert_eq!(graph.get(key).copied(), model.get(*key));
    }
    same_walks(graph, model, &keys);
}

fn same_walks(graph: &Graph<Key, Value>, model: &Model, keys: &[Key]) {
    fn walked<'g>(walk: impl Iterator<Item = (&'g Key, &'g Value)>) -> Vec<Key> {
        walk.map(|(key, _)| *key).collect()
    }
    let mut by_value = keys.to_vec();
    by_value.sort_by_key(|key| model.get(*key));
    let reversed = model.reversed();
    assert_eq!(walked(graph.topological()), model.topological(keys));
    assert_eq!(
        walked(graph.topological_by(|a, b| a.1.cmp(b.1))),
        model.topological(&by_value)
    );
    assert_eq!(walked(graph.reverse_topological()), reversed.topological(keys));
    assert_eq!(
        walked(graph.reverse_topological_by(|a, b| a.1.cmp(b.1))),
        reversed.topological(&by_value)
    );

    let mut levels: Vec<Vec<Key>> = Vec::new();
    for key in keys {
        let height = model.height(*key);
        levels.resize(levels.len().max(height + 1), Vec::new());
        levels[height].push(*key);
    }
    let found: Vec<Vec<Key>> = graph
        .levels()
        .into_iter()
        .map(|level| level.into_iter().copied().collect())
        .collect();
    assert_eq!(found, levels);

    match model.root() {
        Err(expected) => assert_eq!(graph.breadth_first().map(walked), Err(expected)),
        Ok(root) => {
            let distances = model.distances(root);
            let mut nearest = keys.to_vec();
            nearest.sort_by_key(|key| distances[key]);
            assert_eq!(graph.breadth_first().map(walked), Ok(nearest));
            by_value.sort_by_key(|key| distances[key]);
            assert_eq!(graph.breadth_first_by(|a, b| a.1.cmp(b.1)).map(walked), Ok(by_value));
        }
    }
}
