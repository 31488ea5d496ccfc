//! What all workers share.

use std::{
    collections::HashSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::Client;
use moorline_container as run;
use moorline_network as net;

use crate::{amounts::Amounts, events::Recorder, key::Key, mirror::Mirror, pressure::Pressure};

/// What all nodes of this machine share.
pub(crate) struct Context {
    pub(crate) runtime: run::Runtime,
    pub(crate) images: moorline_image::ImageStore,
    pub(crate) network: Arc<net::Network>,
    pub(crate) services: Arc<Mirror<Service>>,
    pub(crate) pods: Arc<Mirror<Pod>>,
    pub(crate) nodes: Arc<Mirror<Node>>,
    /// What the machine runs short of.
    pub(crate) pressure: Arc<Pressure>,
    /// Where everything of pods is kept.
    pub(crate) data: PathBuf,
    /// The same for what must not reach a disk.
    pub(crate) private: PathBuf,
    /// The domain of service names.
    pub(crate) domain: String,
    pub(crate) nameserver: IpAddr,
}

/// One node.
pub(crate) struct NodeContext {
    pub(crate) shared: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) network_name: net::NodeName,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) allocatable: Amounts,
    pub(crate) memory: i64,
    pub(crate) recorder: Recorder,
}

impl Context {
    /// Where the files of a pod are, its volumes excepted.
    pub(crate) fn pod_directory(&self, uid: &str) -> PathBuf {
        self.data.join("pods").join(uid)
    }

    pub(crate) fn volume_directory(&self, uid: &str) -> PathBuf {
        self.pod_directory(uid).join("volumes")
    }

    /// Where a pod's own directory of this name is.
    pub(crate) fn empty_dir(&self, uid: &str, volume: &str) -> PathBuf {
        crate::volume::empty_dir(&self.volume_directory(uid), volume)
    }

    pub(crate) fn private_directory(&self, uid: &str) -> PathBuf {
        self.private.join(uid)
    }

    /// Where the logs of a pod are; they stay when the pod's containers are gone. No name has an underscore in it.
    pub(crate) fn log_directory(&self, pod: &Pod) -> PathBuf {
        let key = Key::of(pod);
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        self.logs().join(format!("{}_{}_{uid}", key.namespace, key.name))
    }

    fn logs(&self) -> PathBuf {
        self.data.join("logs")
    }

    /// Removes the files of pods that the API has no more.
    pub(crate) fn remove_files_of_strangers(&self) -> std::io::Result<()> {
        let mut found = Vec::new();
        for (place, is_log) in [(self.data.join("pods"), false), (self.logs(), true)] {
            for entry in std::fs::read_dir(place)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let uid = if is_log {
                    name.rsplit('_').next().unwrap_or("")
                } else {
                    &name
                };
                found.push((uid.to_owned(), entry.path(), is_log));
            }
        }
        // Asked after looking: who has files by then is known by now.
        let pods = self.pods.all();
        let known: HashSet<&str> = pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        for (uid, place, is_log) in &found {
            if known.contains(uid.as_str()) {
                continue;
            }
            if *is_log {
                remove(place)?;
            } else {
                remove_files(self, uid)?;
            }
        }
        Ok(())
    }

    /// Lets go of the images of pods for which this is true, by their UID.
    pub(crate) async fn release_images(&self, of: impl Fn(&str) -> bool) -> moorline_image::Result<()> {
        for holder in self.images.pins().await?.into_keys() {
            if holder.split_once('.').is_some_and(|(uid, _)| of(uid)) {
                self.images.unpin(&holder).await?;
            }
        }
        Ok(())
    }

    /// The attempts at a container that left a log.
    pub(crate) fn logged_attempts(&self, pod: &Pod, container: &str) -> Vec<u32> {
        let entries = std::fs::read_dir(self.log_directory(pod).join(container));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names
            .filter_map(|name| name.to_str()?.strip_suffix(".log")?.parse().ok())
            .collect()
    }

    pub(crate) fn log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        self.log_directory(pod).join(container).join(format!("{attempt}.log"))
    }
}

/// The name of a pod in the runtime: its UID, which no other pod ever has.
pub(crate) fn run_id(pod: &Pod) -> Result<run::PodId, String> {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    uid.parse().map_err(|error: run::InvalidId| error.to_string())
}

/// Who keeps the image of a container, or of a volume that the container mounts. A UID has no dot in it.
pub(crate) fn image_holder(uid: &str, container: &str, volume: Option<&str>) -> String {
    match volume {
        None => format!("{uid}.{container}"),
        Some(volume) => format!("{uid}.{container}.{volume}"),
    }
}

/// Its name in the network.
pub(crate) fn net_id(pod: &Pod) -> Result<net::PodId, String> {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    net::PodId::new(uid).map_err(|error| error.to_string())
}

/// Removes the files of a pod but for its logs.
pub(crate) fn remove_files(context: &Context, uid: &str) -> std::io::Result<()> {
    crate::volume::tear_down(&context.volume_directory(uid), &context.private_directory(uid))?;
    remove(&context.pod_directory(uid))
}

/// Removes a directory with everything in it, if it is there.
pub(crate) fn remove(place: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
