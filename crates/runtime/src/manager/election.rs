//! Leader election by a lease: at most one process acts.
//!
//! ```text
//!     renewed                renew_within             duration
//!   ────┼───────────────────────┼────────────────────────┼────► time since the last renewal was *sent*
//!       │ the holder may act    │ it has stopped acting  │ another may take the lease
//! ```
//!
//! The holder counts from before it sent the renewal, the others from when they saw it, each on its own monotonic
//! clock: so the clocks need not agree, and the holder's time always ends first, by the difference of the two settings.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Which lease, and how patient everybody is.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease.
    pub name: String,
    /// Who asks; different for each process.
    pub identity: String,
    /// For how long nobody else takes the lease after a renewal.
    pub duration: Duration,
    /// For how long the holder acts after a renewal. Shorter than `duration`; the difference is what requests that are
    /// under way have left to arrive.
    pub renew_within: Duration,
    /// How often it is tried.
    pub every: Duration,
}

impl ElectionSettings {
    /// Kubernetes' own figures: 15, 10 and 2 seconds.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(15),
            renew_within: Duration::from_secs(10),
            every: Duration::from_secs(2),
        }
    }
}

/// A candidate for a lease.
pub struct Election {
    api: Api<Lease>,
    settings: ElectionSettings,
}

/// The lease, held. Dropping it leaves it to run out; [`release`](Self::release) gives it back.
pub struct Leadership {
    api: Api<Lease>,
    settings: ElectionSettings,
    lost: CancellationToken,
    renewing: tokio::task::JoinHandle<Lease>,
    stop: CancellationToken,
}

/// What another holder was last seen to have written, and when that was seen.
struct Observed {
    version: Option<String>,
    at: Instant,
}

impl Election {
    /// A candidate.
    pub fn new(client: kube::Client, settings: ElectionSettings) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        Self { api, settings }
    }

    /// Waits until the lease is ours.
    pub async fn lead(&self) -> Leadership {
        let mut observed: Option<Observed> = None;
        loop {
            let sent = Instant::now();
            match self.try_take(&mut observed).await {
                Ok(Some(lease)) => return Leadership::start(self.api.clone(), self.settings.clone(), lease, sent),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(lease = self.settings.name, error = %crate::request::chain(&error), "cannot stand for election");
                }
            }
            let jitter = 1.0 + fastrand::f64() * 0.2;
            tokio::time::sleep(self.settings.every.mul_f64(jitter)).await;
        }
    }

    /// Takes the lease if it is free, ours, or was not renewed for its duration since we first saw it so.
    async fn try_take(&self, observed: &mut Option<Observed>) -> Result<Option<Lease>, kube::Error> {
        let Some(lease) = self.api.get_opt(&self.settings.name).await? else {
            let lease = claim(&self.settings, None);
            return match self.api.create(&PostParams::default(), &lease).await {
                Ok(lease) => Ok(Some(lease)),
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
                Err(error) => Err(error),
            };
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if !holder.is_empty() && holder != self.settings.identity {
            let version = lease.metadata.resource_version.clone();
            let seen = match observed {
                Some(seen) if seen.version == version => seen,
                _ => observed.insert(Observed {
                    version,
                    at: Instant::now(),
                }),
            };
            let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            // What the holder promised counts, even where our own figure is shorter.
            let duration = Duration::from_secs(seconds).max(self.settings.duration);
            if seen.at.elapsed() < duration {
                return Ok(None);
            }
        }
        replace(&self.api, &claim(&self.settings, Some(&lease))).await
    }
}

impl Leadership {
    fn start(api: Api<Lease>, settings: ElectionSettings, lease: Lease, sent: Instant) -> Self {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let renewing = tokio::spawn(renew(
            api.clone(),
            settings.clone(),
            lease,
            sent,
            lost.clone(),
            stop.clone(),
        ));
        Self {
            api,
            settings,
            lost,
            renewing,
            stop,
        }
    }

    /// Is cancelled when this process may no longer act.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Gives the lease back, so that another need not wait for it to run out. Nothing may be acted on any more.
    pub async fn release(self) {
        let held = !self.lost.is_cancelled();
        self.stop.cancel();
        let Ok(lease) = self.renewing.await else { return };
        self.lost.cancel();
        if !held {
            return;
        }
        let mut free = lease;
        if let Some(spec) = &mut free.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        let releasing = replace(&self.api, &free);
        match tokio::time::timeout(self.settings.renew_within, releasing).await {
            Ok(Ok(_)) => tracing::info!(lease = self.settings.name, "gave the lease back"),
            Ok(Err(error)) => tracing::warn!(%error, "the lease was not given back and runs out by itself"),
            Err(_) => tracing::warn!("the lease was not given back in time and runs out by itself"),
        }
    }
}

/// Renews for as long as that succeeds in time; gives the lease as it last was.
async fn renew(
    api: Api<Lease>,
    settings: ElectionSettings,
    mut lease: Lease,
    mut sent: Instant,
    lost: CancellationToken,
    stop: CancellationToken,
) -> Lease {
    loop {
        let ends = sent + settings.renew_within;
        let next = (Instant::now() + settings.every).min(ends);
        tokio::select! {
            () = stop.cancelled() => return lease,
            () = tokio::time::sleep_until(next) => {}
        }
        let attempt = Instant::now();
        let renewal = async {
            match replace(&api, &claim(&settings, Some(&lease))).await {
                // Somebody wrote it meanwhile: it is still ours if we are still in it.
                Ok(None) => match api.get_opt(&settings.name).await {
                    Ok(Some(current)) if holder_of(&current) == Some(&settings.identity) => {
                        replace(&api, &claim(&settings, Some(&current))).await
                    }
                    Ok(_) => Ok(None),
                    Err(error) => Err(error),
                },
                other => other,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return lease,
            () = tokio::time::sleep_until(ends) => {
                tracing::error!(lease = settings.name, "the lease could not be renewed in time");
                lost.cancel();
                return lease;
            }
            renewed = renewal => match renewed {
                Ok(Some(renewed)) => {
                    lease = renewed;
                    sent = attempt;
                }
                Ok(None) => {
                    tracing::error!(lease = settings.name, "another process has taken the lease");
                    lost.cancel();
                    return lease;
                }
                Err(error) => tracing::warn!(lease = settings.name, %error, "the lease was not renewed, trying again"),
            }
        }
    }
}

fn holder_of(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref()
}

/// The lease as it is when we hold it from now on.
fn claim(settings: &ElectionSettings, lease: Option<&Lease>) -> Lease {
    let before = lease.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let now = MicroTime(Timestamp::now());
    let ours = before.holder_identity.as_ref() == Some(&settings.identity);
    let transitions = before.lease_transitions.unwrap_or(0);
    let spec = LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(settings.duration.as_secs().max(1)).unwrap_or(i32::MAX)),
        acquire_time: if ours { before.acquire_time } else { Some(now.clone()) },
        renew_time: Some(now),
        lease_transitions: Some(if ours || lease.is_none() {
            transitions
        } else {
            transitions + 1
        }),
        ..LeaseSpec::default()
    };
    let fresh = || ObjectMeta {
        name: Some(settings.name.clone()),
        ..ObjectMeta::default()
    };
    Lease {
        metadata: lease.map_or_else(fresh, |lease| lease.metadata.clone()),
        spec: Some(spec),
    }
}

/// Writes the lease if nobody else has since it was read.
async fn replace(api: &Api<Lease>, lease: &Lease) -> Result<Option<Lease>, kube::Error> {
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    match api.replace(name, &PostParams::default(), lease).await {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
