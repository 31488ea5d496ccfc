//! The plan: steps in an order, fixed, printable, comparable, and the very thing that runs.

use std::sync::Arc;

use moorline_graph::{Graph, ReadySet};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{Draft, Object, Step, StepKey};

/// A directed acyclic graph of steps with a single root. An edge says what must have succeeded first.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<O: Object> {
    /// Invariant: the root is the only vertex that nothing comes after.
    graph: Graph<StepKey<O::Target>, Arc<Step<O>>>,
    root: StepKey<O::Target>,
}

impl<O: Object> Plan<O> {
    pub(crate) fn from_draft(draft: Draft<O>) -> Self {
        let root = draft.root_key().clone();
        Self::rooted(draft.graph, root)
    }

    /// Puts the root above everything that nothing comes after yet.
    fn rooted(mut graph: Graph<StepKey<O::Target>, Arc<Step<O>>>, root: StepKey<O::Target>) -> Self {
        let loose: Vec<_> = graph
            .iter()
            .map(|(key, _)| key)
            .filter(|key| **key != root && graph.in_degree(key) == 0)
            .cloned()
            .collect();
        for key in loose {
            graph
                .connect(&root, &key)
                .expect("no edge leads to the root, so an edge from it closes no cycle");
        }
        Self { graph, root }
    }

    /// The root's key.
    pub fn root_key(&self) -> &StepKey<O::Target> {
        &self.root
    }

    /// The root: the status of the object that the plan is for. It runs last.
    pub fn root(&self) -> &Step<O> {
        self.graph.get(&self.root).expect("a plan has its root")
    }

    /// The step of that key.
    pub fn get(&self, key: &StepKey<O::Target>) -> Option<&Step<O>> {
        self.graph.get(key).map(AsRef::as_ref)
    }

    /// How many steps there are, the root included.
    pub fn len(&self) -> usize {
        self.graph.len()
    }

    /// Whether there is nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    /// Whether running the plan would change nothing, as far as a plan can tell; see [`Step::is_no_op`].
    pub fn is_no_op(&self) -> bool {
        self.graph.iter().all(|(_, step)| step.is_no_op())
    }

    /// The steps in the order in which one worker would run them: what comes first, first; the root last.
    pub fn order(&self) -> impl Iterator<Item = (&StepKey<O::Target>, &Step<O>)> {
        self.graph.reverse_topological().map(|(key, step)| (key, step.as_ref()))
    }

    /// What must have succeeded right before `key` can run.
    pub fn earlier_than(&self, key: &StepKey<O::Target>) -> impl Iterator<Item = &StepKey<O::Target>> {
        self.graph.successors(key)
    }

    pub(crate) fn graph(&self) -> &Graph<StepKey<O::Target>, Arc<Step<O>>> {
        &self.graph
    }

    pub(crate) fn ready_set(&self) -> ReadySet<'_, StepKey<O::Target>, Arc<Step<O>>> {
        self.graph.ready_set()
    }
}

/// A plan as it is written: steps in the order in which one worker would run them, so the root stands last.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written<S> {
    steps: Vec<WrittenStep<S>>,
}

#[derive(Serialize, Deserialize)]
struct WrittenStep<S> {
    #[serde(flatten)]
    step: S,
    /// The places, within the list, of the steps that come right before this one.
    after: Vec<usize>,
}

impl<O> Serialize for Plan<O>
where
    O: Object + Serialize,
    O::Target: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let places: std::collections::HashMap<_, _> =
            self.order().enumerate().map(|(place, (key, _))| (key, place)).collect();
        let steps = self
            .order()
            .map(|(key, step)| {
                let mut after: Vec<usize> = self.earlier_than(key).map(|earlier| places[earlier]).collect();
                // Equal plans are written equal, however their edges came about.
                after.sort_unstable();
                WrittenStep { step, after }
            })
            .collect();
        Written { steps }.serialize(serializer)
    }
}

impl<'de, O> Deserialize<'de> for Plan<O>
where
    O: Object + Deserialize<'de>,
    O::Target: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written: Written<Step<O>> = Written::deserialize(deserializer)?;
        let mut graph = Graph::with_capacity(written.steps.len(), written.steps.len());
        let mut keys: Vec<StepKey<O::Target>> = Vec::with_capacity(written.steps.len());
        for (place, WrittenStep { step, after }) in written.steps.into_iter().enumerate() {
            let key = step.key();
            if graph.insert(key.clone(), Arc::new(step)).is_some() {
                return Err(D::Error::custom(format!("step {place}, {key}, is in the plan twice")));
            }
            for earlier in after {
                let Some(before) = keys.get(earlier) else {
                    let message = format!("step {place}, {key}, comes after step {earlier}, which does not precede it");
                    return Err(D::Error::custom(message));
                };
                graph.connect(&key, before).map_err(D::Error::custom)?;
            }
            keys.push(key);
        }
        let Some(root) = keys.pop() else {
            return Err(D::Error::custom("a plan has at least its root, this one has no steps"));
        };
        Ok(Self::rooted(graph, root))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Thing, create, plan, plan_of, thing};

    fn read(json: &str) -> Result<Plan<Thing>, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn every_step_leads_up_to_the_root_which_comes_last() {
        let plan = plan_of(4, vec![(0, 1), (2, 3)]);
        let order: Vec<_> = plan.order().map(|(key, _)| key.to_string()).collect();
        assert_eq!(order, ["1", "0", "3", "2", "root status"]);
        let below_root: Vec<_> = plan.earlier_than(plan.root_key()).map(ToString::to_string).collect();
        assert_eq!(below_root, ["0", "2"]);
    }

    #[test]
    fn a_plan_that_changes_nothing_knows_it() {
        let same = crate::PlanBuilder::new(|(): &()| Ok(Step::status(thing("root", 1), thing("root", 1), "as it is")));
        assert!(same.build(&()).unwrap().plan.is_no_op());
        assert!(!plan_of(1, vec![]).is_no_op(), "its root writes a status");
    }

    #[test]
    fn reading_a_plan_back_refuses_what_is_no_plan() {
        let good = plan(|draft| {
            let (a, b) = (draft.put(create("a")), draft.put(create("b")));
            draft.after(&a, &b).unwrap();
        })
        .to_json()
        .unwrap();
        assert!(read(&good).is_ok());
        assert!(read(r#"{"steps":[]}"#).unwrap_err().contains("at least its root"));
        let twice = good.replace("\"a\"", "\"b\"");
        assert!(
            read(&twice).unwrap_err().contains("step 1, b, is in the plan twice"),
            "{:?}",
            read(&twice)
        );
        let backwards = good.replacen("\"after\": []", "\"after\": [7]", 1);
        assert!(read(&backwards).unwrap_err().contains("which does not precede it"));
    }

    proptest! {
        #[test]
        fn a_plan_serialises_and_reads_back_equal(
            steps in 1..12usize,
            orders in prop::collection::vec((0..12usize, 0..12usize), 0..30),
        ) {
            let orders = orders.into_iter().filter(|(a, b)| a != b && *a < steps && *b < steps);
            let sound = orders.map(|(a, b)| (a.max(b), a.min(b))).collect();
            let plan = plan_of(steps, sound);
            let json = plan.to_json().unwrap();
            let back = read(&json).unwrap();
            prop_assert_eq!(&back, &plan);
            prop_assert_eq!(back.to_json().unwrap(), json, "and is written again byte for byte");
            prop_assert_eq!(back.to_text(), plan.to_text());
        }
    }
}
