//! The manager: runs controllers, leads or stands by, answers probes, stops in good order.

mod election;
mod options;
mod polite;
mod serve;
mod telemetry;

use std::{
    future::Future,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::task::JoinSet;

use self::serve::Pages;
pub use self::{
    election::{Election, ElectionSettings, Leadership},
    options::{LogFormat, Options, OptionsError},
    polite::{Pace, polite},
    telemetry::{Telemetry, TelemetryError},
};
use crate::{
    actor::Actor,
    controller::{Controller, Ground, Running, Settings},
    metrics::Named,
    record::{Recorder, Replayers, Ring},
};

/// Runs controllers.
///
/// On standby its caches are warm and its queues collect; once it leads, the workers start. When it is told to stop,
/// what is under way is finished within [`Options::graceful_stop`], and then the lease is given back. When the lease is
/// lost, nothing more is written, and [`run`](Self::run) ends with an error so that the process starts anew.
pub struct Manager {
    options: Options,
    settings: Settings,
    ground: Ground,
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
        address: SocketAddr,
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
        ground.cache = crate::cache::Cache::new(polite(client, &options.user_agent, pace, &ground.metrics));
        let settings = Settings {
            workers: options.workers,
            namespaces: options.namespaces.clone(),
            ..settings
        };
        let identity = format!("{}_{}", host(), uuid::Uuid::new_v4());
        let election = options
            .leader_elect
            .then(|| ElectionSettings::new(&options.lease_namespace, &options.lease_name, &identity));
        Self {
            options,
            settings,
            ground,
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

    /// Adds a controller, unless its group is switched off. A group that the options do not know is on.
    #[must_use]
    pub fn controller<A: Actor>(mut self, group: &str, actor: A) -> Self {
        let actor = Arc::new(actor);
        self.replayers.add(Arc::clone(&actor));
        if self.options.groups.get(group).copied().unwrap_or(true) {
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
        if let Some(directory) = &self.options.record {
            let ring = Ring {
                directory: directory.clone(),
                records: self.options.records,
            };
            let recorder = Recorder::start(ring).map_err(|source| ManagerError::Record {
                directory: directory.clone(),
                source,
            })?;
            self.ground.recorder = Some(recorder);
        }
        let controllers: Vec<Box<dyn Standby>> = std::mem::take(&mut self.controllers)
            .into_iter()
            .map(|controller| controller.warm_up(&self.ground, self.settings.clone()))
            .collect();
        let standing_by = Arc::new(Mutex::new(Some(controllers)));
        let mut pages = JoinSet::new();
        self.serve(&mut pages, &standing_by).await?;

        let mut stop = std::pin::pin!(stop);
        let leading = Named {
            name: self.options.lease_name.clone(),
        };
        let leadership = match &self.election {
            None => None,
            Some(settings) => {
                self.ground.metrics.leading.get_or_create(&leading).set(0);
                let election = Election::new(self.ground.cache.client().clone(), settings.clone());
                tokio::select! {
                    leadership = election.lead() => Some(leadership),
                    () = &mut stop => {
                        self.ground.cache.stop().await;
                        return Ok(());
                    }
                }
            }
        };
        self.ground.metrics.leading.get_or_create(&leading).set(1);
        let controllers = standing_by.lock().expect("nothing panics while it holds this").take();
        let running: Vec<Running> = controllers.into_iter().flatten().map(Standby::start).collect();
        let lost = leadership.as_ref().map(|leadership| leadership.lost().clone());
        let is_lost = async {
            match &lost {
                Some(lost) => lost.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            () = &mut stop => self.stop(running, lost.as_ref()).await,
            () = is_lost => {
                futures_util::future::join_all(running.into_iter().map(Running::abandon)).await;
                Err(ManagerError::LostLease)
            }
        };
        self.ground.metrics.leading.get_or_create(&leading).set(0);
        if let Some(leadership) = leadership {
            leadership.release().await;
        }
        self.ground.cache.stop().await;
        ended
    }

    /// Finishes what is under way, in time and while it may.
    async fn stop(
        &self,
        running: Vec<Running>,
        lost: Option<&tokio_util::sync::CancellationToken>,
    ) -> Result<(), ManagerError> {
        let within = self.options.graceful_stop;
        let stopping = running.into_iter().map(|running| async move {
            match lost {
                Some(lost) => running.stop_unless(within, lost).await,
                None => running.stop(within).await,
            }
        });
        let all = futures_util::future::join_all(stopping).await;
        if all.into_iter().all(|finished| finished) {
            Ok(())
        } else {
            Err(ManagerError::CutOff(within))
        }
    }

    async fn serve(&self, pages: &mut JoinSet<()>, standing_by: &StandingBy) -> Result<(), ManagerError> {
        let cache = self.ground.cache.clone();
        let standing_by = Arc::clone(standing_by);
        let ready = move || {
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
        let health = self
            .options
            .health_address
            .map(|address| (address, Pages::Health(Arc::new(ready))));
        let metrics = self
            .options
            .metrics_address
            .map(|address| (address, Pages::Metrics(Box::new(self.ground.metrics.clone()))));
        for (address, page) in health.into_iter().chain(metrics) {
            let listener = serve::listen(address)
                .await
                .map_err(|source| ManagerError::Listen { address, source })?;
            pages.spawn(serve::serve(listener, page));
        }
        Ok(())
    }
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

/// Completes at the signals that ask a process to end.
pub async fn asked_to_stop() {
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
