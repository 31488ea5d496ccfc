//! Members from a kubeconfig: one for each context, in step with the file.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::{
    clusters::{ClusterError, Clusters},
    request::chain,
};

/// How often the file is read again.
const EVERY: Duration = Duration::from_secs(10);
/// A member that is away must not hold a worker for long.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The contexts of a kubeconfig that are members.
pub(crate) struct Contexts {
    kubeconfig: PathBuf,
    /// All that the file has, if empty.
    wanted: Vec<String>,
    /// What each member was made of, as it stood in the file.
    taken: BTreeMap<String, String>,
}

impl Contexts {
    pub(crate) fn of(kubeconfig: &Path, wanted: &[String]) -> Self {
        Self {
            kubeconfig: kubeconfig.to_owned(),
            wanted: wanted.to_vec(),
            taken: BTreeMap::new(),
        }
    }

    /// Adds what is new in the file, replaces what has changed, and removes what is gone. A context that makes no sense
    /// keeps none of the others out; the first of those is told.
    pub(crate) async fn take(&mut self, clusters: &Clusters) -> Result<(), ClusterError> {
        let file = Kubeconfig::read_from(&self.kubeconfig).map_err(|source| ClusterError::Kubeconfig {
            path: self.kubeconfig.clone(),
            source,
        })?;
        let wanted: Vec<String> = if self.wanted.is_empty() {
            file.contexts.iter().map(|context| context.name.clone()).collect()
        } else {
            self.wanted.clone()
        };
        let known = |name: &String| file.contexts.iter().any(|context| context.name == *name);
        let gone = self.taken.keys().filter(|name| !wanted.contains(name) || !known(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            tracing::info!(cluster = name, "a member is no longer in the kubeconfig");
            self.taken.remove(&name);
            clusters.remove(&name).await;
        }
        let mut first = None;
        for name in wanted {
            let contents = contents_of(&file, &name);
            if self.taken.get(&name) == Some(&contents) {
                continue;
            }
            match client_of(&file, &name).await {
                Ok(client) => {
                    clusters.add(&name, client);
                    self.taken.insert(name, contents);
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Keeps the members in step with the file for as long as the future is polled.
    pub(crate) async fn follow(mut self, clusters: Clusters) {
        let mut told = String::new();
        loop {
            tokio::time::sleep(EVERY).await;
            let words = match self.take(&clusters).await {
                Ok(()) => String::new(),
                Err(error) => chain(&error),
            };
            if words != told && !words.is_empty() {
                tracing::warn!(error = words, "the members are not all as in the kubeconfig");
            }
            told = words;
        }
    }
}

/// Everything that the file says of a context, to be compared.
fn contents_of(file: &Kubeconfig, name: &str) -> String {
    let context = file.contexts.iter().find(|context| context.name == name);
    let context = context.and_then(|named| named.context.as_ref());
    let cluster = context.and_then(|context| file.clusters.iter().find(|cluster| cluster.name == context.cluster));
    let user = context.and_then(|context| context.user.as_ref());
    let user = user.and_then(|user| file.auth_infos.iter().find(|named| named.name == *user));
    // What cannot be written down is taken for the same while its name is.
    serde_json::to_string(&(context, cluster, user)).unwrap_or_default()
}

async fn client_of(file: &Kubeconfig, context: &str) -> Result<kube::Client, ClusterError> {
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let config = kube::Config::from_custom_kubeconfig(file.clone(), &options).await;
    let mut config = config.map_err(|source| ClusterError::Config {
        context: context.to_owned(),
        source,
    })?;
    config.connect_timeout = Some(CONNECT_WITHIN);
    kube::Client::try_from(config).map_err(|source| ClusterError::Client {
        context: context.to_owned(),
        source,
    })
}
