//! Learning of ends.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::{
    Runtime,
    client::{Client, ask},
    pod::Pod,
};
use crate::{
    ContainerId, Exit, PodId,
    mounts::unmount_below,
    wire::{Reply, Request},
};

/// Something that happened to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A container has ended. Its exit is on disk and its log is complete.
    Exited {
        /// The pod.
        pod: PodId,
        /// The container.
        container: ContainerId,
        /// How.
        exit: Exit,
    },
    /// A container ran when its shim died.
    Lost {
        /// The pod.
        pod: PodId,
        /// The container.
        container: ContainerId,
    },
    /// The shim of a pod died. Comes after the events of its containers.
    PodLost {
        /// The pod.
        pod: PodId,
    },
    /// Events came faster than they were taken, and some are gone: list the pods.
    Missed,
}

/// What happens, in order.
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    pub(super) fn new(receiver: broadcast::Receiver<Event>) -> Self {
        Self(receiver)
    }

    /// The next event; none when the runtime is gone. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::Missed),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl super::Shared {
    /// Tells that a container has ended; nobody may be listening.
    pub(super) fn tell_exit(&self, pod: &PodId, container: &ContainerId, exit: Exit) {
        let (pod, container) = (pod.clone(), container.clone());
        let _ = self.events.send(Event::Exited { pod, container, exit });
    }
}

impl Runtime {
    /// Starts to listen to a pod's shim. When this returns, no later end is missed; ends before are on disk.
    pub(super) async fn watch(&self, pod: &Arc<Pod>) -> crate::Result<()> {
        let patience = self.shared.config.patience;
        let answer = ask(&pod.dir, &Request::Watch, &[], patience, "watch a pod").await?;
        let Some((client, Reply::Done)) = answer else {
            self.lose(pod).await;
            return Ok(());
        };
        for container in pod.all_containers() {
            container.refresh()?;
        }
        let (this, pod) = (Arc::downgrade(&self.shared), pod.clone());
        tokio::spawn(async move {
            Self::follow(&this, client, &pod).await;
            if let Some(shared) = this.upgrade().filter(|_| !pod.is_being_removed()) {
                Runtime { shared }.lose(&pod).await;
            }
        });
        Ok(())
    }

    /// Ends when the shim does, or the runtime.
    async fn follow(this: &std::sync::Weak<super::Shared>, mut client: Client, pod: &Pod) {
        while let Ok(Some(reply)) = client.receive().await {
            let (container, exit) = match reply {
                Reply::Running { container } => (container, None),
                Reply::Exited { container, exit } => (container, Some(exit)),
                _ => continue,
            };
            let known = pod.containers().get(&container).cloned();
            let Some(shared) = this.upgrade() else {
                return;
            };
            let Some(known) = known else {
                continue;
            };
            let news = match exit {
                // Whoever asked for the start may have given up waiting for it. The container may have ended since, and
                // who finds that out first has to tell.
                None => known.refresh().ok().flatten(),
                Some(exit) => known.exited(exit.clone()).then_some(exit),
            };
            if let Some(exit) = news {
                shared.tell_exit(&pod.spec.id, &container, exit);
            }
        }
    }

    /// The pod's shim is gone: ends what it left, and tells.
    pub(super) async fn lose(&self, pod: &Arc<Pod>) {
        pod.lose();
        let gone = pod.gone.lock().await;
        if *gone {
            return;
        }
        let (this, lost) = (self.clone(), pod.clone());
        let cleaned = tokio::task::spawn_blocking(move || {
            let patience = this.shared.config.patience;
            let group = this.shared.hierarchies.group(&lost.cgroup);
            group.kill(patience)?;
            group.remove(patience)?;
            unmount_below(lost.dir.path())
        });
        if let Ok(Err(error)) = cleaned.await {
            tracing::warn!(pod = %pod.spec.id, error = %crate::error::chain(&error), "a pod without a shim is not gone");
        }
        drop(gone);
        let id = || pod.spec.id.clone();
        for container in pod.all_containers() {
            let name = container.spec.id.clone();
            let event = match container.refresh() {
                Ok(Some(exit)) => Some(Event::Exited {
                    pod: id(),
                    container: name,
                    exit,
                }),
                Ok(None) | Err(_) => container.lose().then(|| Event::Lost {
                    pod: id(),
                    container: name,
                }),
            };
            if let Some(event) = event {
                let _ = self.shared.events.send(event);
            }
        }
        let _ = self.shared.events.send(Event::PodLost { pod: id() });
    }
}
