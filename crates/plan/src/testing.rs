//! A small object for the tests of this crate, and short ways to say things about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Draft, Failure, Plan, PlanBuilder, Step, StepKey, Transformer, Verdict, step::Object, transformer};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Thing {
    pub(crate) name: Name,
    pub(crate) value: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Name(pub(crate) String);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Object for Thing {
    type Target = Name;

    fn target(&self) -> Name {
        self.name.clone()
    }
}

pub(crate) fn thing(name: &str, value: u32) -> Thing {
    Thing {
        name: Name(name.to_owned()),
        value,
    }
}

pub(crate) fn create(name: &str) -> Step<Thing> {
    Step::create(thing(name, 1), format!("{name} is wanted"))
}

pub(crate) fn key(name: &str) -> StepKey<Name> {
    create(name).key()
}

pub(crate) type Boxed = Box<dyn Transformer<(), Thing>>;

pub(crate) fn boxed(
    name: &'static str,
    edit: impl Fn(&mut Draft<Thing>) -> Result<Verdict, Failure> + Send + Sync + 'static,
) -> Boxed {
    Box::new(transformer(name, move |(): &(), draft| edit(draft)))
}

/// A builder whose root is the status of the object `root`.
pub(crate) fn builder() -> PlanBuilder<(), Thing> {
    PlanBuilder::new(|(): &()| Ok(Step::status(thing("root", 1), thing("root", 0), "tell how it went")))
}

/// A transformer that always succeeds.
pub(crate) fn transformer_of(
    name: &'static str,
    edit: impl Fn(&mut Draft<Thing>) + Send + Sync + 'static,
) -> impl Transformer<(), Thing> + 'static {
    transformer(name, move |(): &(), draft: &mut Draft<Thing>| {
        edit(draft);
        Ok(Verdict::Continue)
    })
}

/// The plan that one edit makes.
pub(crate) fn plan(edit: impl Fn(&mut Draft<Thing>) + Send + Sync + 'static) -> Plan<Thing> {
    builder()
        .transformer(transformer_of("edit", edit))
        .build(&())
        .unwrap()
        .plan
}

/// A plan of no-op steps `0..`, with `(later, earlier)` orders between them.
pub(crate) fn plan_of(steps: usize, orders: Vec<(usize, usize)>) -> Plan<Thing> {
    plan(move |draft| {
        let keys: Vec<_> = (0..steps)
            .map(|n| draft.put(Step::no_op(Name(n.to_string()), None, "as it shall be")))
            .collect();
        for (later, earlier) in &orders {
            draft.after(&keys[*later], &keys[*earlier]).unwrap();
        }
    })
}
