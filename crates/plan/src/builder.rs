//! Building a plan: init, transformers in sequence, groups in parallel, build.

use std::{panic, sync::Arc, thread, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Draft, Failure, Object, Plan, Step, Transformer, Verdict,
    merge::{Branch, merge},
};

type Boxed<C, O> = Box<dyn Transformer<C, O>>;
type Closing<C, O> = Box<dyn Fn(&C, &mut Draft<O>, &End, Option<&LookAgain>) -> Result<(), Failure> + Send + Sync>;
type Init<C, O> = Box<dyn Fn(&C) -> Result<Step<O>, Failure> + Send + Sync>;

/// A controller's transformers, in their order. Made once, used for every reconcile.
pub struct PlanBuilder<C, O: Object> {
    init: Init<C, O>,
    stages: Vec<Stage<C, O>>,
    closing: Option<(&'static str, Closing<C, O>)>,
}

enum Stage<C, O: Object> {
    One(Boxed<C, O>),
    AtOnce(Vec<Boxed<C, O>>),
}

/// A plan, and how its making went.
#[derive(Clone, Debug, PartialEq)]
pub struct Built<O: Object> {
    /// What was built, up to where the chain ended.
    pub plan: Plan<O>,
    /// Why the chain ended where it did.
    pub end: End,
    /// The earliest later look that a transformer asked for.
    pub look_again: Option<LookAgain>,
}

/// How a chain of transformers ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// Every transformer ran.
    Complete,
    /// A transformer had no need of those that follow.
    Stopped {
        /// Which one.
        by: String,
        /// Its words.
        reason: String,
    },
    /// A transformer failed. In a parallel group more than one can.
    Failed(Vec<Failed>),
}

/// A transformer's failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Which transformer.
    pub by: String,
    /// How.
    pub failure: Failure,
}

/// A wish to look again later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookAgain {
    /// Which transformer wishes it.
    pub by: String,
    /// After how long.
    pub after: Duration,
    /// What is waited for.
    pub reason: String,
}

/// The name that signs the root.
const INIT: &str = "init";

impl<C: Sync, O: Object> PlanBuilder<C, O> {
    /// Begins with the root: the status step of the object that the plan is for.
    pub fn new(init: impl Fn(&C) -> Result<Step<O>, Failure> + Send + Sync + 'static) -> Self {
        Self {
            init: Box::new(init),
            stages: Vec::new(),
            closing: None,
        }
    }

    /// Adds a transformer that sees everything that those before it wrote.
    #[must_use]
    pub fn transformer(mut self, transformer: impl Transformer<C, O> + 'static) -> Self {
        self.stages.push(Stage::One(Box::new(transformer)));
        self
    }

    /// Adds transformers that run at the same time, none seeing what the others write.
    ///
    /// They are merged in the order given. If two of them write the same thing differently, nothing of the group is
    /// taken and the chain fails, naming both.
    #[must_use]
    pub fn parallel(mut self, group: Vec<Box<dyn Transformer<C, O>>>) -> Self {
        self.stages.push(Stage::AtOnce(group));
        self
    }

    /// Sets what runs last of all, however the chain ended: told how, it may still edit the draft.
    ///
    /// For what must hold of every plan of a controller, such as "nothing happens before the finalizer is there". If it
    /// fails, the chain counts as failed by `name`.
    #[must_use]
    pub fn closing(
        mut self,
        name: &'static str,
        close: impl Fn(&C, &mut Draft<O>, &End, Option<&LookAgain>) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        self.closing = Some((name, Box::new(close)));
        self
    }

    /// Makes the plan for a context. Without a root there is no plan, so only `init` can fail this.
    pub fn build(&self, context: &C) -> Result<Built<O>, Failure> {
        let mut draft = Draft::new((self.init)(context)?, INIT.into());
        let mut look_again = None;
        let mut end = End::Complete;
        for stage in &self.stages {
            let verdicts = match stage {
                Stage::One(transformer) => {
                    draft.hand_to(transformer.name().into());
                    vec![(transformer.name(), transformer.transform(context, &mut draft))]
                }
                Stage::AtOnce(group) => match run_group(group, context, &mut draft) {
                    Ok(verdicts) => verdicts,
                    Err(failed) => {
                        end = End::Failed(vec![failed]);
                        break;
                    }
                },
            };
            if let Some(ended) = conclude(verdicts, &mut look_again) {
                end = ended;
                break;
            }
        }
        if let Some((name, close)) = &self.closing {
            draft.hand_to((*name).into());
            if let Err(failure) = close(context, &mut draft, &end, look_again.as_ref()) {
                let by = (*name).to_owned();
                match &mut end {
                    End::Failed(failed) => failed.push(Failed { by, failure }),
                    End::Complete | End::Stopped { .. } => end = End::Failed(vec![Failed { by, failure }]),
                }
            }
        }
        Ok(Built {
            plan: Plan::from_draft(draft),
            end,
            look_again,
        })
    }
}

type Verdicts<'t> = Vec<(&'t str, Result<Verdict, Failure>)>;

/// Runs a group on branches of the draft and merges them back in the order of the group.
fn run_group<'t, C: Sync, O: Object>(
    group: &'t [Boxed<C, O>],
    context: &C,
    draft: &mut Draft<O>,
) -> Result<Verdicts<'t>, Failed> {
    let run = |transformer: &'t Boxed<C, O>, mut branch: Draft<O>| {
        let verdict = transformer.transform(context, &mut branch);
        (
            Branch {
                name: transformer.name(),
                draft: branch,
            },
            verdict,
        )
    };
    let branch_for = |transformer: &Boxed<C, O>| draft.branch(Arc::from(transformer.name()));
    let finished: Vec<_> = thread::scope(|scope| {
        let Some((last, others)) = group.split_last() else {
            return Vec::new();
        };
        let running: Vec<_> = others
            .iter()
            .map(|transformer| {
                let branch = branch_for(transformer);
                scope.spawn(move || run(transformer, branch))
            })
            .collect();
        let here = run(last, branch_for(last));
        // A panic belongs to the reconcile that made it; carry it to that caller as it is.
        let joined = running
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        joined.chain([here]).collect()
    });
    let (branches, verdicts): (Vec<_>, Vec<_>) = finished
        .into_iter()
        .map(|(branch, verdict)| {
            let name = branch.name;
            (branch, (name, verdict))
        })
        .unzip();
    *draft = merge(draft, &branches)?;
    Ok(verdicts)
}

/// Takes note of what the transformers of one stage said; tells whether the chain ends here.
fn conclude(verdicts: Verdicts<'_>, look_again: &mut Option<LookAgain>) -> Option<End> {
    let mut failed = Vec::new();
    let mut stopped = None;
    for (name, verdict) in verdicts {
        match verdict {
            Ok(Verdict::Continue) => {}
            Ok(Verdict::LookAgain { after, reason }) => {
                if look_again.as_ref().is_none_or(|earlier| after < earlier.after) {
                    *look_again = Some(LookAgain {
                        by: name.to_owned(),
                        after,
                        reason,
                    });
                }
            }
            Ok(Verdict::Stop { reason }) => {
                stopped.get_or_insert(End::Stopped {
                    by: name.to_owned(),
                    reason,
                });
            }
            Err(failure) => failed.push(Failed {
                by: name.to_owned(),
                failure,
            }),
        }
    }
    if failed.is_empty() {
        stopped
    } else {
        Some(End::Failed(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Thing, boxed, builder, create, key, thing};

    fn keys(built: &Built<Thing>) -> Vec<String> {
        built.plan.order().map(|(key, _)| key.to_string()).collect()
    }

    fn put(names: &'static [&'static str]) -> impl Fn(&mut Draft<Thing>) -> Result<Verdict, Failure> {
        move |draft| {
            for name in names {
                draft.put(create(name));
            }
            Ok(Verdict::Continue)
        }
    }

    struct Boxes(Boxed<(), Thing>);
    impl Transformer<(), Thing> for Boxes {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn transform(&self, context: &(), draft: &mut Draft<Thing>) -> Result<Verdict, Failure> {
            self.0.transform(context, draft)
        }
    }

    fn one(
        name: &'static str,
        edit: impl Fn(&mut Draft<Thing>) -> Result<Verdict, Failure> + Send + Sync + 'static,
    ) -> Boxes {
        Boxes(boxed(name, edit))
    }

    #[test]
    fn a_transformer_sees_what_those_before_it_wrote() {
        let built = builder()
            .transformer(one("first", put(&["a"])))
            .transformer(one("second", |draft| {
                assert!(draft.get(&key("a")).is_some());
                draft.remove(&key("a"));
                draft.put(create("b"));
                Ok(Verdict::Continue)
            }))
            .build(&())
            .unwrap();
        assert_eq!(keys(&built), ["b", "root status"]);
        assert_eq!(built.end, End::Complete);
    }

    #[test]
    fn a_step_is_signed_by_the_transformer_that_wrote_it_last() {
        let built = builder()
            .transformer(one("first", put(&["a", "b"])))
            .transformer(one("second", put(&["b"])))
            .build(&())
            .unwrap();
        let signatures: Vec<_> = built.plan.order().map(|(_, step)| step.by.as_str()).collect();
        assert_eq!(signatures, ["first", "second", "init"]);
    }

    #[test]
    fn a_stop_leaves_out_what_follows_and_keeps_what_was_built() {
        let stop = |draft: &mut Draft<Thing>| {
            draft.put(create("b"));
            Ok(Verdict::Stop {
                reason: "being deleted".into(),
            })
        };
        let built = builder()
            .transformer(one("first", put(&["a"])))
            .transformer(one("deletion", stop))
            .transformer(one("never", |_| panic!("the chain has ended")))
            .build(&())
            .unwrap();
        assert_eq!(keys(&built), ["a", "b", "root status"]);
        assert_eq!(
            built.end,
            End::Stopped {
                by: "deletion".into(),
                reason: "being deleted".into()
            }
        );
    }

    #[test]
    fn a_failure_ends_the_chain_and_keeps_what_was_built_until_then() {
        let fail = |draft: &mut Draft<Thing>| {
            draft.put(create("b"));
            Err(Failure::retry("spec.parts[1]: no such definition"))
        };
        let built = builder()
            .transformer(one("first", put(&["a"])))
            .transformer(one("parts", fail))
            .transformer(one("never", |_| panic!("the chain has ended")))
            .build(&())
            .unwrap();
        assert_eq!(keys(&built), ["a", "b", "root status"]);
        let failure = Failure::retry("spec.parts[1]: no such definition");
        assert_eq!(
            built.end,
            End::Failed(vec![Failed {
                by: "parts".into(),
                failure
            }])
        );
    }

    #[test]
    fn the_closing_runs_however_the_chain_ended_and_is_told_how() {
        type Ending = fn() -> Result<Verdict, Failure>;
        let ends: [(Ending, &str); 3] = [
            (|| Ok(Verdict::Continue), "complete"),
            (
                || {
                    Ok(Verdict::Stop {
                        reason: "enough".into(),
                    })
                },
                "stopped",
            ),
            (|| Err(Failure::retry("no")), "failed"),
        ];
        for (verdict, expected) in ends {
            let built = builder()
                .transformer(one("first", move |draft| {
                    draft.put(create("a"));
                    verdict()
                }))
                .closing("closing", |(), draft, end, _| {
                    let told = match end {
                        End::Complete => "complete",
                        End::Stopped { .. } => "stopped",
                        End::Failed(_) => "failed",
                    };
                    let first = draft.put(create(told));
                    draft.all_after(&first, |_, _| true)?;
                    Ok(())
                })
                .build(&())
                .unwrap();
            assert_eq!(keys(&built), [expected, "a", "root status"]);
        }
    }

    #[test]
    fn a_closing_that_fails_is_a_failure_of_the_chain() {
        let built = builder()
            .closing("closing", |(), _, _, _| Err(Failure::terminal("no")))
            .build(&())
            .unwrap();
        assert!(matches!(built.end, End::Failed(failed) if failed[0].by == "closing"));
    }

    #[test]
    fn a_later_look_lets_the_chain_go_on_and_the_earliest_wins() {
        let look = |seconds| {
            move |_: &mut Draft<Thing>| {
                let after = Duration::from_secs(seconds);
                Ok(Verdict::LookAgain {
                    after,
                    reason: format!("in {seconds}"),
                })
            }
        };
        let built = builder()
            .transformer(one("slow", look(60)))
            .transformer(one("fast", look(5)))
            .transformer(one("medium", look(30)))
            .transformer(one("last", put(&["a"])))
            .build(&())
            .unwrap();
        assert_eq!(keys(&built), ["a", "root status"]);
        assert_eq!(built.end, End::Complete);
        let look_again = built.look_again.unwrap();
        assert_eq!(
            (look_again.by.as_str(), look_again.after),
            ("fast", Duration::from_secs(5))
        );
    }

    #[test]
    fn an_init_that_fails_leaves_no_plan() {
        let failing = PlanBuilder::<(), Thing>::new(|()| Err(Failure::terminal("metadata.name: too long")));
        assert_eq!(failing.build(&()), Err(Failure::terminal("metadata.name: too long")));
    }

    #[test]
    fn transformers_of_a_group_do_not_see_each_other_and_are_merged_in_their_order() {
        let member = |name: &'static str, other: &'static str| {
            boxed(name, move |draft| {
                assert!(draft.get(&key("base")).is_some());
                assert!(draft.get(&key(other)).is_none());
                let own = draft.put(create(name));
                draft.after(&own, &key("base"))?;
                Ok(Verdict::Continue)
            })
        };
        let built = builder()
            .transformer(one("first", put(&["base"])))
            .parallel(vec![member("b", "a"), member("a", "b")])
            .build(&())
            .unwrap();
        assert_eq!(keys(&built), ["base", "b", "a", "root status"]);
    }

    #[test]
    fn every_failure_of_a_group_is_told_and_the_work_of_all_is_kept() {
        let member = |name: &'static str, failure: Option<&'static str>| {
            boxed(name, move |draft| {
                draft.put(create(name));
                failure.map_or(Ok(Verdict::Continue), |message| Err(Failure::retry(message)))
            })
        };
        let group = vec![
            member("a", Some("first")),
            member("b", None),
            member("c", Some("second")),
        ];
        let built = builder().parallel(group).build(&()).unwrap();
        assert_eq!(keys(&built), ["a", "b", "c", "root status"]);
        let End::Failed(failed) = built.end else {
            panic!("{:?}", built.end)
        };
        let told: Vec<_> = failed
            .iter()
            .map(|f| (f.by.as_str(), f.failure.message.as_str()))
            .collect();
        assert_eq!(told, [("a", "first"), ("c", "second")]);
    }

    #[test]
    fn a_panic_in_a_group_reaches_the_caller_as_it_was() {
        let group = vec![
            boxed("broken", |_| panic!("index out of range")),
            boxed("whole", put(&["a"])),
        ];
        let builder = builder().parallel(group);
        let caught = panic::catch_unwind(panic::AssertUnwindSafe(|| builder.build(&()))).unwrap_err();
        assert_eq!(caught.downcast_ref::<&str>(), Some(&"index out of range"));
    }

    #[test]
    fn the_same_context_gives_byte_equal_plans_a_thousand_times_and_with_parallel_groups() {
        let chain = || {
            let member = |name: &'static str| {
                boxed(name, move |draft| {
                    for n in 0..8 {
                        let part = format!("{name}-{n}");
                        let step = draft.put(Step::apply(thing(&part, n), None, "wanted"));
                        draft.after(&step, &key("config"))?;
                    }
                    Ok(Verdict::Continue)
                })
            };
            builder()
                .transformer(one("config", put(&["config"])))
                .parallel(["a", "b", "c", "d"].map(member).into())
                .transformer(one("secret", |draft| {
                    let secret = draft.put(create("secret"));
                    draft.all_after(&secret, |key, _| key.target.0.starts_with('a'))?;
                    Ok(Verdict::Continue)
                }))
        };
        let first = chain().build(&()).unwrap().plan.to_json().unwrap();
        for _ in 0..1000 {
            assert_eq!(chain().build(&()).unwrap().plan.to_json().unwrap(), first);
        }
    }

    #[test]
    fn running_in_parallel_or_in_sequence_gives_the_same_plan_when_transformers_are_independent() {
        let members = || {
            ["a", "b", "c"].map(|name| {
                boxed(name, move |draft| {
                    let step = draft.put(create(name));
                    draft.after(&step, &key("base"))?;
                    Ok(Verdict::Continue)
                })
            })
        };
        let base = || builder().transformer(one("base", put(&["base"])));
        let parallel = base().parallel(members().into()).build(&()).unwrap().plan;
        let [a, b, c] = members().map(Boxes);
        let sequence = base()
            .transformer(a)
            .transformer(b)
            .transformer(c)
            .build(&())
            .unwrap()
            .plan;
        assert_eq!(parallel, sequence);
        assert_eq!(parallel.to_json().unwrap(), sequence.to_json().unwrap());
    }
}
