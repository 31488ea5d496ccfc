//! Several clusters: one client and one cache each, known by the name of their context.
//!
//! The objects that a controller acts for live in one cluster, the home; what it makes may be placed in others, its
//! members. A member that cannot be reached degrades what is placed there and nothing else: asking for it says that it
//! is not known, which is neither "none" nor "gone". What is placed where stands on the object at home, so that what is
//! in a member that is away or not known at the moment is waited for, and only that.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument as _;

use crate::{
    cache::Cache,
    contexts::Contexts,
    reach::{Reach, Way},
};

/// The member clusters. Clones share them; members come and go while controllers run.
#[derive(Clone)]
pub struct Clusters {
    known: Arc<RwLock<Known>>,
    changes: watch::Sender<u64>,
    manners: Option<Arc<Manners>>,
}

/// How the client of a member is changed before anybody uses it.
struct Manners {
    working: Change,
    probing: Change,
}

type Change = Box<dyn Fn(kube::Client) -> kube::Client + Send + Sync>;

#[derive(Default)]
struct Known {
    members: BTreeMap<Arc<str>, Member>,
    /// Members that nobody waits for any more.
    forgotten: BTreeSet<Arc<str>>,
}

/// A member as it was added.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) cache: Cache,
    pub(crate) reach: Arc<Reach>,
    /// Ends the probing with the last one who has it.
    _probing: Arc<DropGuard>,
}

/// Why a cluster cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig cannot be read.
    #[error("cannot read the kubeconfig {path}")]
    Kubeconfig {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: kube::config::KubeconfigError,
    },
    /// The kubeconfig lacks the context, or part of it.
    #[error("cannot read the context {context:?} from the kubeconfig")]
    Config {
        /// Which context.
        context: String,
        /// Why.
        source: kube::config::KubeconfigError,
    },
    /// No client can be made of it.
    #[error("cannot make a client for the context {context:?}")]
    Client {
        /// Which context.
        context: String,
        /// Why.
        source: kube::Error,
    },
}

impl Default for Clusters {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            changes: watch::Sender::new(0),
            manners: None,
        }
    }
}

impl Clusters {
    /// No members yet. The client of each is changed by `working` for everything that is done there, and by `probing`
    /// to ask whether it is there, which must wait in no line.
    pub(crate) fn with_manners(
        working: impl Fn(kube::Client) -> kube::Client + Send + Sync + 'static,
        probing: impl Fn(kube::Client) -> kube::Client + Send + Sync + 'static,
    ) -> Self {
        Self {
            manners: Some(Arc::new(Manners {
                working: Box::new(working),
                probing: Box::new(probing),
            })),
            ..Self::default()
        }
    }

    /// Adds the contexts of a kubeconfig, all that it has if none is named. Whether they can be reached shows later, for
    /// each by itself; one that makes no sense keeps none of the others out. Needs a tokio runtime.
    pub async fn add_contexts(&self, kubeconfig: &Path, contexts: &[String]) -> Result<(), ClusterError> {
        Contexts::of(kubeconfig, contexts).take(self).await
    }

    /// Adds a member, or replaces it: controllers then look at what the new one has. Needs a tokio runtime.
    pub fn add(&self, name: &str, client: kube::Client) {
        let name: Arc<str> = Arc::from(name);
        let reach = Arc::new(Reach::new());
        let (client, probing_client) = match &self.manners {
            Some(manners) => ((manners.working)(client.clone()), (manners.probing)(client)),
            None => (client.clone(), client),
        };
        let cache = Cache::of_member(client, Arc::clone(&name));
        let probing = CancellationToken::new();
        let (probed, renewed, until) = (Arc::clone(&reach), cache.clone(), probing.clone());
        let span = tracing::info_span!("member", cluster = %name);
        let probe = async move {
            let probe = probed.probe(probing_client, || renewed.renew());
            until.run_until_cancelled(probe).await
        };
        tokio::spawn(probe.instrument(span));
        let member = Member {
            cache,
            reach,
            _probing: Arc::new(probing.drop_guard()),
        };
        let replaced = self.change(|known| {
            known.forgotten.remove(&name);
            known.members.insert(name, member)
        });
        if let Some(replaced) = replaced {
            tokio::spawn(async move { replaced.cache.stop().await });
        }
    }

    /// Removes a member; what is placed there stays as it is, and is waited for until the member is back.
    pub async fn remove(&self, name: &str) {
        let removed = self.change(|known| known.members.remove(name));
        if let Some(member) = removed {
            member.cache.stop().await;
        }
    }

    /// Removes a member that does not come back: nobody waits for what is placed there any more.
    pub async fn forget(&self, name: &str) {
        let removed = self.change(|known| {
            known.forgotten.insert(name.into());
            known.members.remove(name)
        });
        if let Some(member) = removed {
            member.cache.stop().await;
        }
    }

    /// Ends everything that goes on for the members.
    pub(crate) async fn stop(&self) {
        for member in self.change(|known| std::mem::take(&mut known.members)).into_values() {
            member.cache.stop().await;
        }
    }

    /// The names of the members.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.read(|known| known.members.keys().cloned().collect())
    }

    /// The caches of a member, which hold its client.
    pub fn get(&self, name: &str) -> Option<Cache> {
        self.member(name).map(|member| member.cache)
    }

    pub(crate) fn member(&self, name: &str) -> Option<Member> {
        self.read(|known| known.members.get(name).cloned())
    }

    pub(crate) fn forgotten(&self) -> BTreeSet<Arc<str>> {
        self.read(|known| known.forgotten.clone())
    }

    pub(crate) fn way_to(&self, name: &str) -> Option<Way> {
        let member = self.member(name)?;
        Some(Way::to_member(member.cache.client().clone(), member.reach))
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn read<T>(&self, ask: impl FnOnce(&Known) -> T) -> T {
        ask(&self.known.read().expect("nothing panics while it holds this"))
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Known) -> T) -> T {
        let edited = edit(&mut self.known.write().expect("nothing panics while it holds this"));
        self.changes.send_modify(|changes| *changes += 1);
        edited
    }
}
