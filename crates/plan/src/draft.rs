//! The plan while it is being made: what transformers read and edit.

use std::{borrow::Borrow, sync::Arc};

use moorline_graph::{ConnectError, Graph};

use crate::{Failure, Object, Step, StepKey};

/// A plan in the making. Steps are written by key, and ordered by saying which comes after which.
///
/// The root, the status of the object that the plan is for, is there from the start, comes after everything else
/// without being told so, and cannot be removed.
#[derive(Clone, Debug)]
pub struct Draft<O: Object> {
    pub(crate) graph: Graph<StepKey<O::Target>, Arc<Step<O>>>,
    root: StepKey<O::Target>,
    /// The transformer at work; signs what it writes.
    writer: Arc<str>,
    pub(crate) touched: Touched<O::Target>,
}

/// What one transformer of a parallel group has touched, in the order in which it did. Only kept within a group.
#[derive(Clone, Debug, Default)]
pub(crate) enum Touched<T> {
    #[default]
    NotKept,
    Kept {
        steps: Vec<StepKey<T>>,
        orders: Vec<(StepKey<T>, StepKey<T>)>,
    },
}

/// Why an order between two steps was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError<T: std::fmt::Debug + std::fmt::Display> {
    /// There is no such step.
    #[error("cannot order {later} after {earlier}: there is no step {missing}")]
    NoSuchStep {
        /// The step that should come later.
        later: StepKey<T>,
        /// The step that should come earlier.
        earlier: StepKey<T>,
        /// The one of the two that is not in the draft.
        missing: StepKey<T>,
    },
    /// The root comes last.
    #[error("cannot order {later} after {root}: the root comes after every other step")]
    AfterRoot {
        /// The step that should come after the root.
        later: StepKey<T>,
        /// The root.
        root: StepKey<T>,
    },
    /// A step cannot come after itself.
    #[error("cannot order {0} after itself")]
    AfterItself(StepKey<T>),
    /// The steps would wait for each other.
    #[error("cannot order {later} after {earlier}: they would wait for each other: {}", chain(.cycle))]
    Cycle {
        /// The step that should come later.
        later: StepKey<T>,
        /// The step that should come earlier.
        earlier: StepKey<T>,
        /// The steps that would wait, each for the next; the first stands again at the end.
        cycle: Vec<StepKey<T>>,
    },
}

impl<T: std::fmt::Debug + std::fmt::Display> From<OrderError<T>> for Failure {
    /// The same context gives the same draft, so trying again does not mend a wrong order.
    fn from(error: OrderError<T>) -> Self {
        Self::terminal(error.to_string())
    }
}

fn chain<T: std::fmt::Display>(cycle: &[StepKey<T>]) -> String {
    let keys: Vec<String> = cycle.iter().map(ToString::to_string).collect();
    keys.join(" after ")
}

impl<O: Object> Draft<O> {
    pub(crate) fn new(root: Step<O>, writer: Arc<str>) -> Self {
        let key = root.key();
        let mut draft = Self {
            graph: Graph::new(),
            root: key,
            writer,
            touched: Touched::NotKept,
        };
        draft.put(root);
        draft
    }

    /// The key of the root.
    pub fn root_key(&self) -> &StepKey<O::Target> {
        &self.root
    }

    /// The root step as it stands.
    pub fn root(&self) -> &Step<O> {
        self.graph
            .get(&self.root)
            .expect("the root is put in first and never removed")
    }

    /// The step of that key.
    pub fn get(&self, key: &StepKey<O::Target>) -> Option<&Step<O>> {
        self.graph.get(key).map(Borrow::borrow)
    }

    /// All steps, the root included, in the order in which they were first put.
    pub fn steps(&self) -> impl Iterator<Item = (&StepKey<O::Target>, &Step<O>)> {
        self.graph.iter().map(|(key, step)| (key, step.as_ref()))
    }

    /// How many steps there are, the root included.
    pub fn len(&self) -> usize {
        self.graph.len()
    }

    /// Whether there is nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    /// Writes a step and returns its key. A step of the same key is replaced and keeps its place and orders.
    pub fn put(&mut self, mut step: Step<O>) -> StepKey<O::Target> {
        let key = step.key();
        step.by = self.writer.to_string();
        self.touched.step(&key);
        self.graph.insert(key.clone(), Arc::new(step));
        key
    }

    /// Takes a step out, with its orders, and returns it. The root stays.
    pub fn remove(&mut self, key: &StepKey<O::Target>) -> Option<Step<O>> {
        if *key == self.root {
            return None;
        }
        if let Touched::Kept { orders, .. } = &mut self.touched {
            let after = self.graph.successors(key).map(|earlier| (key.clone(), earlier.clone()));
            let before = self.graph.predecessors(key).map(|later| (later.clone(), key.clone()));
            orders.extend(after.chain(before));
        }
        let step = self.graph.remove(key)?;
        self.touched.step(key);
        Some(Arc::unwrap_or_clone(step))
    }

    /// Orders `later` after `earlier`: it does not start before the other has succeeded.
    pub fn after(
        &mut self,
        later: &StepKey<O::Target>,
        earlier: &StepKey<O::Target>,
    ) -> Result<(), OrderError<O::Target>> {
        // Nobody has to order the root, but it is no mistake either.
        if *later == self.root && earlier != later && self.graph.contains(earlier) {
            return Ok(());
        }
        self.connect(later, earlier)?;
        self.touched.order(later, earlier);
        Ok(())
    }

    /// Orders every step that `choose` picks after `earlier`, as seed 000 asks for a credential before its readers.
    ///
    /// `earlier` itself and the root are never asked about. Steps that `earlier` waits for cannot be chosen.
    pub fn all_after(
        &mut self,
        earlier: &StepKey<O::Target>,
        mut choose: impl FnMut(&StepKey<O::Target>, &Step<O>) -> bool,
    ) -> Result<(), OrderError<O::Target>> {
        let chosen: Vec<_> = self
            .steps()
            .filter(|(key, step)| *key != earlier && **key != self.root && choose(key, step))
            .map(|(key, _)| key.clone())
            .collect();
        chosen.iter().try_for_each(|later| self.after(later, earlier))
    }

    /// Forgets that `later` comes after `earlier`; tells whether it did.
    pub fn no_longer_after(&mut self, later: &StepKey<O::Target>, earlier: &StepKey<O::Target>) -> bool {
        let was = self.graph.disconnect(later, earlier);
        if was {
            self.touched.order(later, earlier);
        }
        was
    }

    /// What `key` was told to come after, in the order in which it was told.
    pub fn earlier_than(&self, key: &StepKey<O::Target>) -> impl Iterator<Item = &StepKey<O::Target>> {
        self.graph.successors(key)
    }

    pub(crate) fn connect(
        &mut self,
        later: &StepKey<O::Target>,
        earlier: &StepKey<O::Target>,
    ) -> Result<bool, OrderError<O::Target>> {
        if *earlier == self.root && later != earlier && self.graph.contains(later) {
            return Err(OrderError::AfterRoot {
                later: later.clone(),
                root: self.root.clone(),
            });
        }
        self.graph.connect(later, earlier).map_err(|error| match error {
            ConnectError::MissingVertex(missing) => OrderError::NoSuchStep {
                later: later.clone(),
                earlier: earlier.clone(),
                missing,
            },
            ConnectError::SelfEdge(key) => OrderError::AfterItself(key),
            ConnectError::Cycle(cycle) => OrderError::Cycle {
                later: later.clone(),
                earlier: earlier.clone(),
                cycle,
            },
        })
    }

    /// The same draft for another transformer to go on with.
    pub(crate) fn hand_to(&mut self, writer: Arc<str>) {
        self.writer = writer;
    }

    /// A copy for one transformer of a parallel group, which keeps what it touches.
    pub(crate) fn branch(&self, writer: Arc<str>) -> Self {
        let mut branch = self.clone();
        branch.writer = writer;
        branch.touched = Touched::Kept {
            steps: Vec::new(),
            orders: Vec::new(),
        };
        branch
    }
}

impl<T: Clone> Touched<T> {
    fn step(&mut self, key: &StepKey<T>) {
        if let Self::Kept { steps, .. } = self {
            steps.push(key.clone());
        }
    }

    fn order(&mut self, later: &StepKey<T>, earlier: &StepKey<T>) {
        if let Self::Kept { orders, .. } = self {
            orders.push((later.clone(), earlier.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{builder, create, key, plan, thing, transformer_of};

    fn edited(edit: impl Fn(&mut Draft<crate::testing::Thing>) + Send + Sync + 'static) {
        builder().transformer(transformer_of("edit", edit)).build(&()).unwrap();
    }

    #[test]
    fn a_step_put_twice_is_replaced_and_keeps_its_orders() {
        let plan = plan(|draft| {
            let (a, b) = (draft.put(create("a")), draft.put(create("b")));
            draft.after(&a, &b).unwrap();
            draft.put(Step::apply(thing("a", 7), None, "another wish"));
        });
        let order: Vec<_> = plan
            .order()
            .map(|(key, step)| (key.to_string(), step.action.verb()))
            .collect();
        let expected = [("b", "create"), ("a", "apply"), ("root status", "status")];
        assert_eq!(order, expected.map(|(key, verb)| (key.to_owned(), verb)));
    }

    #[test]
    fn an_object_its_status_and_each_call_into_it_are_steps_of_their_own() {
        edited(|draft| {
            let call = |name: &str| crate::Call {
                name: name.into(),
                fingerprint: "1".into(),
                arguments: std::collections::BTreeMap::default(),
                deadline: std::time::Duration::from_secs(5),
            };
            draft.put(create("a"));
            draft.put(Step::status(thing("a", 2), thing("a", 1), "ready"));
            draft.put(Step::call(thing("a", 1).name, call("join"), None, "a new member"));
            draft.put(Step::call(thing("a", 1).name, call("leave"), None, "an old one"));
            assert_eq!(draft.len(), 5);
        });
    }

    #[test]
    fn the_root_cannot_be_removed_nor_come_before_anything() {
        edited(|draft| {
            let root = draft.root_key().clone();
            let a = draft.put(create("a"));
            assert_eq!(draft.remove(&root), None);
            let error = draft.after(&a, &root).unwrap_err();
            assert_eq!(
                error.to_string(),
                "cannot order a after root status: the root comes after every other step"
            );
            assert_eq!(draft.after(&root, &a), Ok(()));
        });
    }

    #[test]
    fn an_order_that_closes_a_cycle_names_the_whole_cycle_and_changes_nothing() {
        edited(|draft| {
            for name in ["a", "b", "c"] {
                draft.put(create(name));
            }
            draft.after(&key("a"), &key("b")).unwrap();
            draft.after(&key("b"), &key("c")).unwrap();
            let error = draft.after(&key("c"), &key("a")).unwrap_err();
            let OrderError::Cycle { cycle, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(cycle.len(), 4);
            let expected = "cannot order c after a: they would wait for each other: a after b after c after a";
            assert_eq!(error.to_string(), expected);
            assert_eq!(draft.earlier_than(&key("c")).count(), 0);
            assert_eq!(Failure::from(error).class, crate::Class::Terminal);
        });
    }

    #[test]
    fn an_order_with_a_step_that_is_not_there_names_it() {
        edited(|draft| {
            let a = draft.put(create("a"));
            let error = draft.after(&a, &key("nowhere")).unwrap_err();
            assert_eq!(
                error.to_string(),
                "cannot order a after nowhere: there is no step nowhere"
            );
            let root = draft.root_key().clone();
            assert!(draft.after(&root, &key("nowhere")).is_err());
            assert!(draft.after(&a, &a).is_err());
        });
    }

    #[test]
    fn a_removed_step_takes_its_orders_along() {
        edited(|draft| {
            let (a, b) = (draft.put(create("a")), draft.put(create("b")));
            draft.after(&a, &b).unwrap();
            assert_eq!(draft.remove(&b).map(|step| step.key()), Some(b.clone()));
            assert_eq!(draft.earlier_than(&a).count(), 0);
            draft.put(create("b"));
            draft
                .after(&b, &a)
                .expect("the order the other way round is free again");
        });
    }

    #[test]
    fn a_forgotten_order_is_gone() {
        edited(|draft| {
            let (a, b) = (draft.put(create("a")), draft.put(create("b")));
            draft.after(&a, &b).unwrap();
            assert!(draft.no_longer_after(&a, &b));
            assert!(!draft.no_longer_after(&a, &b));
        });
    }
}
