//! One step of a plan: what is done to which object, from what to what, and why.

use std::{collections::BTreeMap, fmt, hash::Hash, time::Duration};

use serde::{Deserialize, Serialize};

/// What steps act on. The one thing a plan needs to know of an object is which one it is.
///
/// Cloning should be cheap (a shared pointer): plans hold objects, and parallel transformers each see all of them.
pub trait Object: Clone + PartialEq + fmt::Debug + Send + Sync {
    /// The identity of an object, such as kind, namespace and name. Its `Display` is what people read in a plan.
    type Target: Clone + Eq + Ord + Hash + fmt::Debug + fmt::Display + Send + Sync;

    /// Which object this is.
    fn target(&self) -> Self::Target;
}

/// The identity of a step within a plan: at most one write to an object, one to its status, and one call of a name.
///
/// Two transformers that mean the same object meet at the same key, so that they cannot silently do both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepKey<T> {
    /// The object that the step acts on.
    pub target: T,
    /// Which part of it.
    pub part: Part,
}

/// The part of an object that a step acts on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// The object itself: created, applied, patched, deleted, or looked at and left alone.
    Object,
    /// Its status.
    Status,
    /// What runs in it, by the name of the call.
    Call(String),
}

impl<T: fmt::Display> fmt::Display for StepKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            Part::Object => write!(f, "{}", self.target),
            Part::Status => write!(f, "{} status", self.target),
            Part::Call(name) => write!(f, "{} call {name}", self.target),
        }
    }
}

/// A step: an action, the reason for it in words, and the transformer that asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(
    serialize = "O: Serialize, O::Target: Serialize",
    deserialize = "O: Deserialize<'de>, O::Target: Deserialize<'de>"
))]
pub struct Step<O: Object> {
    /// The object that the step acts on.
    pub target: O::Target,
    /// What is done to it.
    pub action: Action<O>,
    /// Why, for a person.
    pub reason: String,
    /// The transformer that wrote the step last; filled in by the builder.
    #[serde(default)]
    pub by: String,
}

/// What a step does. `desired` is what shall be, `base` what was observed when the plan was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "verb")]
pub enum Action<O> {
    /// Make an object that is not there.
    Create {
        /// The object to make.
        desired: O,
    },
    /// Server-side apply: own the fields of `desired`, and only those.
    Apply {
        /// The fields that shall be so.
        desired: O,
        /// The object as observed, if it was there.
        base: Option<O>,
    },
    /// Change an object from `base` to `desired` by the difference of the two.
    Patch {
        /// The whole object as it shall be.
        desired: O,
        /// The object as observed.
        base: O,
    },
    /// Delete an object that was observed. What identifies that very object (its UID) is in `base`.
    Delete {
        /// The object as observed.
        base: O,
        /// What happens to the objects that it owns.
        propagation: Propagation,
    },
    /// Write the status of an object.
    Status {
        /// The object with the status as it shall be.
        desired: O,
        /// The object as observed.
        base: O,
    },
    /// Call into a running instance.
    Call {
        /// What is called.
        call: Call,
        /// The object as observed, if it was.
        base: Option<O>,
    },
    /// Nothing to do: the object was looked at and is as it shall be. Others may still be ordered around it.
    NoOp {
        /// The object as observed, if it was.
        base: Option<O>,
    },
}

/// What deleting an object does to the objects that it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They are left, without an owner.
    Orphan,
}

/// A lifecycle action in a running instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The action's name.
    pub name: String,
    /// Identifies the intent: two calls with the same fingerprint are the same wish and run once.
    pub fingerprint: String,
    /// What the action is told.
    #[serde(default)]
    pub arguments: BTreeMap<String, String>,
    /// How long it may take.
    pub deadline: Duration,
}

impl<O: Object> Step<O> {
    fn new(target: O::Target, action: Action<O>, reason: impl Into<String>) -> Self {
        Self {
            target,
            action,
            reason: reason.into(),
            by: String::new(),
        }
    }

    /// Make `desired`, which is not there.
    pub fn create(desired: O, reason: impl Into<String>) -> Self {
        Self::new(desired.target(), Action::Create { desired }, reason)
    }

    /// Own the fields of `desired`; `base` is the object as observed, if it was there.
    pub fn apply(desired: O, base: Option<O>, reason: impl Into<String>) -> Self {
        Self::new(desired.target(), Action::Apply { desired, base }, reason)
    }

    /// Change `base` into `desired`.
    pub fn patch(desired: O, base: O, reason: impl Into<String>) -> Self {
        Self::new(desired.target(), Action::Patch { desired, base }, reason)
    }

    /// Delete `base`; what it owns follows in the background.
    pub fn delete(base: O, reason: impl Into<String>) -> Self {
        Self::delete_with(base, Propagation::Background, reason)
    }

    /// Delete `base` and say what happens to what it owns.
    pub fn delete_with(base: O, propagation: Propagation, reason: impl Into<String>) -> Self {
        Self::new(base.target(), Action::Delete { base, propagation }, reason)
    }

    /// Write the status of `desired` over that of `base`.
    pub fn status(desired: O, base: O, reason: impl Into<String>) -> Self {
        Self::new(desired.target(), Action::Status { desired, base }, reason)
    }

    /// Call into `target`.
    pub fn call(target: O::Target, call: Call, base: Option<O>, reason: impl Into<String>) -> Self {
        Self::new(target, Action::Call { call, base }, reason)
    }

    /// Leave `target` as it is.
    pub fn no_op(target: O::Target, base: Option<O>, reason: impl Into<String>) -> Self {
        Self::new(target, Action::NoOp { base }, reason)
    }

    /// The step's identity within a plan.
    pub fn key(&self) -> StepKey<O::Target> {
        let part = match &self.action {
            Action::Status { .. } => Part::Status,
            Action::Call { call, .. } => Part::Call(call.name.clone()),
            _ => Part::Object,
        };
        StepKey {
            target: self.target.clone(),
            part,
        }
    }

    /// What the object shall be, for the actions that say so.
    pub fn desired(&self) -> Option<&O> {
        self.action.desired()
    }

    /// What was observed, where something was.
    pub fn base(&self) -> Option<&O> {
        self.action.base()
    }

    /// Whether running the step would change nothing, as far as a plan can tell.
    ///
    /// What an apply changes only the server knows, since `desired` holds some fields of the object and not all.
    pub fn is_no_op(&self) -> bool {
        match &self.action {
            Action::NoOp { .. } => true,
            Action::Patch { desired, base } | Action::Status { desired, base } => desired == base,
            _ => false,
        }
    }
}

impl<O> Action<O> {
    /// The action's name as plans print it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Apply { .. } => "apply",
            Self::Patch { .. } => "patch",
            Self::Delete { .. } => "delete",
            Self::Status { .. } => "status",
            Self::Call { .. } => "call",
            Self::NoOp { .. } => "no-op",
        }
    }

    fn desired(&self) -> Option<&O> {
        match self {
            Self::Create { desired }
            | Self::Apply { desired, .. }
            | Self::Patch { desired, .. }
            | Self::Status { desired, .. } => Some(desired),
            Self::Delete { .. } | Self::Call { .. } | Self::NoOp { .. } => None,
        }
    }

    fn base(&self) -> Option<&O> {
        match self {
            Self::Patch { base, .. } | Self::Delete { base, .. } | Self::Status { base, .. } => Some(base),
            Self::Apply { base, .. } | Self::Call { base, .. } | Self::NoOp { base } => base.as_ref(),
            Self::Create { .. } => None,
        }
    }
}
