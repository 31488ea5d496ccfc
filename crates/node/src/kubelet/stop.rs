//! Ending containers: hook, signal, patience, kill.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod};
use moorline_container as run;
use tokio::time::Instant;

use super::{
    adopt::{container_name, labels},
    context::{NodeContext, run_id},
    prepare::{ports, told},
    signals,
    start::{exec, field_path},
};
use crate::{
    events::Severity,
    pod::{Kind, Shape},
    probe::{Target, hook},
};

/// One running attempt at a container that is to end.
#[derive(Clone)]
pub(crate) struct Victim {
    pub(crate) kind: Kind,
    pub(crate) container: Container,
    pub(crate) attempt: u32,
    pub(crate) message: String,
}

/// A container that has no time at all still gets this long.
const LEAST: Duration = Duration::from_secs(1);
/// How long the kernel may take over a kill.
const DEATH: Duration = Duration::from_secs(20);

/// Ends one container within a grace: its hook, its signal, then a kill.
pub(crate) async fn stop(context: &Arc<NodeContext>, pod: &Pod, victim: &Victim, grace: Duration) {
    let field = field_path(victim.kind, &victim.container.name);
    context
        .recorder
        .tell_container(pod, &field, Severity::Normal, "Killing", victim.message.clone());
    let (Ok(pod_id), Ok(id)) = (
        run_id(pod),
        container_name(&victim.container.name, victim.attempt).parse(),
    ) else {
        return;
    };
    let id: run::ContainerId = id;
    let grace = grace.max(LEAST);
    let deadline = Instant::now() + grace;
    let runtime = &context.shared.runtime;
    let before = victim
        .container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(handler) = before {
        let ip = ip(context, pod);
        let target = Target {
            ip,
            ports: ports(&victim.container),
            exec: exec(context, pod, &victim.container.name, victim.attempt),
        };
        let ended = runtime.wait(&pod_id, &id, grace);
        let outcome = tokio::select! {
            outcome = hook(handler, &target, grace) => outcome,
            // There is nobody left to tell.
            _ = ended => Ok(()),
        };
        if let Err(words) = outcome {
            let message = format!("PreStopHook failed: {words}");
            context
                .recorder
                .tell_container(pod, &field, Severity::Warning, "FailedPreStopHook", message);
        }
    }
    // The hook may have used it up; a signal is sent all the same, with a moment to act on it.
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_secs(2).min(grace));
    let signal = stop_signal(runtime, &pod_id, &id);
    if let Err(error) = runtime.signal(&pod_id, &id, signal).await {
        tracing::debug!(pod = %pod_id, container = %id, error = told(&error), "a signal could not be sent");
    }
    if runtime.wait(&pod_id, &id, left).await.is_ok() {
        return;
    }
    if let Err(error) = runtime.kill(&pod_id, &id).await {
        tracing::warn!(pod = %pod_id, container = %id, error = told(&error), "a container could not be killed");
    }
    if let Err(error) = runtime.wait(&pod_id, &id, DEATH).await {
        tracing::warn!(pod = %pod_id, container = %id, error = told(&error), "a killed container does not end");
    }
}

fn ip(context: &NodeContext, pod: &Pod) -> std::net::IpAddr {
    let told = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.as_ref())
        .and_then(|ip| ip.parse().ok());
    let attached = || {
        let id = super::context::net_id(pod).ok()?;
        context
            .shared
            .network
            .pod(&id)
            .ok()
            .map(|network| network.address.into())
    };
    told.or_else(attached)
        .unwrap_or_else(|| std::net::Ipv4Addr::LOCALHOST.into())
}

fn stop_signal(runtime: &run::Runtime, pod: &run::PodId, container: &run::ContainerId) -> i32 {
    const TERM: i32 = 15;
    let status = runtime.container(pod, container).ok();
    let name = status.and_then(|status| status.spec.labels.get(labels::STOP_SIGNAL).cloned());
    name.and_then(|name| signals::number(&name)).unwrap_or(TERM)
}

/// Ends all containers of a pod: the main ones together, then those beside them, last started first.
pub(crate) async fn stop_all(
    context: &Arc<NodeContext>,
    pod: &Pod,
    shape: &Shape,
    running: &[Victim],
    grace: Duration,
) {
    let deadline = Instant::now() + grace;
    let first = running.iter().filter(|victim| victim.kind != Kind::Sidecar);
    join_all(first.map(|victim| stop(context, pod, victim, grace))).await;
    let order: Vec<&str> = shape
        .of_kind(&[Kind::Sidecar])
        .map(|(_, container)| container.name.as_str())
        .rev()
        .collect();
    for name in order {
        let left = deadline.saturating_duration_since(Instant::now());
        for victim in running
            .iter()
            .filter(|victim| victim.kind == Kind::Sidecar && victim.container.name == name)
        {
            stop(context, pod, victim, left).await;
        }
    }
}
