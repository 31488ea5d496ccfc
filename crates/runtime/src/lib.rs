//! The runtime: what a controller stands on.
//!
//! ```text
//!   API ──watch──► Cache ──event──► queue ──key──► Snapshot ──► transformers ──► Plan ──► requests ──► API
//!                    ▲                                          (the Actor)        │
//!                    └─── the next look waits until the cache has seen the writes ◄┘
//! ```
//!
//! A controller is an [`Actor`]: it declares what it needs to see ([`Watches`]) and adds the transformers that turn a
//! [`Snapshot`] into a [`plan::Plan`]. Everything else is done here: caches, events to keys, workers, finalizers,
//! dependencies, conditions, events for people, retries, pruning, leader election.
//!
//! # What it guarantees
//!
//! - **Pure.** Transformers do no I/O and read no clock. A plan is a function of its snapshot, so it can be printed,
//!   recorded and replayed.
//! - **Quiet.** A reconcile that changes nothing makes no API call.
//! - **Read your writes.** An object is not looked at again before the cache has seen what was written for it; when
//!   that takes too long, it is read from the server itself.
//! - **Resumable.** A crash between any two writes, a lost answer, a conflict or a stale cache leaves nothing that the
//!   next look does not finish, with no duplicate and no orphan.
//! - **Isolated.** A panic, a slow object or one that cannot be read delays its own key only; a member cluster that does
//!   not answer delays only what is placed there.
//! - **Careful.** Deletes name the UID that was seen; patches and statuses name the version.
//!
//! # What it assumes
//!
//! A tokio runtime. One process at a time acts for a field owner, which the leader election sees to. Resource versions
//! of one kind are numbers that grow, as Kubernetes promises since 1.35.
//!
//! # An actor
//!
//! ```no_run
//! use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::{Node, Pod}};
//! use moorline_machinery::selector::LabelSelector;
//! use moorline_runtime::{
//!     Actor, Controller, Draft, EventType, Failure, Ground, Planner, Settings, Snapshot, Verdict, Watches, transformer,
//! };
//! use serde_json::json;
//!
//! struct Replicas;
//!
//! impl Actor for Replicas {
//!     type Object = ReplicaSet;
//!
//!     fn name(&self) -> &str {
//!         "replicaset"
//!     }
//!
//!     fn watches(&self) -> Watches {
//!         // Pods wake the replica set that controls them; nodes are only looked at. Its kind has its own conditions.
//!         Watches::of::<ReplicaSet>().owns::<Pod>().sees::<Node>().without_conditions()
//!     }
//!
//!     fn plan(&self, plan: Planner<ReplicaSet>) -> Planner<ReplicaSet> {
//!         plan.transformer(transformer("pods", pods)).transformer(transformer("status", status))
//!     }
//! }
//!
//! fn pods(seen: &Snapshot<ReplicaSet>, draft: &mut Draft) -> Result<Verdict, Failure> {
//!     let spec = seen.object().spec.as_ref().ok_or_else(|| Failure::terminal("spec: missing"))?;
//!     let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
//!     let mine: Vec<_> = seen.owned::<Pod>()?.into_iter().filter(|pod| !pod.is_deleting()).collect();
//!     for nth in mine.len()..wanted {
//!         // Names are made from what is owned, so that a create whose answer was lost is not made twice.
//!         let prefix = format!("{}-", seen.raw().name());
//!         let template = spec.template.clone().unwrap_or_default();
//!         let pod = Pod {
//!             metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
//!                 name: Some(seen.fresh_name(&prefix, nth)),
//!                 generate_name: Some(prefix),
//!                 ..template.metadata.unwrap_or_default()
//!             },
//!             spec: template.spec,
//!             ..Pod::default()
//!         };
//!         // Namespace and controlling owner are filled in.
//!         let create = seen.create(&pod, format!("{} of {wanted} are there", mine.len()))?;
//!         let created = draft.put(create);
//!         let told = draft.put(seen.event(EventType::Normal, "SuccessfulCreate", &format!("created {}", created.target))?);
//!         draft.after(&told, &created)?;
//!     }
//!     for extra in mine.iter().skip(wanted) {
//!         draft.put(seen.delete(extra.raw(), format!("{} of {wanted} are there", mine.len())));
//!     }
//!     Ok(Verdict::Continue)
//! }
//!
//! fn status(seen: &Snapshot<ReplicaSet>, draft: &mut Draft) -> Result<Verdict, Failure> {
//!     let pods = seen.owned::<Pod>()?;
//!     draft.put(seen.status(
//!         &json!({ "replicas": pods.len(), "observedGeneration": seen.raw().generation() }),
//!         "tell how many there are",
//!     )?);
//!     Ok(Verdict::Continue)
//! }
//!
//! # async fn run(client: kube::Client) {
//! let ground = Ground::new(client);
//! let controller = Controller::warm_up(&Replicas, &ground, Settings::default());
//! controller.synced().await;
//! let running = controller.start();
//! # running.stop(std::time::Duration::from_secs(5)).await;
//! # }
//! ```

#![forbid(unsafe_code)]

mod actor;
mod aftermath;
mod applied;
mod cache;
mod clock;
mod clusters;
mod conditions;
mod contexts;
mod controller;
mod decode;
mod dependency;
mod events;
mod execute;
mod fence;
mod gate;
mod install;
mod intern;
mod kind;
mod manager;
mod metrics;
mod object;
mod reach;
mod record;
mod request;
mod scales;
mod settled;
mod snapshot;
mod sources;
mod watches;

pub use moorline_plan as plan;
pub use moorline_plan::{Failure, Verdict, transformer};

pub use crate::{
    actor::{Actor, Farewell, Planner},
    aftermath::{Aftermath, Failed},
    cache::{Cache, Collection, Depth, Event, IndexFunction, Listening, OWNER_LABEL, Progress, Selection},
    clock::{SystemTime, TimeOfDay, TokioTime},
    clusters::{ClusterError, Clusters},
    controller::{Controller, Ground, Running, Settings},
    dependency::{Dependency, Met},
    events::EventType,
    execute::Effect,
    fence::{Fence, Fenced},
    install::{InstallError, install},
    kind::{Kind, Scope},
    manager::{
        Address, Election, ElectionSettings, Leadership, LogFormat, Manager, ManagerError, Options, OptionsError, Pace,
        Telemetry, TelemetryError, asked_to_stop, polite,
    },
    metrics::Metrics,
    object::{DecodeError, Key, Object, Owner, Target},
    record::{Record, Recorder, ReplayError, Replayed, Replayers, Ring},
    scales::Reference,
    snapshot::{Entropy, Given, Live, Query, Seen, Snapshot, Watchable},
    sources::Sources,
    watches::{MANAGED_LABEL, Mapper, Watches},
};

/// A plan in the making, of objects of the API.
pub type Draft = moorline_plan::Draft<Object>;

/// A step of a plan, on objects of the API.
pub type Step = moorline_plan::Step<Object>;
