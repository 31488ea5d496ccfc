//! The graph by key: vertices, edges, and the questions asked about them.

use std::fmt::{self, Debug, Formatter};
use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::error::{ConnectError, ConnectRootError, RootError};
use crate::topology::{Chain, Direction, Edge, Neighbours, Node, Slot, Topology};

/// A directed acyclic graph of vertices `K -> V`.
///
/// An edge `from -> to` says that `from` depends on `to`, so `to` comes first in [`Graph::reverse_topological`]. A root
/// is a vertex that nothing depends on. Everything that lists vertices or edges does so in insertion order.
///
/// ```
/// use moorline_graph::Graph;
///
/// // A cluster, its workloads, and the secret that must exist before them.
/// let mut graph = Graph::new();
/// graph.insert("cluster", "status");
/// graph.add_connect_root("workload-0", "create")?;
/// graph.add_connect_root("workload-1", "create")?;
/// graph.add_connect_root("secret", "create")?;
/// graph.connect(&"workload-0", &"secret")?;
/// graph.connect(&"workload-1", &"secret")?;
///
/// let order: Vec<_> = graph.reverse_topological().map(|(key, _)| *key).collect();
/// assert_eq!(order, ["secret", "workload-0", "workload-1", "cluster"]);
///
/// let refused = graph.connect(&"secret", &"cluster").unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "cannot connect secret to cluster: this would close the cycle cluster -> secret -> cluster"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Graph<K, V> {
    /// From the hash of a key to its slot; the key itself is stored once, in `slots`.
    index: HashTable<Slot>,
    /// The same hash in every process, so that not even timing differs between two runs.
    hasher: FixedState,
    /// `None` exactly where the topology has a vacant slot.
    pub(crate) slots: Vec<Option<(K, V)>>,
    pub(crate) topology: Topology,
}

impl<K, V> Graph<K, V> {
    /// An empty graph.
    pub fn new() -> Self {
        Self::with_capacity(0, 0)
    }

    /// An empty graph that takes this many vertices and edges without allocating again.
    pub fn with_capacity(vertices: usize, edges: usize) -> Self {
        Self {
            index: HashTable::with_capacity(vertices),
            hasher: FixedState::default(),
            slots: Vec::with_capacity(vertices),
            topology: Topology::with_capacity(vertices, edges),
        }
    }

    /// The number of vertices.
    pub fn len(&self) -> usize {
        self.topology.len()
    }

    /// Whether there are no vertices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of edges.
    pub fn edge_count(&self) -> usize {
        self.topology.edge_count()
    }

    /// The vertices in insertion order.
    pub fn iter(&self) -> Vertices<'_, K, V> {
        Vertices {
            graph: self,
            slots: self.topology.slots(),
            left: self.len(),
        }
    }

    /// The keys in insertion order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// The edges, as `(from, to)`, in insertion order.
    pub fn edges(&self) -> Edges<'_, K, V> {
        Edges {
            graph: self,
            slots: self.topology.edge_slots(),
            left: self.edge_count(),
        }
    }

    #[inline]
    pub(crate) fn vertex(&self, slot: Slot) -> (&K, &V) {
        let (key, value) = self.slots[slot as usize]
            .as_ref()
            .expect("the topology names occupied slots only");
        (key, value)
    }

    #[inline]
    pub(crate) fn key(&self, slot: Slot) -> &K {
        self.vertex(slot).0
    }

    /// The vertices without predecessor, in insertion order. Looks at every vertex; [`Graph::root`] does not.
    pub fn roots(&self) -> impl Iterator<Item = &K> {
        self.root_slots().map(|slot| self.key(slot))
    }

    pub(crate) fn root_slots(&self) -> impl Iterator<Item = Slot> {
        self.topology
            .slots()
            .filter(|slot| self.topology.node(*slot).in_degree == 0)
    }
}

impl<K: Eq + Hash + Clone, V> Graph<K, V> {
    /// Adds a vertex. One that is there keeps its place and its edges and gets the new value; the old one is returned.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = self.hasher.hash_one(&key);
        if let Some(slot) = self.find_hashed(hash, &key) {
            return Some(std::mem::replace(self.value_mut(slot), value));
        }
        self.add_new(hash, key, value);
        None
    }

    /// The value of a vertex.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.find(key).map(|slot| self.vertex(slot).1)
    }

    /// The value of a vertex, to be changed in place.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.find(key).map(|slot| self.value_mut(slot))
    }

    /// Whether there is such a vertex.
    pub fn contains(&self, key: &K) -> bool {
        self.find(key).is_some()
    }

    /// Removes a vertex and its edges, in time proportional to their number.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.find(key)?;
        Some(self.remove_slot(slot).1)
    }

    /// Makes `from` depend on `to`. `Ok(false)` when it did already.
    pub fn connect(&mut self, from: &K, to: &K) -> Result<bool, ConnectError<K>> {
        let from_slot = self.find_end(from)?;
        let to_slot = self.find_end(to)?;
        self.connect_slots(from_slot, to_slot)
    }

    /// Removes an edge. `false` when there was none.
    pub fn disconnect(&mut self, from: &K, to: &K) -> bool {
        match (self.find(from), self.find(to)) {
            (Some(from), Some(to)) => self.topology.remove_edge(from, to),
            _ => false,
        }
    }

    /// Whether `from` depends directly on `to`.
    pub fn has_edge(&self, from: &K, to: &K) -> bool {
        match (self.find(from), self.find(to)) {
            (Some(from), Some(to)) => self.topology.find_edge(from, to).is_some(),
            _ => false,
        }
    }

    /// Inserts a vertex as [`Graph::insert`] does and makes `from` depend on it, or does neither.
    pub fn add_connect(&mut self, from: &K, key: K, value: V) -> Result<Option<V>, ConnectError<K>> {
        let from = self.find_end(from)?;
        self.add_connect_slot(from, key, value)
    }

    /// Inserts a vertex as [`Graph::insert`] does and makes the root depend on it, or does neither.
    pub fn add_connect_root(&mut self, key: K, value: V) -> Result<Option<V>, ConnectRootError<K>> {
        let root = self.root_slot().map_err(ConnectRootError::Root)?;
        self.add_connect_slot(root, key, value)
            .map_err(ConnectRootError::Connect)
    }

    /// The one vertex that nothing depends on, in constant time.
    pub fn root(&self) -> Result<&K, RootError<K>> {
        self.root_slot().map(|slot| self.key(slot))
    }

    /// Checks what every edit does not already ensure: that there is a single root, which is returned.
    ///
    /// An edge from a vertex to itself and a cycle are refused by [`Graph::connect`], so no graph has one. In a graph
    /// with a single root every vertex can be reached from it.
    pub fn validate(&self) -> Result<&K, RootError<K>> {
        self.root()
    }

    /// What a vertex depends on directly, in the order in which the edges were added. Nothing for an unknown key.
    pub fn successors(&self, key: &K) -> Adjacent<'_, K, V> {
        self.adjacent(key, Direction::Out)
    }

    /// What depends directly on a vertex, in the order in which the edges were added. Nothing for an unknown key.
    pub fn predecessors(&self, key: &K) -> Adjacent<'_, K, V> {
        self.adjacent(key, Direction::Into)
    }

    /// How many vertices this one depends on directly. Zero for an unknown key.
    pub fn out_degree(&self, key: &K) -> usize {
        self.find(key)
            .map_or(0, |slot| self.topology.node(slot).out_degree as usize)
    }

    /// How many vertices depend directly on this one. Zero for an unknown key.
    pub fn in_degree(&self, key: &K) -> usize {
        self.find(key)
            .map_or(0, |slot| self.topology.node(slot).in_degree as usize)
    }

    pub(crate) fn reserve(&mut self, vertices: usize, edges: usize) {
        let Self {
            index,
            hasher,
            slots,
            topology,
        } = self;
        index.reserve(vertices, |slot| hash_of(hasher, slots, *slot));
        slots.reserve(vertices);
        topology.reserve(vertices, edges);
    }

    #[inline]
    pub(crate) fn find(&self, key: &K) -> Option<Slot> {
        self.find_hashed(self.hasher.hash_one(key), key)
    }

    #[inline]
    fn find_hashed(&self, hash: u64, key: &K) -> Option<Slot> {
        self.index.find(hash, |slot| self.key(*slot) == key).copied()
    }

    fn find_end(&self, key: &K) -> Result<Slot, ConnectError<K>> {
        self.find(key).ok_or_else(|| ConnectError::MissingVertex(key.clone()))
    }

    #[inline]
    fn value_mut(&mut self, slot: Slot) -> &mut V {
        &mut self.slots[slot as usize]
            .as_mut()
            .expect("the index names occupied slots only")
            .1
    }

    /// Adds a vertex that is known to be absent.
    pub(crate) fn add_absent(&mut self, key: K, value: V) -> Slot {
        self.add_new(self.hasher.hash_one(&key), key, value)
    }

    fn add_new(&mut self, hash: u64, key: K, value: V) -> Slot {
        let slot = self.topology.add_vertex();
        let vertex = Some((key, value));
        if slot as usize == self.slots.len() {
            self.slots.push(vertex);
        } else {
            self.slots[slot as usize] = vertex;
        }
        let Self {
            index, hasher, slots, ..
        } = self;
        index.insert_unique(hash, slot, |slot| hash_of(hasher, slots, *slot));
        slot
    }

    pub(crate) fn remove_slot(&mut self, slot: Slot) -> (K, V) {
        let (key, value) = self.slots[slot as usize]
            .take()
            .expect("the index names occupied slots only");
        self.index
            .find_entry(self.hasher.hash_one(&key), |other| *other == slot)
            .expect("every occupied slot is in the index")
            .remove();
        self.topology.remove_vertex(slot);
        (key, value)
    }

    pub(crate) fn connect_slots(&mut self, from: Slot, to: Slot) -> Result<bool, ConnectError<K>> {
        if from == to {
            return Err(ConnectError::SelfEdge(self.key(from).clone()));
        }
        if self.topology.find_edge(from, to).is_some() {
            return Ok(false);
        }
        if self.topology.make_room(from, to).is_err() {
            let mut path = self.topology.shortest_path(to, from);
            path.push(to);
            return Err(ConnectError::Cycle(
                path.into_iter().map(|slot| self.key(slot).clone()).collect(),
            ));
        }
        self.topology.link_edge(from, to);
        Ok(true)
    }

    fn add_connect_slot(&mut self, from: Slot, key: K, value: V) -> Result<Option<V>, ConnectError<K>> {
        let hash = self.hasher.hash_one(&key);
        if let Some(slot) = self.find_hashed(hash, &key) {
            self.connect_slots(from, slot)?;
            return Ok(Some(std::mem::replace(self.value_mut(slot), value)));
        }
        let slot = self.add_new(hash, key, value);
        self.connect_slots(from, slot)?;
        Ok(None)
    }

    pub(crate) fn root_slot(&self) -> Result<Slot, RootError<K>> {
        self.topology.single_root().ok_or_else(|| {
            if self.is_empty() {
                RootError::NoVertex
            } else {
                RootError::SeveralRoots(self.roots().cloned().collect())
            }
        })
    }

    fn adjacent(&self, key: &K, direction: Direction) -> Adjacent<'_, K, V> {
        let (slots, left) = match self.find(key) {
            None => (Neighbours::NONE, 0),
            Some(slot) => {
                let node = self.topology.node(slot);
                let degree = match direction {
                    Direction::Out => node.out_degree,
                    Direction::Into => node.in_degree,
                };
                (self.topology.neighbours(slot, direction), degree as usize)
            }
        };
        Adjacent {
            graph: self,
            slots,
            left,
        }
    }
}

fn hash_of<K: Hash, V>(hasher: &FixedState, slots: &[Option<(K, V)>], slot: Slot) -> u64 {
    let vertex = slots[slot as usize].as_ref();
    hasher.hash_one(&vertex.expect("the index names occupied slots only").0)
}

impl<K, V> Default for Graph<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Debug, V: Debug> Debug for Graph<K, V> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        struct VerticesOf<'g, K, V>(&'g Graph<K, V>);
        impl<K: Debug, V: Debug> Debug for VerticesOf<'_, K, V> {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.debug_map().entries(self.0.iter()).finish()
            }
        }
        struct EdgesOf<'g, K, V>(&'g Graph<K, V>);
        impl<K: Debug, V> Debug for EdgesOf<'_, K, V> {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.0.edges()).finish()
            }
        }
        f.debug_struct("Graph")
            .field("vertices", &VerticesOf(self))
            .field("edges", &EdgesOf(self))
            .finish()
    }
}

impl<'g, K, V> IntoIterator for &'g Graph<K, V> {
    type Item = (&'g K, &'g V);
    type IntoIter = Vertices<'g, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The vertices of a graph in insertion order. Made by [`Graph::iter`].
pub struct Vertices<'g, K, V> {
    graph: &'g Graph<K, V>,
    slots: Chain<'g, Node>,
    left: usize,
}

/// The edges of a graph in insertion order. Made by [`Graph::edges`].
pub struct Edges<'g, K, V> {
    graph: &'g Graph<K, V>,
    slots: Chain<'g, Edge>,
    left: usize,
}

/// The neighbours of a vertex. Made by [`Graph::successors`] and [`Graph::predecessors`].
pub struct Adjacent<'g, K, V> {
    graph: &'g Graph<K, V>,
    slots: Neighbours<'g>,
    left: usize,
}

impl<'g, K, V> Iterator for Vertices<'g, K, V> {
    type Item = (&'g K, &'g V);

    fn next(&mut self) -> Option<Self::Item> {
        let slot = self.slots.next()?;
        self.left -= 1;
        Some(self.graph.vertex(slot))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<'g, K, V> Iterator for Edges<'g, K, V> {
    type Item = (&'g K, &'g K);

    fn next(&mut self) -> Option<Self::Item> {
        let edge = self.graph.topology.edge(self.slots.next()?);
        self.left -= 1;
        Some((self.graph.key(edge.from), self.graph.key(edge.to)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<'g, K, V> Iterator for Adjacent<'g, K, V> {
    type Item = &'g K;

    fn next(&mut self) -> Option<Self::Item> {
        let slot = self.slots.next()?;
        self.left -= 1;
        Some(self.graph.key(slot))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K, V> ExactSizeIterator for Vertices<'_, K, V> {}
impl<K, V> ExactSizeIterator for Edges<'_, K, V> {}
impl<K, V> ExactSizeIterator for Adjacent<'_, K, V> {}

impl<K, V> Clone for Vertices<'_, K, V> {
    fn clone(&self) -> Self {
        Self {
            slots: self.slots.clone(),
            ..*self
        }
    }
}

impl<K, V> Clone for Edges<'_, K, V> {
    fn clone(&self) -> Self {
        Self {
            slots: self.slots.clone(),
            ..*self
        }
    }
}

impl<K, V> Clone for Adjacent<'_, K, V> {
    fn clone(&self) -> Self {
        Self {
            slots: self.slots.clone(),
            ..*self
        }
    }
}
