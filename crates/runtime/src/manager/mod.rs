//! The manager: runs controllers, leads or stands by, answers probes, stops in good order.

mod election;
mod options;
mod polite;
mod serve;
mod telemetry;

use std::{
    future::Future,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::serve::Pages;
pub use self::{
    election::{Election, ElectionSettings, Leadership},
    options::{LogFormat, Options, OptionsError},
    polite::{Pace, polite},
    serve::Address,
    telemetry::{Telemetry, TelemetryError},
};
use crate::{
    actor::Actor,
    clusters::{ClusterError, Clusters},
    contexts::Contexts,
    controller::{Controller, Ground, Running, Settings},
    fence::Fence,
    metrics::{Metrics, Named},
    record::{Recorder, Replayers, Ring},
};

/// Runs controllers.
///
/// On standby its caches are warm and its queues collect; once it leads, the workers start. When it is told to stop,
/// what is under way is finished within [`Options::graceful_stop`], and then the lease is given back. When the lease is
/// lost, nothing more is written, and [`run`](Self::run) ends with an error so that the process starts anew. Nothing goes
/// on either when the future of `run` is dropped; the lease then runs out by itself.
///
/// A transformer that never returns is left behind when the rest has ended, and keeps its thread: a process that must end
/// nevertheless does so with [`std::process::exit`].
pub struct Manager {
    options: Options,
    settings: Settings,
    ground: Ground,
    /// Waits in no line: a lease that is renewed late is lost.
    electing: kube::Client,
    election: Option<ElectionSettings>,
    controllers: Vec<Box<dyn Prepare>>,
    replayers: Replayers,
}

/// Why a manager ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which one.
        address: Address,
        /// Why.
        source: std::io::Error,
    },
    /// The directory for records cannot be used.
    #[error("cannot record into {directory}")]
    Record {
        /// Which one.
        directory: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Two processes could lead at once.
    #[error(
        "lease {name}: it must be tried more often than the holder acts on it ({renew_within:?}), and that must be less than the time after which others take it ({duration:?})"
    )]
    Patience {
        /// The name of the lease.
        name: String,
        /// For how long the holder acts.
        renew_within: Duration,
        /// After what time others take the lease.
        duration: Duration,
    },
    /// The members cannot be read from the kubeconfig.
    #[error("cannot find the member clusters")]
    Members(#[source] ClusterError),
    /// Another process may lead now.
    #[error("the lease was lost: another process may act now")]
    LostLease,
    /// What was under way at the end did not finish in time.
    #[error("some work did not finish within {0:?} and was cut off; it is taken up at the next start")]
    CutOff(Duration),
}

/// A controller that is not warm yet, whatever its actor.
trait Prepare: Send + Sync {
    fn warm_up(self: Box<Self>, ground: &Ground, settings: Settings) -> Box<dyn Standby>;
}

/// A controller that is warm, whatever its actor.
trait Standby: Send + Sync {
    fn is_synced(&self) -> bool;
    fn start(self: Box<Self>) -> Running;
}

/// The controllers until they start.
type StandingBy = Arc<Mutex<Option<Vec<Box<dyn Standby>>>>>;

struct Unprepared<A>(Arc<A>);

impl<A: Actor> Prepare for Unprepared<A> {
    fn warm_up(self: Box<Self>, ground: &Ground, settings: Settings) -> Box<dyn Standby> {
        Box::new(Controller::warm_up(&*self.0, ground, settings))
    }
}

impl<A: Actor> Standby for Controller<A> {
    fn is_synced(&self) -> bool {
        Controller::is_synced(self)
    }

    fn start(self: Box<Self>) -> Running {
        Controller::start(*self)
    }
}

impl Manager {
    /// A manager over a client; it is made [`polite`] by the options. `settings` are those of every controller.
    pub fn new(client: kube::Client, options: Options, settings: Settings) -> Self {
        let mut ground = Ground::new(client.clone());
        let pace = Pace {
            qps: options.qps,
            burst: options.burst,
        };
        let agent = &options.user_agent;
        let electing = format!("{agent}/leader-election");
        let electing = polite(client.clone(), &electing, Pace::UNBOUNDED, &ground.metrics);
        let working = polite::fenced(client, agent, pace, &ground.metrics, &ground.fence);
        ground.cache = crate::cache::Cache::new(working);
        ground.clusters = members(agent, pace, &ground.metrics, &ground.fence);
        let settings = Settings {
            workers: options.workers,
            namespaces: options.namespaces.clone(),
            ..settings
        };
        let identity = format!("{}_{}", host(), uuid::Uuid::new_v4());
        let election = options.leader_elect.then(|| {
            let namespace = options.lease_namespace.as_deref();
            let name = options.lease_name.clone();
            ElectionSettings::new(
                namespace.unwrap_or_else(|| electing.default_namespace()),
                &name.unwrap_or_else(|| lease_of(&settings.field_owner)),
                &identity,
            )
        });
        Self {
            options,
            settings,
            ground,
            electing,
            election,
            controllers: Vec::new(),
            replayers: Replayers::default(),
        }
    }

    /// What its controllers stand on.
    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Other patience than Kubernetes' for the lease.
    #[must_use]
    pub fn with_election(mut self, election: ElectionSettings) -> Self {
        self.election = Some(election);
        self
    }

    /// Another time of day, for tests.
    #[must_use]
    pub fn with_time(mut self, time: Arc<dyn crate::clock::TimeOfDay>) -> Self {
        self.ground.time = time;
        self
    }

    /// Adds a controller, unless its group is switched off. A group that the options do not know is on, and told of if
    /// they know others.
    #[must_use]
    pub fn controller<A: Actor>(mut self, group: &str, actor: A) -> Self {
        let actor = Arc::new(actor);
        self.replayers.add(Arc::clone(&actor));
        let groups = &self.options.groups;
        if !groups.is_empty() && !groups.contains_key(group) {
            tracing::warn!(group, "no option switches this group of controllers");
        }
        if groups.get(group).copied().unwrap_or(true) {
            self.controllers.push(Box::new(Unprepared(actor)));
        }
        self
    }

    /// What replays the records of its controllers.
    pub fn replayers(&self) -> &Replayers {
        &self.replayers
    }

    /// Runs until `stop` completes or the lease is lost.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), ManagerError> {
        if let Some(election) = self.election.as_ref().filter(|election| !election.are_safe()) {
            return Err(ManagerError::Patience {
                name: election.name.clone(),
                renew_within: election.renew_within,
                duration: election.duration,
            });
        }
        self.record()?;
        let _following = self.follow_members().await?;
        let controllers: Vec<Box<dyn Standby>> = std::mem::take(&mut self.controllers)
            .into_iter()
            .map(|controller| controller.warm_up(&self.ground, self.settings.clone()))
            .collect();
        let standing_by = Arc::new(Mutex::new(Some(controllers)));
        let stopping = Arc::new(AtomicBool::new(false));
        let mut pages = JoinSet::new();
        self.serve(&mut pages, &standing_by, &stopping).await?;

        let mut stop = std::pin::pin!(stop);
        let election = self.election.as_ref().map(|settings| self.stand(settings));
        let leadership = match &election {
            None => None,
            Some(election) => tokio::select! {
                leadership = election.lead() => Some(leadership),
                () = &mut stop => {
                    stopping.store(true, Ordering::Relaxed);
                    election.withdraw().await;
                    self.ground.clusters.stop().await;
                    self.ground.cache.stop().await;
                    return Ok(());
                }
            },
        };
        self.tell_leading(true);
        let controllers = standing_by.lock().expect("nothing panics while it holds this").take();
        let running: Vec<Running> = controllers.into_iter().flatten().map(Standby::start).collect();
        // Without an election nothing is ever lost.
        let lost = leadership
            .as_ref()
            .map_or_else(CancellationToken::new, |leadership| leadership.lost().clone());
        let ended = tokio::select! {
            () = &mut stop => {
                stopping.store(true, Ordering::Relaxed);
                self.stop(running, &lost).await
            }
            () = lost.cancelled() => {
                futures_util::future::join_all(running.into_iter().map(Running::abandon)).await;
                Err(ManagerError::LostLease)
            }
        };
        self.tell_leading(false);
        if let Some(leadership) = leadership {
            if ended.is_ok() {
                leadership.release().await;
            } else {
                // What was cut off may still arrive: nobody else may begin before that, so the lease has to run out.
                drop(leadership);
            }
        }
        self.ground.clusters.stop().await;
        self.ground.cache.stop().await;
        ended
    }

    fn record(&mut self) -> Result<(), ManagerError> {
        let Some(directory) = &self.options.record else {
            return Ok(());
        };
        let ring = Ring {
            directory: directory.clone(),
            records: self.options.records,
        };
        let recorder = Recorder::start(ring).map_err(|source| ManagerError::Record {
            directory: directory.clone(),
            source,
        })?;
        self.ground.recorder = Some(recorder);
        Ok(())
    }

    /// Closes the fence until the lease is held.
    fn stand(&self, settings: &ElectionSettings) -> Election {
        self.tell_leading(false);
        let name = settings.name.clone();
        let slow = self.ground.metrics.slow_renewals.get_or_create(&Named { name }).clone();
        Election::new(self.electing.clone(), settings.clone())
            .guarding(&self.ground.fence)
            .counting(slow)
    }

    fn tell_leading(&self, leading: bool) {
        if let Some(election) = &self.election {
            let name = election.name.clone();
            let gauge = &self.ground.metrics.leading;
            gauge.get_or_create(&Named { name }).set(i64::from(leading));
        }
    }

    /// Adds the members that the options name, and keeps them in step with their kubeconfig while the answer lives.
    async fn follow_members(&self) -> Result<JoinSet<()>, ManagerError> {
        let mut following = JoinSet::new();
        let Some(kubeconfig) = &self.options.member_kubeconfig else {
            return Ok(following);
        };
        let mut contexts = Contexts::of(kubeconfig, &self.options.member_contexts);
        match contexts.take(&self.ground.clusters).await {
            Err(error @ ClusterError::Kubeconfig { .. }) => return Err(ManagerError::Members(error)),
            // One cluster that cannot be used keeps nobody from working with the others.
            Err(error) => tracing::error!(error = crate::request::chain(&error), "a member cannot be used"),
            Ok(()) => {}
        }
        following.spawn(contexts.follow(self.ground.clusters.clone()));
        Ok(following)
    }

    /// Finishes what is under way, in time and while it may.
    async fn stop(&self, running: Vec<Running>, lost: &CancellationToken) -> Result<(), ManagerError> {
        let within = self.options.graceful_stop;
        let stopping = running.into_iter().map(|running| running.stop_unless(within, lost));
        let all = futures_util::future::join_all(stopping).await;
        if all.into_iter().all(|finished| finished) {
            Ok(())
        } else if lost.is_cancelled() {
            Err(ManagerError::LostLease)
        } else {
            Err(ManagerError::CutOff(within))
        }
    }

    async fn serve(
        &self,
        pages: &mut JoinSet<()>,
        standing_by: &StandingBy,
        stopping: &Arc<AtomicBool>,
    ) -> Result<(), ManagerError> {
        let cache = self.ground.cache.clone();
        let (standing_by, stopping) = (Arc::clone(standing_by), Arc::clone(stopping));
        let ready = move || {
            if stopping.load(Ordering::Relaxed) {
                return Err("stopping".to_owned());
            }
            let waiting = standing_by
                .lock()
                .expect("nothing panics while it holds this")
                .as_ref()
                .is_some_and(|controllers| !controllers.iter().all(|controller| controller.is_synced()));
            let unsynced = cache.unsynced();
            if unsynced.is_empty() && !waiting {
                return Ok(());
            }
            let kinds: Vec<String> = unsynced.iter().map(|selection| selection.kind.to_string()).collect();
            Err(format!("waiting for the first lists of: {}", kinds.join(", ")))
        };
        let health = self.options.health_address.clone();
        let health = health.map(|address| (address, Pages::Health(Arc::new(ready))));
        let metrics = self.options.metrics_address.clone();
        let metrics = metrics.map(|address| (address, Pages::Metrics(Box::new(self.ground.metrics.clone()))));
        for (address, page) in health.into_iter().chain(metrics) {
            let listener = serve::listen(&address)
                .await
                .map_err(|source| ManagerError::Listen { address, source })?;
            pages.spawn(serve::serve(listener, page));
        }
        Ok(())
    }
}

/// The lease of a field owner, for which one process acts at a time. Names of objects have fewer letters.
fn lease_of(field_owner: &str) -> String {
    let letter = |c: char| {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_alphanumeric() { c } else { '-' }
    };
    let name: String = field_owner.chars().map(letter).take(253).collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        "moorline".to_owned()
    } else {
        name.to_owned()
    }
}

/// Members whose clients have the same manners as the home's, each at a pace of its own.
fn members(user_agent: &str, pace: Pace, metrics: &Metrics, fence: &Fence) -> Clusters {
    let manners = |pace: Pace| {
        let (user_agent, metrics, fence) = (user_agent.to_owned(), metrics.clone(), fence.clone());
        move |client| polite::fenced(client, &user_agent, pace, &metrics, &fence)
    };
    Clusters::with_manners(manners(pace), manners(Pace::UNBOUNDED))
}

/// The machine's name, for people who read the lease.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "moorline".to_owned()
    } else {
        name.to_owned()
    }
}

/// Completes at the signals that ask a process to end. The next one ends it on the spot.
pub async fn asked_to_stop() {
    signalled().await;
    tokio::spawn(async {
        signalled().await;
        tracing::error!("asked to stop once more: what is under way is left as it is");
        std::process::exit(1);
    });
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot wait for a request to terminate");
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
