//! A plan told to a person: as text, as a picture, and as the difference of two plans.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    sync::Arc,
};

use serde::Serialize;

use crate::{Object, Part, Plan, Step, StepKey};

impl<O: Object> Plan<O> {
    /// The plan as text: what, in which order, why, and by which transformer.
    pub fn to_text(&self) -> String {
        let places: HashMap<_, _> = self
            .order()
            .enumerate()
            .map(|(place, (key, _))| (key, place + 1))
            .collect();
        let lines: Vec<_> = self
            .order()
            .map(|(key, step)| (subject(key), step, self.after_whom(key, &places)))
            .collect();
        let width = lines
            .iter()
            .map(|(subject, ..)| subject.chars().count())
            .max()
            .unwrap_or(0);
        let digits = lines.len().to_string().len();
        let count = if self.len() == 1 {
            "1 step".to_owned()
        } else {
            format!("{} steps", self.len())
        };
        let mut text = format!("plan for {}: {count}\n", self.root().target);
        for (place, (subject, step, after)) in lines.iter().enumerate() {
            let _ = writeln!(
                text,
                "{:>digits$}. {:6} {subject:width$}  {}{after} [{}]",
                place + 1,
                step.action.verb(),
                step.reason,
                step.by,
            );
        }
        text
    }

    fn after_whom(&self, key: &StepKey<O::Target>, places: &HashMap<&StepKey<O::Target>, usize>) -> String {
        if key == self.root_key() {
            return " (last)".to_owned();
        }
        let mut earlier: Vec<usize> = self.earlier_than(key).map(|earlier| places[earlier]).collect();
        earlier.sort_unstable();
        match earlier.as_slice() {
            [] => String::new(),
            places => {
                let places: Vec<String> = places.iter().map(ToString::to_string).collect();
                format!(" (after {})", places.join(", "))
            }
        }
    }

    /// The plan as a Mermaid flow chart; an arrow leads from what waits to what it waits for.
    pub fn to_mermaid(&self) -> String {
        self.graph().to_mermaid(|_, step| label(step))
    }

    /// The plan as a Graphviz digraph; an edge leads from what waits to what it waits for.
    pub fn to_dot(&self) -> String {
        self.graph().to_dot(|_, step| label(step))
    }

    /// The plan as JSON, from which it reads back equal.
    pub fn to_json(&self) -> serde_json::Result<String>
    where
        O: Serialize,
        O::Target: Serialize,
    {
        serde_json::to_string_pretty(self)
    }

    /// What is different in `later`, a plan made after this one.
    pub fn difference(&self, later: &Self) -> PlanDifference<O> {
        let graphs = self.graph().difference(later.graph());
        let step = |plan: &Self, key: &StepKey<O::Target>| {
            Arc::clone(plan.graph().get(key).expect("the key comes from this plan"))
        };
        PlanDifference {
            added: graphs.added.iter().map(|key| step(later, key)).collect(),
            removed: graphs.removed.iter().map(|key| step(self, key)).collect(),
            changed: graphs
                .changed
                .iter()
                .map(|key| Change {
                    was: step(self, key),
                    is: step(later, key),
                })
                .collect(),
            // Edges that come and go with their steps tell nothing new.
            ordered: graphs
                .added_edges
                .into_iter()
                .filter(|edge| self.has_both(edge))
                .collect(),
            no_longer_ordered: graphs
                .removed_edges
                .into_iter()
                .filter(|edge| later.has_both(edge))
                .collect(),
        }
    }

    fn has_both(&self, (later, earlier): &Order<O::Target>) -> bool {
        self.get(later).is_some() && self.get(earlier).is_some()
    }
}

/// The text of [`Plan::to_text`].
impl<O: Object> fmt::Display for Plan<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// A step of two plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Change<O: Object> {
    /// As it is in the earlier one.
    pub was: Arc<Step<O>>,
    /// As it is in the later one.
    pub is: Arc<Step<O>>,
}

/// An order between two steps: the first waits for the second.
pub type Order<T> = (StepKey<T>, StepKey<T>);

/// The difference of two plans. Its `Display` is a line a difference; nothing at all when they are equal.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanDifference<O: Object> {
    /// Steps that only the later plan has.
    pub added: Vec<Arc<Step<O>>>,
    /// Steps that only the earlier plan has.
    pub removed: Vec<Arc<Step<O>>>,
    /// Steps that both have, not alike.
    pub changed: Vec<Change<O>>,
    /// Orders that only the later plan has, between steps that both have.
    pub ordered: Vec<Order<O::Target>>,
    /// Orders that only the earlier plan has, between steps that both have.
    pub no_longer_ordered: Vec<Order<O::Target>>,
}

impl<O: Object> PlanDifference<O> {
    /// Whether the plans are equal.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.removed.is_empty()
            && self.changed.is_empty()
            && self.ordered.is_empty()
            && self.no_longer_ordered.is_empty()
    }
}

impl<O: Object> fmt::Display for PlanDifference<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |step: &Step<O>| format!("{} {}: {}", step.action.verb(), subject(&step.key()), step.reason);
        for step in &self.removed {
            writeln!(f, "- {}", line(step))?;
        }
        for step in &self.added {
            writeln!(f, "+ {}", line(step))?;
        }
        for Change { was, is } in &self.changed {
            let how = match (was.action.verb(), is.action.verb()) {
                (same, verb) if same == verb && was.action == is.action => format!("{verb}, for another reason"),
                (same, verb) if same == verb => format!("{verb}, with other content"),
                (was, is) => format!("{was} becomes {is}"),
            };
            writeln!(f, "~ {}: {how}: {}", subject(&is.key()), is.reason)?;
        }
        for (later, earlier) in &self.ordered {
            writeln!(f, "+ {later} after {earlier}")?;
        }
        for (later, earlier) in &self.no_longer_ordered {
            writeln!(f, "- {later} after {earlier}")?;
        }
        Ok(())
    }
}

/// What the verb is about. A status step says so by its verb already.
fn subject<T: fmt::Display>(key: &StepKey<T>) -> String {
    match &key.part {
        Part::Object | Part::Status => key.target.to_string(),
        Part::Call(name) => format!("{} {name}", key.target),
    }
}

fn label<O: Object>(step: &Step<O>) -> String {
    format!("{} {}\n{}", step.action.verb(), subject(&step.key()), step.reason)
}

#[cfg(test)]
mod tests {
    use crate::{
        Step,
        testing::{create, key, plan, thing},
    };

    fn example() -> crate::Plan<crate::testing::Thing> {
        plan(|draft| {
            let config = draft.put(create("config"));
            let workload = draft.put(Step::apply(
                thing("workload", 3),
                Some(thing("workload", 2)),
                "3 are wanted",
            ));
            draft.after(&workload, &config).unwrap();
            draft.put(Step::delete(thing("stray", 1), "nobody wants it"));
        })
    }

    #[test]
    fn the_text_says_what_in_which_order_why_and_by_whom() {
        let expected = "\
plan for root: 4 steps
1. create config    config is wanted [edit]
2. apply  workload  3 are wanted (after 1) [edit]
3. delete stray     nobody wants it [edit]
4. status root      tell how it went (last) [init]
";
        assert_eq!(example().to_text(), expected);
        assert_eq!(example().to_string(), expected);
    }

    #[test]
    fn the_mermaid_chart_has_every_step_and_every_order() {
        let chart = example().to_mermaid();
        for part in [
            "create config",
            "apply workload",
            "delete stray",
            "status root",
            "3 are wanted",
        ] {
            assert!(chart.contains(part), "{chart}");
        }
        assert_eq!(chart.matches("-->").count(), 3, "{chart}");
    }

    #[test]
    fn equal_plans_have_no_difference() {
        let difference = example().difference(&example());
        assert!(difference.is_empty());
        assert_eq!(difference.to_string(), "");
    }

    #[test]
    fn a_difference_tells_steps_and_orders_that_came_went_and_changed() {
        let later = plan(|draft| {
            draft.put(create("config"));
            draft.put(Step::apply(
                thing("workload", 4),
                Some(thing("workload", 2)),
                "4 are wanted",
            ));
            let extra = draft.put(create("extra"));
            draft.after(&extra, &key("config")).unwrap();
        });
        let expected = "\
- delete stray: nobody wants it
+ create extra: extra is wanted
~ workload: apply, with other content: 4 are wanted
+ root status after workload
- workload after config
";
        let shown = example().difference(&later).to_string();
        for line in expected.lines().filter(|line| !line.starts_with("+ root")) {
            assert!(shown.lines().any(|shown| shown == line), "{line:?} is not in\n{shown}");
        }
    }
}
