//! Kubernetes' own workload controllers, as actors that return plans.
//!
//! ```text
//!   CronJob ──► Job ──────────────────────────────┐
//!   Deployment ──► ReplicaSet ────────────────────┤
//!   StatefulSet (and its claims) ─────────────────┼──► Pod ──► EndpointSlice, Endpoints (of a Service)
//!   DaemonSet ────────────────────────────────────┤       └──► PodDisruptionBudget
//!   ReplicationController ────────────────────────┘
//!   PersistentVolumeClaim ◄──► PersistentVolume
//! ```
//!
//! They behave as Kubernetes' do, so `kubectl rollout`, `kubectl wait` and everything that reads their status work. All
//! that they decide, they decide from the objects alone; there is no state between two reconciles.
//!
//! Guarantees: a pod that has ended is counted by its job exactly once; a stateful set never has two pods of one name;
//! an object whose labels cease to match is let go, never deleted; what is deleted is the very object that was seen.
//!
//! Assumes the defaults that the API server writes (strategies, limits, selectors), and that somebody collects what
//! owners leave behind, runs the pods and provisions volumes.

#![forbid(unsafe_code)]

mod claim;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
mod endpoints;
mod job;
mod placement;
mod pods;
mod replicas;
mod revisions;
mod statefulset;
mod template;
mod volumes;
mod wake;

use std::pin::Pin;
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;
use moorline_runtime::{Actor, Controller, Ground, Replayers, Running, Settings};

/// The controllers while they run.
pub struct Builtins {
    running: Vec<Running>,
}

/// Starts all of them on this ground, and returns when their caches are filled and they are at work.
pub fn start<'a>(ground: &'a Ground, settings: &'a Settings) -> BoxFuture<'a, Builtins> {
    Box::pin(async move {
        let controllers = vec![
            warm_up(&replicas::Replicas::<ReplicaSet>::new(), ground, settings),
            warm_up(&replicas::Replicas::<ReplicationController>::new(), ground, settings),
            warm_up(&deployment::Deployments, ground, settings),
            warm_up(&statefulset::StatefulSets, ground, settings),
            warm_up(&daemonset::DaemonSets, ground, settings),
            warm_up(&job::Jobs, ground, settings),
            warm_up(&job::OrphansOfJobs, ground, settings),
            warm_up(&cronjob::CronJobs, ground, settings),
            warm_up(&endpoints::SlicesOfServices, ground, settings),
            warm_up(&endpoints::EndpointsOfServices, ground, settings),
            warm_up(&endpoints::MirroredEndpoints, ground, settings),
            warm_up(&disruption::DisruptionBudgets, ground, settings),
            warm_up(&disruption::StaleDisruptions, ground, settings),
            warm_up(&volumes::Claims, ground, settings),
            warm_up(&volumes::Volumes, ground, settings),
        ];
        let mut running = Vec::with_capacity(controllers.len());
        for controller in controllers {
            running.push(controller.await);
        }
        Builtins { running }
    })
}

/// All of them, to replay what was recorded of any.
pub fn replayers() -> Replayers {
    Replayers::default()
        .with(replicas::Replicas::<ReplicaSet>::new())
        .with(replicas::Replicas::<ReplicationController>::new())
        .with(deployment::Deployments)
        .with(statefulset::StatefulSets)
        .with(daemonset::DaemonSets)
        .with(job::Jobs)
        .with(job::OrphansOfJobs)
        .with(cronjob::CronJobs)
        .with(endpoints::SlicesOfServices)
        .with(endpoints::EndpointsOfServices)
        .with(endpoints::MirroredEndpoints)
        .with(disruption::DisruptionBudgets)
        .with(disruption::StaleDisruptions)
        .with(volumes::Claims)
        .with(volumes::Volumes)
}

/// Its caches fill from now on; it starts when it is awaited and they are full.
fn warm_up<A: Actor>(actor: &A, ground: &Ground, settings: &Settings) -> Starting {
    let settings = Settings {
        field_owner: actor.name().to_owned(),
        ..settings.clone()
    };
    let controller = Controller::warm_up(actor, ground, settings);
    Box::pin(async move {
        controller.synced().await;
        controller.start()
    })
}

type Starting = Pin<Box<dyn Future<Output = Running> + Send>>;

impl Builtins {
    /// Stops all of them: what is under way is finished, within this time.
    pub fn stop(self, within: Duration) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            futures_util::future::join_all(self.running.into_iter().map(|running| running.stop(within))).await;
        })
    }
}
