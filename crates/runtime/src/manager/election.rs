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
//! That it has ended, every write finds out for itself ([`Fence`]): a process that was held up is told by nobody.
//!
//! No request is waited for longer than half of `renew_within`, so that one that is never answered leaves time for
//! another.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{fence::Fence, request::chain};

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

    /// Whether the holder stops before others begin, and tries more than once before that.
    pub(crate) fn are_safe(&self) -> bool {
        self.every < self.renew_within && self.renew_within < self.duration
    }

    /// How long an answer is waited for.
    fn patience(&self) -> Duration {
        self.renew_within / 2
    }
}

/// A candidate for a lease.
pub struct Election {
    api: Api<Lease>,
    settings: ElectionSettings,
    fence: Fence,
    slow: Counter,
}

/// The lease, held. Dropping it leaves it to run out; [`release`](Self::release) gives it back. Either way the fence that
/// it guards is closed at once.
pub struct Leadership {
    api: Api<Lease>,
    settings: ElectionSettings,
    fence: Fence,
    lost: CancellationToken,
    renewing: tokio::task::JoinHandle<Lease>,
    stop: DropGuard,
}

/// What another holder was last seen to have written, and when that was seen.
struct Observed {
    version: Option<String>,
    at: Instant,
}

impl Election {
    /// A candidate. The client should be one that waits in no line, or a busy process cannot renew.
    pub fn new(client: kube::Client, settings: ElectionSettings) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        let fence = Fence::open();
        fence.close();
        Self {
            api,
            settings,
            fence,
            slow: Counter::default(),
        }
    }

    /// Closes this fence, and opens it only while the lease is held.
    #[must_use]
    pub fn guarding(mut self, fence: &Fence) -> Self {
        fence.close();
        self.fence = fence.clone();
        self
    }

    /// Counts the renewals that had to read the lease first.
    #[must_use]
    pub(crate) fn counting(mut self, slow: Counter) -> Self {
        self.slow = slow;
        self
    }

    /// Waits until the lease is ours.
    pub async fn lead(&self) -> Leadership {
        let mut observed: Option<Observed> = None;
        let lease = &self.settings.name;
        loop {
            let sent = Instant::now();
            match tokio::time::timeout(self.settings.patience(), self.try_take(&mut observed)).await {
                Ok(Ok(Some(lease))) => return self.begin(lease, sent),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(lease, error = %chain(&error), "cannot stand for election"),
                Err(_) => tracing::warn!(lease, "no answer to standing for election, trying again"),
            }
            let jitter = 1.0 + fastrand::f64() * 0.2;
            tokio::time::sleep(self.settings.every.mul_f64(jitter)).await;
        }
    }

    /// Gives back what [`lead`](Self::lead) may have taken when it was cut short.
    pub(crate) async fn withdraw(&self) {
        let withdrawing = give_back(&self.api, &self.settings, None);
        if let Ok(Ok(true)) = tokio::time::timeout(self.settings.every, withdrawing).await {
            tracing::info!(lease = self.settings.name, "gave the lease back");
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

    /// Renews from now on.
    fn begin(&self, lease: Lease, sent: Instant) -> Leadership {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        self.fence.open_until(sent + self.settings.renew_within);
        let renewal = Renewal {
            api: self.api.clone(),
            settings: self.settings.clone(),
            slow: self.slow.clone(),
            lease,
            sent,
            over: Over {
                fence: self.fence.clone(),
                lost: lost.clone(),
            },
        };
        Leadership {
            api: self.api.clone(),
            settings: self.settings.clone(),
            fence: self.fence.clone(),
            lost,
            renewing: tokio::spawn(renewal.go_on(stop.clone())),
            stop: stop.drop_guard(),
        }
    }
}

impl Leadership {
    /// Is cancelled when this process may no longer act.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Gives the lease back, so that another need not wait for it to run out. Nothing may be acted on any more.
    pub async fn release(self) {
        let held = !self.lost.is_cancelled();
        self.fence.close();
        drop(self.stop);
        let Ok(lease) = self.renewing.await else { return };
        if !held {
            return;
        }
        let name = &self.settings.name;
        let releasing = give_back(&self.api, &self.settings, Some(lease));
        match tokio::time::timeout(self.settings.renew_within, releasing).await {
            Ok(Ok(true)) => tracing::info!(lease = name, "gave the lease back"),
            Ok(Ok(false)) => tracing::info!(lease = name, "another process has the lease already"),
            Ok(Err(error)) => {
                tracing::warn!(lease = name, %error, "the lease was not given back and runs out by itself");
            }
            Err(_) => tracing::warn!(
                lease = name,
                "the lease was not given back in time and runs out by itself"
            ),
        }
    }
}

/// Ends the leadership however its renewals end, by a panic as well.
struct Over {
    fence: Fence,
    lost: CancellationToken,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.fence.close();
        self.lost.cancel();
    }
}

/// Renews for as long as that succeeds in time.
struct Renewal {
    api: Api<Lease>,
    settings: ElectionSettings,
    slow: Counter,
    /// As it last was.
    lease: Lease,
    /// When the renewal that made it so was sent.
    sent: Instant,
    over: Over,
}

impl Renewal {
    /// Gives the lease as it last was.
    async fn go_on(mut self, stop: CancellationToken) -> Lease {
        let name = self.settings.name.clone();
        let mut attempt = self.sent;
        loop {
            let ends = self.sent + self.settings.renew_within;
            let next = (attempt + self.settings.every).min(ends);
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.lease,
                () = tokio::time::sleep_until(next) => {}
            }
            attempt = Instant::now();
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.lease,
                () = tokio::time::sleep_until(ends) => {
                    tracing::error!(lease = name, "the lease could not be renewed in time");
                    return self.lease;
                }
                renewed = tokio::time::timeout(self.settings.patience(), self.once()) => match renewed {
                    Ok(Ok(Some(renewed))) => {
                        self.lease = renewed;
                        self.sent = attempt;
                        self.over.fence.open_until(attempt + self.settings.renew_within);
                    }
                    Ok(Ok(None)) => {
                        tracing::error!(lease = name, "another process has taken the lease");
                        return self.lease;
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(lease = name, %error, "the lease was not renewed, trying again");
                    }
                    Err(_) => tracing::warn!(lease = name, "no answer to a renewal of the lease, trying again"),
                }
            }
        }
    }

    async fn once(&self) -> Result<Option<Lease>, kube::Error> {
        if let Some(renewed) = replace(&self.api, &claim(&self.settings, Some(&self.lease))).await? {
            return Ok(Some(renewed));
        }
        // Somebody wrote it meanwhile, or a renewal without an answer took effect: it is ours if we are still in it.
        self.slow.inc();
        match self.api.get_opt(&self.settings.name).await? {
            Some(current) if holder_of(&current) == Some(&self.settings.identity) => {
                replace(&self.api, &claim(&self.settings, Some(&current))).await
            }
            _ => Ok(None),
        }
    }
}

/// Empties the lease if it is ours: as it is known here, or else as it is. Tells whether it was.
async fn give_back(api: &Api<Lease>, settings: &ElectionSettings, known: Option<Lease>) -> Result<bool, kube::Error> {
    if let Some(lease) = known
        && replace(api, &emptied(lease)).await?.is_some()
    {
        return Ok(true);
    }
    match api.get_opt(&settings.name).await? {
        Some(current) if holder_of(&current) == Some(&settings.identity) => {
            Ok(replace(api, &emptied(current)).await?.is_some())
        }
        _ => Ok(false),
    }
}

/// The lease as it is when nobody holds it.
fn emptied(mut lease: Lease) -> Lease {
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }
    lease
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
    // Rounded up: others count by this figure.
    let seconds = settings.duration.as_secs() + u64::from(settings.duration.subsec_nanos() > 0);
    let spec = LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(seconds.max(1)).unwrap_or(i32::MAX)),
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
