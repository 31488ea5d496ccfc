//! Plans: what a controller is going to do, in which order, and why, before any of it is done.
//!
//! A reconcile is a pure function from what was observed (the context) to a [`Plan`]; executing the plan is all that
//! touches the world.
//!
//! ```text
//!   context ──► init ──► transformer ──► transformer ┐            ┌──► text, JSON, Mermaid, difference
//!                        (in sequence)   transformer ├──► Plan ───┤
//!                                        (parallel)  ┘            └──► execute ──► outcomes
//! ```
//!
//! Guarantees:
//! - The same context gives the same plan, to the byte, in every process, whether or not transformers ran in parallel.
//! - What was printed is what runs: an execution takes the plan and nothing else.
//! - A step starts only after everything that it was ordered after has succeeded. A failed step blocks only those.
//! - The root, the status of the object that the plan is for, runs last and is given every outcome, whatever failed.
//! - Two transformers of a parallel group that write the same thing differently are an error that names both.
//!
//! Assumes that transformers are pure and that an executor's step does not depend on another one in flight.
//!
//! The crate knows neither a Kubernetes client nor a runtime: objects are whatever implements [`Object`], and the
//! execution is a state machine ([`Execution`]) with a thin face of futures ([`execute`]).
//!
//! ```
//! use moorline_plan::{Object, PlanBuilder, Step, Verdict, transformer};
//!
//! // An object is anything that can tell which one it is.
//! #[derive(Clone, Debug, PartialEq)]
//! struct Thing(&'static str, &'static str);
//! impl Object for Thing {
//!     type Target = String;
//!     fn target(&self) -> String {
//!         format!("{} {}", self.0, self.1)
//!     }
//! }
//!
//! let cluster = Thing("Cluster", "pg");
//! let builder = PlanBuilder::new(|cluster: &Thing| {
//!     Ok(Step::status(cluster.clone(), cluster.clone(), "tell how it went"))
//! })
//! .transformer(transformer("workload", |_: &Thing, draft| {
//!     draft.put(Step::create(Thing("StatefulSet", "pg"), "3 replicas are wanted and none is there"));
//!     Ok(Verdict::Continue)
//! }))
//! .transformer(transformer("credentials", |_: &Thing, draft| {
//!     let secret = draft.put(Step::create(Thing("Secret", "pg"), "the superuser has no password yet"));
//!     draft.all_after(&secret, |_, _| true)?;
//!     Ok(Verdict::Continue)
//! }));
//!
//! let built = builder.build(&cluster).unwrap();
//! assert_eq!(built.plan.to_text(), "\
//! plan for Cluster pg: 3 steps
//! 1. create Secret pg       the superuser has no password yet [credentials]
//! 2. create StatefulSet pg  3 replicas are wanted and none is there (after 1) [workload]
//! 3. status Cluster pg      tell how it went (last) [init]
//! ");
//! ```

#![forbid(unsafe_code)]

mod builder;
mod draft;
mod execute;
mod execution;
mod explain;
mod failure;
mod merge;
mod plan;
mod step;
#[cfg(test)]
mod testing;
mod transformer;

pub use builder::{Built, End, Failed, LookAgain, PlanBuilder};
pub use draft::{Draft, OrderError};
pub use execute::{Cancellation, Executor, execute};
pub use execution::{Cancel, Execution, Next, NotRunning, Outcome, Outcomes};
pub use explain::{Change, Order, PlanDifference};
pub use failure::{Class, Failure};
pub use plan::Plan;
pub use step::{Action, Call, Object, Part, Propagation, Step, StepKey};
pub use transformer::{Named, Transformer, Verdict, transformer};
