//! The one way to write a controller: say what to see, and which plan follows from it.

use moorline_plan::PlanBuilder;
use serde::de::DeserializeOwned;

use crate::{object::Object, snapshot::Snapshot, watches::Watches};

/// The transformers of an actor: what a snapshot is turned into a plan by.
pub type Planner<K> = PlanBuilder<Snapshot<K>, Object>;

/// A controller's mind: pure functions from what is seen to what shall be done. Everything else is the runtime's.
///
/// The runtime calls [`plan`](Self::plan) and [`farewell`](Self::farewell) once, at the start; the transformers that
/// they add run for every reconcile. They do no I/O and read no clock: time, names and randomness come with the
/// [`Snapshot`].
pub trait Actor: Send + Sync + 'static {
    /// The object that it acts for: a type of `k8s-openapi` or of a derived resource, or
    /// [`serde_json::Value`] for one that is only known at run time.
    type Object: DeserializeOwned + Send + Sync + 'static;

    /// Its name: of the queue, in metrics, logs and events.
    fn name(&self) -> &str;

    /// What it watches.
    fn watches(&self) -> Watches;

    /// Adds what turns a snapshot into the plan for an object that is wanted.
    fn plan(&self, plan: Planner<Self::Object>) -> Planner<Self::Object>;

    /// How it takes its leave of an object that is being deleted.
    fn farewell(&self, _plan: Planner<Self::Object>) -> Farewell<Self::Object> {
        Farewell::None
    }
}

/// What happens before an object may go.
pub enum Farewell<K> {
    /// Nothing: what it owns is collected by the API server.
    None,
    /// The runtime adds this finalizer before the first effect. While the object is being deleted, `plan` is built and
    /// run until it comes out empty: no step that would do anything, no later look asked for, nobody failed or waiting.
    /// Then the finalizer is taken away.
    Finalizer {
        /// The finalizer's name, such as `databases.example.com/data`.
        name: &'static str,
        /// The transformers that clean up.
        plan: Planner<K>,
    },
}
