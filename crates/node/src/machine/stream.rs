//! What a user has of a running pod: its logs, a process in it, its streams, its ports, what it uses.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use moorline_container as run;
use moorline_network as net;

use super::Machine;
use crate::{
    key::Key,
    kubelet::{container_name, known_labels, run_id},
    pod::is_over,
};

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// There is no such pod here.
    #[error("pod {0} is not on this machine")]
    NoPod(Key),
    /// There is no such container.
    #[error("container {container} is not valid for pod {pod}")]
    NoContainer {
        /// The pod.
        pod: Key,
        /// The container.
        container: String,
    },
    /// It has more than one container, and none is named.
    #[error("a container name must be specified for pod {pod}, choose one of: [{choices}]")]
    Ambiguous {
        /// The pod.
        pod: Key,
        /// Its containers.
        choices: String,
    },
    /// It has not been started.
    #[error("container {container:?} in pod {:?} is waiting to start: {reason}", .pod.name)]
    Waiting {
        /// The pod.
        pod: Key,
        /// The container.
        container: String,
        /// What it waits for.
        reason: String,
    },
    /// It has ended with its pod, and nothing but its log is left.
    #[error("container {container:?} in pod {:?} has ended", .pod.name)]
    Over {
        /// The pod.
        pod: Key,
        /// The container.
        container: String,
    },
    /// There is no attempt before this one.
    #[error("previous terminated container {container:?} in pod {:?} not found", .pod.name)]
    NoPrevious {
        /// The pod.
        pod: Key,
        /// The container.
        container: String,
    },
    /// The runtime said no.
    #[error(transparent)]
    Runtime(#[from] run::Error),
    /// The network said no.
    #[error(transparent)]
    Network(#[from] net::Error),
    /// A port could not be reached.
    #[error("cannot reach port {port} of pod {pod}")]
    Port {
        /// The pod.
        pod: Key,
        /// The port.
        port: u16,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// What to read of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Which part of it.
    pub options: run::LogOptions,
    /// The attempt before the current one.
    pub previous: bool,
}

/// What a container has used.
#[derive(Debug, Clone)]
pub struct ContainerUsage {
    /// Its name.
    pub name: String,
    /// When that was.
    pub at: Timestamp,
    /// How much.
    pub stats: run::Stats,
}

/// What a pod has used.
#[derive(Debug, Clone)]
pub struct PodUsage {
    /// Which pod.
    pub pod: Key,
    /// Its containers.
    pub containers: Vec<ContainerUsage>,
}

impl Machine {
    fn pod(&self, key: &Key) -> Result<std::sync::Arc<Pod>, StreamError> {
        self.sources
            .pods
            .get(key)
            .ok_or_else(|| StreamError::NoPod(key.clone()))
    }

    /// The pod, and the name of the container in it that is meant.
    fn name(&self, key: &Key, container: Option<&str>) -> Result<(std::sync::Arc<Pod>, String), StreamError> {
        let pod = self.pod(key)?;
        let shape = crate::pod::Shape::of(&pod);
        let name = if let Some(name) = container {
            name.to_owned()
        } else {
            let annotated = pod.metadata.annotations.as_ref();
            let annotated =
                annotated.and_then(|annotations| annotations.get("kubectl.kubernetes.io/default-container"));
            let mains: Vec<_> = shape
                .of_kind(&[crate::pod::Kind::Main])
                .map(|(_, container)| container.name.clone())
                .collect();
            match (annotated, mains.as_slice()) {
                (Some(name), _) => name.clone(),
                (None, [only]) => only.clone(),
                (None, many) => {
                    return Err(StreamError::Ambiguous {
                        pod: key.clone(),
                        choices: many.join(" "),
                    });
                }
            }
        };
        if shape.find(&name).is_none() {
            return Err(StreamError::NoContainer {
                pod: key.clone(),
                container: name,
            });
        }
        Ok((pod, name))
    }

    /// The last attempt at a container that the runtime has, or the one before.
    fn find(&self, pod: &Pod, name: &str, previous: bool) -> Result<(run::PodId, run::ContainerId), StreamError> {
        let key = Key::of(pod);
        let waiting = || StreamError::Waiting {
            pod: key.clone(),
            container: name.to_owned(),
            reason: waiting_reason(pod, name),
        };
        let id = run_id(pod).map_err(|_| StreamError::NoPod(key.clone()))?;
        let status = self.context.runtime.pod(&id).map_err(|_| {
            if !is_over(pod) {
                return waiting();
            }
            StreamError::Over {
                pod: key.clone(),
                container: name.to_owned(),
            }
        })?;
        let attempts = status
            .containers
            .iter()
            .filter(|found| found.spec.labels.get(known_labels::CONTAINER).map(String::as_str) == Some(name));
        let attempts = attempts.filter_map(|found| found.spec.labels.get(known_labels::ATTEMPT)?.parse::<u32>().ok());
        let attempts: Vec<u32> = attempts.collect();
        let attempt = choose(&attempts, previous).map_err(|missing| match missing {
            Missing::Any => waiting(),
            Missing::Previous => StreamError::NoPrevious {
                pod: key.clone(),
                container: name.to_owned(),
            },
        })?;
        let container: run::ContainerId = container_name(name, attempt).parse().map_err(|_| waiting())?;
        Ok((id, container))
    }

    /// The log of a container; of the only one if none is named. It outlives everything else of a pod.
    pub async fn logs(
        &self,
        pod: &Key,
        container: Option<&str>,
        query: LogQuery,
    ) -> Result<run::LogReader, StreamError> {
        let (pod, name) = self.name(pod, container)?;
        match self.find(&pod, &name, query.previous) {
            Ok((id, container)) => Ok(self.context.runtime.logs(&id, &container, query.options).await?),
            Err(error @ StreamError::Over { .. }) => {
                let left = self.context.logged_attempts(&pod, &name);
                let attempt = choose(&left, query.previous).map_err(|missing| match missing {
                    Missing::Any => error,
                    Missing::Previous => StreamError::NoPrevious {
                        pod: Key::of(&*pod),
                        container: name.clone(),
                    },
                })?;
                let path = self.context.log(&pod, &name, attempt);
                Ok(run::LogReader::of_ended(path, query.options).await?)
            }
            Err(error) => Err(error),
        }
    }

    /// A process in a container.
    pub async fn exec(
        &self,
        pod: &Key,
        container: Option<&str>,
        spec: run::ExecSpec,
    ) -> Result<run::ExecSession, StreamError> {
        let (pod, name) = self.name(pod, container)?;
        let (id, container) = self.find(&pod, &name, false)?;
        Ok(self.context.runtime.exec(&id, &container, spec).await?)
    }

    /// The streams of a container.
    pub async fn attach(&self, pod: &Key, container: Option<&str>) -> Result<run::Attached, StreamError> {
        let (pod, name) = self.name(pod, container)?;
        let (id, container) = self.find(&pod, &name, false)?;
        Ok(self.context.runtime.attach(&id, &container).await?)
    }

    /// A connection to a port of a pod, as a process in it would have it.
    pub async fn port_forward(&self, key: &Key, port: u16) -> Result<tokio::net::TcpStream, StreamError> {
        let pod = self.pod(key)?;
        let failed = |source: std::io::Error| StreamError::Port {
            pod: key.clone(),
            port,
            source,
        };
        if pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) {
            return tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .map_err(failed);
        }
        let id = net::PodId::new(pod.metadata.uid.clone().unwrap_or_default())?;
        let network = self.context.network.clone();
        let dialled = tokio::task::spawn_blocking(move || network.dial(&id, port)).await;
        let stream = dialled.map_err(|error| failed(std::io::Error::other(error)))??;
        stream.set_nonblocking(true).map_err(failed)?;
        tokio::net::TcpStream::from_std(stream).map_err(failed)
    }

    /// What the pods of a node have used.
    pub fn stats(&self, node: &str) -> Vec<PodUsage> {
        let mut usage = Vec::new();
        for status in self.context.runtime.list() {
            let label = |name: &str| status.spec.labels.get(name).cloned().unwrap_or_default();
            if label(known_labels::NODE) != node || status.lost {
                continue;
            }
            let containers = status.containers.iter().filter_map(|found| {
                matches!(found.state, run::State::Running { .. }).then_some(())?;
                Some(ContainerUsage {
                    name: found.spec.labels.get(known_labels::CONTAINER)?.clone(),
                    at: Timestamp::now(),
                    stats: self.context.runtime.stats(&status.spec.id, &found.spec.id).ok()?,
                })
            });
            usage.push(PodUsage {
                pod: Key::new(label(known_labels::NAMESPACE), label(known_labels::NAME)),
                containers: containers.collect(),
            });
        }
        usage
    }
}

/// Which attempt is not there.
enum Missing {
    Any,
    Previous,
}

/// The last of some attempts, or the one before it.
fn choose(attempts: &[u32], previous: bool) -> Result<u32, Missing> {
    let last = *attempts.iter().max().ok_or(Missing::Any)?;
    if !previous {
        return Ok(last);
    }
    let before = last.checked_sub(1).filter(|before| attempts.contains(before));
    before.ok_or(Missing::Previous)
}

fn waiting_reason(pod: &Pod, container: &str) -> String {
    let status = pod.status.as_ref();
    let statuses = status.into_iter().flat_map(|status| {
        let mains = status.container_statuses.iter().flatten();
        mains
            .chain(status.init_container_statuses.iter().flatten())
            .chain(status.ephemeral_container_statuses.iter().flatten())
    });
    let found = statuses.into_iter().find(|status| status.name == container);
    let waiting = found.and_then(|status| status.state.as_ref()?.waiting.as_ref()?.reason.clone());
    waiting.unwrap_or_else(|| "ContainerCreating".to_owned())
}
