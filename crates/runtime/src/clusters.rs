//! Several clusters: one client and one cache each, known by the name of their context.
//!
//! The objects that a controller acts for live in one cluster, the home; what it makes may be placed in others, its
//! members. A member that cannot be reached degrades what is placed there and nothing else: asking for it says that it
//! is not known, which is neither "none" nor "gone".

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, RwLock},
    time::Duration,
};

use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::watch;

use crate::cache::Cache;

/// The member clusters. Clones share them; members come and go while controllers run.
#[derive(Clone)]
pub struct Clusters {
    members: Arc<RwLock<BTreeMap<Arc<str>, Cache>>>,
    changes: watch::Sender<u64>,
}

/// Why a cluster cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig cannot be read, or lacks the context.
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
            members: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl Clusters {
    /// Adds the contexts of a kubeconfig. Whether they can be reached shows later, for each by itself.
    pub async fn add_contexts(&self, kubeconfig: &Path, contexts: &[String]) -> Result<(), ClusterError> {
        for context in contexts {
            let unreadable = |source| ClusterError::Config {
                context: context.clone(),
                source,
            };
            let file = Kubeconfig::read_from(kubeconfig).map_err(unreadable)?;
            let options = KubeConfigOptions {
                context: Some(context.clone()),
                ..KubeConfigOptions::default()
            };
            let mut config = kube::Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(unreadable)?;
            // A member that is away must not hold a worker for long.
            config.connect_timeout = Some(Duration::from_secs(5));
            let client = kube::Client::try_from(config).map_err(|source| ClusterError::Client {
                context: context.clone(),
                source,
            })?;
            self.add(context, client);
        }
        Ok(())
    }

    /// Adds a member, or replaces it.
    pub fn add(&self, name: &str, client: kube::Client) {
        let name: Arc<str> = Arc::from(name);
        let cache = Cache::of_member(client, Arc::clone(&name));
        self.members
            .write()
            .expect("nothing panics while it holds this")
            .insert(name, cache);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Removes a member; what is placed there stays as it is.
    pub async fn remove(&self, name: &str) {
        let removed = self
            .members
            .write()
            .expect("nothing panics while it holds this")
            .remove(name);
        self.changes.send_modify(|changes| *changes += 1);
        if let Some(cache) = removed {
            cache.stop().await;
        }
    }

    /// The names of the members.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.members
            .read()
            .expect("nothing panics while it holds this")
            .keys()
            .cloned()
            .collect()
    }

    /// The caches of a member, which hold its client.
    pub fn get(&self, name: &str) -> Option<Cache> {
        self.members
            .read()
            .expect("nothing panics while it holds this")
            .get(name)
            .cloned()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
