//! One pod on each node that wants one, none elsewhere. Pods that have ended are replaced.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{EventType, Object, Seen};

use super::failures::Failures;
use super::{OnNode, Set, Wants, pod};
use crate::pods;

/// What came of a look at all nodes.
#[derive(Default)]
pub(super) struct Kept {
    /// Whether anything was planned: an update waits for nodes that are as they shall be otherwise.
    pub(super) is_anything_planned: bool,
    /// The shortest time after which a pod that failed may go.
    pub(super) pause: Option<Duration>,
    /// The failures to remember, if there were new ones.
    pub(super) failures: Option<Failures>,
}

impl Kept {
    fn wait(&mut self, pause: Duration) {
        self.pause = Some(self.pause.map_or(pause, |sooner| sooner.min(pause)));
    }
}

impl Set<'_> {
    pub(super) fn keep(&self, draft: &mut Draft<Object>) -> Result<Kept, Failure> {
        let mut kept = Kept::default();
        let mut failures = Failures::observe(self.snapshot);
        let before = failures.clone();
        for (name, node) in &self.nodes {
            match node.wants {
                Wants::Run if node.pods.is_empty() => self.start(name, &mut kept, draft)?,
                Wants::Run | Wants::Stay => self.keep_on(name, node, &mut failures, &mut kept, draft)?,
                Wants::Nothing => {
                    for pod in node.standing() {
                        self.end(pod, format!("node {name} does not fit"), &mut kept, draft)?;
                    }
                }
                // Nobody will place them; what has been placed there is the pod collector's.
                Wants::IsGone => {
                    for pod in node.standing().filter(|pod| !pod::is_placed(pod)) {
                        self.end(pod, format!("there is no node {name}"), &mut kept, draft)?;
                    }
                }
            }
        }
        kept.failures = (failures != before).then_some(failures);
        Ok(kept)
    }

    /// Clears away what has ended on a node, and what is too many there.
    fn keep_on(
        &self,
        name: &str,
        node: &OnNode,
        failures: &mut Failures,
        kept: &mut Kept,
        draft: &mut Draft<Object>,
    ) -> Result<(), Failure> {
        let mut alive: Vec<&Seen<Pod>> = Vec::new();
        let mut is_pausing = false;
        for pod in node.standing() {
            let which = format!("daemon pod {}/{} on node {name}", pod.raw().namespace(), pod.name());
            match pods::phase(pod) {
                "Failed" => {
                    if let Some(pause) = failures.pause(name, self.snapshot.now()) {
                        kept.wait(pause);
                        is_pausing = true;
                        continue;
                    }
                    failures.note(name, self.snapshot.now());
                    let told = format!("Found failed {which}, will try to kill it");
                    draft.put(self.snapshot.event(EventType::Warning, "FailedDaemonPod", &told)?);
                    self.end(pod, "it has failed".to_owned(), kept, draft)?;
                }
                "Succeeded" => {
                    let told = format!("Found succeeded {which}, will try to delete it");
                    draft.put(self.snapshot.event(EventType::Normal, "SucceededDaemonPod", &told)?);
                    self.end(pod, "it has ended".to_owned(), kept, draft)?;
                }
                _ => alive.push(pod),
            }
        }
        if !self.may_double() {
            for pod in alive.iter().skip(1) {
                self.end(pod, format!("node {name} has another one"), kept, draft)?;
            }
            return Ok(());
        }
        // One that is on its way out does not keep the next from coming; one that failed and is kept for a while does,
        // or there would be ever more of them.
        if alive.is_empty() && node.wants == Wants::Run && !is_pausing {
            return self.start(name, kept, draft);
        }
        let (new, old): (Vec<&Seen<Pod>>, Vec<&Seen<Pod>>) = alive.into_iter().partition(|pod| self.is_updated(pod));
        for pod in new.iter().skip(1).chain(old.iter().skip(1)) {
            self.end(pod, format!("node {name} has another one"), kept, draft)?;
        }
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!pods::is_ready(old) || self.is_available(new))
        {
            self.end(old, format!("node {name} has one of the present template"), kept, draft)?;
        }
        Ok(())
    }

    fn start(&self, node: &str, kept: &mut Kept, draft: &mut Draft<Object>) -> Result<(), Failure> {
        kept.is_anything_planned = true;
        self.create(node, draft)
    }

    fn end(&self, pod: &Seen<Pod>, reason: String, kept: &mut Kept, draft: &mut Draft<Object>) -> Result<(), Failure> {
        kept.is_anything_planned = true;
        self.delete(pod, reason, draft)
    }
}
