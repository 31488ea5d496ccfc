//! What the scheduler knows of the cluster, kept up to date by single changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Taint},
    storage::v1::StorageClass,
};

use super::wanted::Wanted;
use crate::{amounts::Amounts, key::Key, pod::is_over};

/// Nodes, the pods on them, and storage.
///
/// Changes cost what they touch. Pods are found by node and by namespace; those whose own terms concern others are
/// kept apart, so that an ordinary pod is placed without looking at every other.
#[derive(Default)]
pub struct Cluster {
    pub(crate) nodes: BTreeMap<String, NodeState>,
    pub(crate) pods: HashMap<Key, Arc<Placed>>,
    pub(crate) by_namespace: HashMap<String, BTreeMap<Key, Arc<Placed>>>,
    /// Pods that keep others away, or weigh where others go.
    pub(crate) with_terms: HashMap<Key, Arc<Placed>>,
    /// Pods for which room has been made on a node, and which are not there yet.
    pub(crate) nominated: HashMap<Key, (String, Arc<Wanted>)>,
    pub(crate) namespaces: HashMap<String, BTreeMap<String, String>>,
    pub(crate) claims: HashMap<Key, PersistentVolumeClaim>,
    pub(crate) claim_users: HashMap<Key, BTreeSet<Key>>,
    pub(crate) volumes: BTreeMap<String, PersistentVolume>,
    pub(crate) classes: BTreeMap<String, StorageClass>,
    pub(crate) budgets: HashMap<Key, Budget>,
}

/// A pod that is on a node, or will be.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) wanted: Wanted,
    pub(crate) node: String,
}

/// How many of the pods that a disruption budget covers may go.
#[derive(Debug, Clone)]
pub struct Budget {
    pub(crate) namespace: String,
    pub(crate) selector: moorline_machinery::selector::LabelSelector,
    pub(crate) allowed: i32,
}

/// A node with what is on it.
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: Amounts,
    pub(crate) used: Amounts,
    pub(crate) pods: BTreeMap<Key, Arc<Placed>>,
}

impl NodeState {
    fn read(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            unschedulable: spec.is_some_and(|spec| spec.unschedulable == Some(true)),
            allocatable: Amounts::of(node.status.as_ref().and_then(|status| status.allocatable.as_ref())),
            used: Amounts::default(),
            pods: BTreeMap::new(),
        }
    }

    fn describes(&self, node: &Self) -> bool {
        self.labels == node.labels
            && self.taints == node.taints
            && self.unschedulable == node.unschedulable
            && self.allocatable == node.allocatable
    }
}

impl Cluster {
    /// Takes a node as it is now. Says whether anything changed that decides where pods can go.
    pub fn node_applied(&mut self, node: &Node) -> bool {
        let mut state = NodeState::read(node);
        let changed = if let Some(before) = self.nodes.remove(&state.name) {
            let changed = !before.describes(&state);
            state.used = before.used;
            state.pods = before.pods;
            changed
        } else {
            let here = self.pods.values().filter(|placed| placed.node == state.name);
            for placed in here {
                state.used.add(&placed.wanted.requests);
                state.pods.insert(placed.wanted.key.clone(), placed.clone());
            }
            true
        };
        self.nodes.insert(state.name.clone(), state);
        changed
    }

    /// Forgets a node.
    pub fn node_deleted(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Takes a pod as it is now: one with a node and not over takes room there, any other none. Says whether room
    /// became free.
    pub fn pod_applied(&mut self, pod: &Pod) -> bool {
        let key = Key::of(pod);
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref())
            .filter(|name| !name.is_empty());
        match node {
            None => false,
            Some(_) if is_over(pod) => self.pod_removed(&key),
            Some(node) => {
                let wanted = Wanted::of(pod);
                let shrank = self
                    .pods
                    .get(&key)
                    .is_some_and(|before| before.wanted.requests != wanted.requests);
                self.place(wanted, node);
                shrank
            }
        }
    }

    /// Counts a pod in on a node.
    pub(crate) fn place(&mut self, wanted: Wanted, node: &str) {
        self.pod_removed(&wanted.key);
        self.nominated.remove(&wanted.key);
        let key = wanted.key.clone();
        let placed = Arc::new(Placed {
            wanted,
            node: node.to_owned(),
        });
        if let Some(state) = self.nodes.get_mut(node) {
            state.used.add(&placed.wanted.requests);
            state.pods.insert(key.clone(), placed.clone());
        }
        for claim in &placed.wanted.claims {
            let claim = Key::new(&key.namespace, claim);
            self.claim_users.entry(claim).or_default().insert(key.clone());
        }
        if !placed.wanted.apart.is_empty() || !placed.wanted.near.is_empty() || !placed.wanted.weighing.is_empty() {
            self.with_terms.insert(key.clone(), placed.clone());
        }
        self.by_namespace
            .entry(key.namespace.clone())
            .or_default()
            .insert(key.clone(), placed.clone());
        self.pods.insert(key, placed);
    }

    /// Forgets a pod. Says whether it took room.
    pub fn pod_removed(&mut self, key: &Key) -> bool {
        self.nominated.remove(key);
        let Some(placed) = self.pods.remove(key) else {
            return false;
        };
        self.with_terms.remove(key);
        if let Some(pods) = self.by_namespace.get_mut(&key.namespace) {
            pods.remove(key);
            if pods.is_empty() {
                self.by_namespace.remove(&key.namespace);
            }
        }
        for claim in &placed.wanted.claims {
            let claim = Key::new(&key.namespace, claim);
            if let Some(users) = self.claim_users.get_mut(&claim) {
                users.remove(key);
                if users.is_empty() {
                    self.claim_users.remove(&claim);
                }
            }
        }
        if let Some(node) = self.nodes.get_mut(&placed.node)
            && node.pods.remove(key).is_some()
        {
            node.used.subtract(&placed.wanted.requests);
        }
        true
    }

    /// Notes that room is being made for a pod on a node.
    pub(crate) fn nominate(&mut self, wanted: Arc<Wanted>, node: &str) {
        self.nominated.insert(wanted.key.clone(), (node.to_owned(), wanted));
    }

    /// Takes the labels of a namespace.
    pub fn namespace_applied(&mut self, name: &str, labels: BTreeMap<String, String>) {
        self.namespaces.insert(name.to_owned(), labels);
    }

    /// Takes a claim as it is now.
    pub fn claim_applied(&mut self, claim: PersistentVolumeClaim) {
        let key = Key::of(&claim);
        self.claims.insert(key, claim);
    }

    /// Forgets a claim.
    pub fn claim_deleted(&mut self, key: &Key) {
        self.claims.remove(key);
    }

    /// Takes a volume as it is now.
    pub fn volume_applied(&mut self, volume: PersistentVolume) {
        self.volumes
            .insert(volume.metadata.name.clone().unwrap_or_default(), volume);
    }

    /// Forgets a volume.
    pub fn volume_deleted(&mut self, name: &str) {
        self.volumes.remove(name);
    }

    /// Takes a storage class as it is now.
    pub fn class_applied(&mut self, class: StorageClass) {
        self.classes
            .insert(class.metadata.name.clone().unwrap_or_default(), class);
    }

    /// Forgets a storage class.
    pub fn class_deleted(&mut self, name: &str) {
        self.classes.remove(name);
    }

    /// Takes a disruption budget as it is now.
    pub fn budget_applied(&mut self, budget: &k8s_openapi::api::policy::v1::PodDisruptionBudget) {
        let key = Key::of(budget);
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let budget = Budget {
            namespace: key.namespace.clone(),
            selector: super::wanted::read_selector(selector),
            allowed: budget
                .status
                .as_ref()
                .and_then(|status| status.disruptions_allowed)
                .unwrap_or(0),
        };
        self.budgets.insert(key, budget);
    }

    /// Forgets a disruption budget.
    pub fn budget_deleted(&mut self, key: &Key) {
        self.budgets.remove(key);
    }
}
