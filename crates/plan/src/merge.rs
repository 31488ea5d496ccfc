//! Merging the branches of a parallel group, in a fixed order, with every conflict named.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use crate::{
    Draft, Failure, Object, Step, StepKey,
    builder::Failed,
    draft::{OrderError, Touched},
};

/// What one transformer of a group made of the draft.
pub(crate) struct Branch<'t, O: Object> {
    pub(crate) name: &'t str,
    pub(crate) draft: Draft<O>,
}

/// A branch's place in the group. Names sign steps, but nothing keeps two transformers from bearing the same one.
type Place = usize;

/// Who in the group wrote what; the first writer of a thing decides, a second one has to agree.
struct Writers<T> {
    steps: HashMap<StepKey<T>, Place>,
    orders: HashMap<(StepKey<T>, StepKey<T>), Place>,
}

struct Merge<'m, 't, O: Object> {
    base: &'m Draft<O>,
    branches: &'m [Branch<'t, O>],
    merged: Draft<O>,
    writers: Writers<O::Target>,
}

/// The base with all branches merged into it. If two branches disagree, nothing is merged.
pub(crate) fn merge<O: Object>(base: &Draft<O>, branches: &[Branch<'_, O>]) -> Result<Draft<O>, Failed> {
    let writers = Writers {
        steps: HashMap::new(),
        orders: HashMap::new(),
    };
    let mut merge = Merge {
        base,
        branches,
        merged: base.clone(),
        writers,
    };
    for (place, branch) in branches.iter().enumerate() {
        let Touched::Kept { steps, orders } = &branch.draft.touched else {
            unreachable!("the drafts of a group are made by Draft::branch, which keeps what is touched")
        };
        for key in steps {
            merge.step(place, key)?;
        }
        for (later, earlier) in orders {
            merge.order(place, later, earlier)?;
        }
    }
    Ok(merge.merged)
}

impl<O: Object> Merge<'_, '_, O> {
    fn step(&mut self, place: Place, key: &StepKey<O::Target>) -> Result<(), Failed> {
        let wanted = self.branches[place].draft.graph.get(key);
        if same(wanted, self.base.graph.get(key)) {
            return Ok(());
        }
        if let Some(&first) = self.writers.steps.get(key).filter(|first| **first != place) {
            let there = self.merged.graph.get(key);
            if same(wanted, there) {
                return Ok(());
            }
            return Err(self.conflict(first, place, &format!("{key}: {}", describe(there, wanted))));
        }
        if let Some(step) = wanted {
            self.merged.graph.insert(key.clone(), Arc::clone(step));
        } else {
            self.refuse_removal_of_what_others_order(place, key)?;
            self.merged.graph.remove(key);
        }
        self.writers.steps.insert(key.clone(), place);
        Ok(())
    }

    fn refuse_removal_of_what_others_order(&self, place: Place, key: &StepKey<O::Target>) -> Result<(), Failed> {
        let after = self
            .merged
            .graph
            .successors(key)
            .map(|earlier| (key.clone(), earlier.clone()));
        let before = self
            .merged
            .graph
            .predecessors(key)
            .map(|later| (later.clone(), key.clone()));
        for order in after.chain(before) {
            if let Some(&first) = self.writers.orders.get(&order).filter(|first| **first != place) {
                return Err(self.conflict(
                    first,
                    place,
                    &format!("{key}: ordered by the one, removed by the other"),
                ));
            }
        }
        Ok(())
    }

    fn order(&mut self, place: Place, later: &StepKey<O::Target>, earlier: &StepKey<O::Target>) -> Result<(), Failed> {
        let wanted = self.branches[place].draft.graph.has_edge(later, earlier);
        if wanted == self.base.graph.has_edge(later, earlier) {
            return Ok(());
        }
        let order = (later.clone(), earlier.clone());
        if let Some(&first) = self.writers.orders.get(&order).filter(|first| **first != place) {
            if wanted == self.merged.graph.has_edge(later, earlier) {
                return Ok(());
            }
            return Err(self.conflict(first, place, &format!("whether {later} comes after {earlier}")));
        }
        if wanted {
            if let Err(error) = self.merged.connect(later, earlier) {
                // Each branch is sound by itself, so what stands in the way was written by another one.
                let (first, what) = match &error {
                    OrderError::NoSuchStep { missing, .. } => (
                        self.writers.steps.get(missing).copied(),
                        format!("{missing}: removed by the one, ordered by the other"),
                    ),
                    OrderError::Cycle { cycle, .. } => (writer_on(cycle, &self.writers, place), error.to_string()),
                    OrderError::AfterRoot { .. } | OrderError::AfterItself(_) => (None, error.to_string()),
                };
                return Err(self.conflict(first.unwrap_or(place), place, &what));
            }
        } else {
            self.merged.graph.disconnect(later, earlier);
        }
        self.writers.orders.insert(order, place);
        Ok(())
    }

    fn conflict(&self, first: Place, second: Place, what: &str) -> Failed {
        let (first, second) = (self.branches[first].name, self.branches[second].name);
        Failed {
            by: second.to_owned(),
            failure: Failure::terminal(format!("transformers {first} and {second} disagree on {what}")),
        }
    }
}

/// Another transformer of the group that wrote one of the orders on a cycle.
fn writer_on<T: Clone + Eq + Hash>(cycle: &[StepKey<T>], writers: &Writers<T>, not: Place) -> Option<Place> {
    cycle
        .iter()
        .zip(cycle.iter().skip(1))
        .filter_map(|(later, earlier)| writers.orders.get(&(later.clone(), earlier.clone())).copied())
        .find(|writer| *writer != not)
}

/// Two writers agree when they want the same action; they may have different reasons for it.
fn same<O: Object>(left: Option<&Arc<Step<O>>>, right: Option<&Arc<Step<O>>>) -> bool {
    match (left, right) {
        (Some(left), Some(right)) => Arc::ptr_eq(left, right) || left.action == right.action,
        (None, None) => true,
        _ => false,
    }
}

fn describe<O: Object>(first: Option<&Arc<Step<O>>>, second: Option<&Arc<Step<O>>>) -> String {
    let verb = |step: Option<&Arc<Step<O>>>| step.map_or("remove", |step| step.action.verb());
    let (first, second) = (verb(first), verb(second));
    if first == second {
        format!("{first} with different content")
    } else {
        format!("{first} and {second}")
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Draft, End, Failure, Step, Verdict,
        testing::{Thing, boxed, builder, create, key, thing, transformer_of},
    };

    type Edit = fn(&mut Draft<Thing>) -> Result<(), Failure>;

    /// The end of a chain that puts `x` and `y`, unordered, and then runs two edits as a group.
    fn group(first: Edit, second: Edit) -> (Vec<String>, End) {
        let member = |name, edit: Edit| {
            boxed(name, move |draft| {
                edit(draft)?;
                Ok(Verdict::Continue)
            })
        };
        let base = transformer_of("base", |draft| {
            draft.put(create("x"));
            draft.put(create("y"));
        });
        let built = builder()
            .transformer(base)
            .parallel(vec![member("first", first), member("second", second)])
            .build(&())
            .unwrap();
        let order = built.plan.order().map(|(key, _)| key.to_string()).collect();
        (order, built.end)
    }

    fn told(end: &End) -> &str {
        let End::Failed(failed) = end else { panic!("{end:?}") };
        &failed[0].failure.message
    }

    #[test]
    fn the_same_step_with_different_content_is_an_error_naming_both() {
        let (order, end) = group(
            |draft| {
                draft.put(Step::apply(thing("z", 1), None, "one"));
                Ok(())
            },
            |draft| {
                draft.put(Step::apply(thing("z", 2), None, "two"));
                Ok(())
            },
        );
        assert_eq!(
            told(&end),
            "transformers first and second disagree on z: apply with different content"
        );
        assert_eq!(order, ["x", "y", "root status"], "nothing of the group is taken");
    }

    #[test]
    fn the_same_step_with_the_same_content_is_one_step_even_for_different_reasons() {
        let (order, end) = group(
            |draft| {
                draft.put(Step::apply(thing("z", 1), None, "one"));
                Ok(())
            },
            |draft| {
                draft.put(Step::apply(thing("z", 1), None, "two"));
                Ok(())
            },
        );
        assert_eq!(end, End::Complete);
        assert_eq!(order, ["x", "y", "z", "root status"]);
    }

    #[test]
    fn changing_and_removing_the_same_step_is_an_error_naming_both() {
        let (_, end) = group(
            |draft| {
                draft.remove(&key("x"));
                Ok(())
            },
            |draft| {
                draft.put(Step::apply(thing("x", 2), None, "two"));
                Ok(())
            },
        );
        assert_eq!(
            told(&end),
            "transformers first and second disagree on x: remove and apply"
        );
    }

    #[test]
    fn two_removals_of_the_same_step_agree() {
        let remove: Edit = |draft| {
            draft.remove(&key("x"));
            Ok(())
        };
        let (order, end) = group(remove, remove);
        assert_eq!((end, order), (End::Complete, vec!["y".into(), "root status".into()]));
    }

    #[test]
    fn orders_that_only_together_close_a_cycle_are_an_error_naming_both() {
        let (order, end) = group(
            |draft| Ok(draft.after(&key("x"), &key("y"))?),
            |draft| Ok(draft.after(&key("y"), &key("x"))?),
        );
        let message = told(&end);
        assert!(
            message.starts_with("transformers first and second disagree on "),
            "{message}"
        );
        assert!(message.contains("wait for each other"), "{message}");
        assert_eq!(order, ["x", "y", "root status"]);
    }

    #[test]
    fn ordering_what_another_removes_is_an_error_whichever_comes_first() {
        let order: Edit = |draft| Ok(draft.after(&key("x"), &key("y"))?);
        let remove: Edit = |draft| {
            draft.remove(&key("y"));
            Ok(())
        };
        for (first, second) in [(order, remove), (remove, order)] {
            let (_, end) = group(first, second);
            let message = told(&end);
            assert!(
                message.starts_with("transformers first and second disagree on y: "),
                "{message}"
            );
        }
    }

    #[test]
    fn members_of_the_same_name_are_still_held_apart() {
        let write = |value| {
            boxed("twin", move |draft: &mut Draft<Thing>| {
                draft.put(Step::apply(thing("z", value), None, "wanted"));
                Ok(Verdict::Continue)
            })
        };
        let built = builder().parallel(vec![write(1), write(2)]).build(&()).unwrap();
        assert_eq!(
            told(&built.end),
            "transformers twin and twin disagree on z: apply with different content"
        );
    }

    #[test]
    fn touching_a_step_and_leaving_it_as_it_was_is_no_write() {
        let (_, end) = group(
            |draft| {
                draft.put(create("x"));
                Ok(())
            },
            |draft| {
                draft.put(Step::apply(thing("x", 2), None, "two"));
                Ok(())
            },
        );
        assert_eq!(end, End::Complete);
    }
}
