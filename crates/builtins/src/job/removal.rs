//! Pods that a job takes away itself.
//!
//! A pod that is stopped because the job does not want it any more, or not now, is no failure. So the job lets go of it
//! first, and deletes it at the next look: a pod that nobody holds is not counted. A plan has one step for each object,
//! and a crash between the two leaves a pod that runs and is not held, which is deleted whenever it is met.

use k8s_openapi::api::core::v1::Pod;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{EventType, Object, Seen};

use super::Run;
use super::belonging::{is_held, is_newcomer, without_tracking};
use crate::pods;

impl Run<'_> {
    /// Takes a pod that runs away without counting it.
    pub(super) fn take_away(&self, pod: &Seen<Pod>, reason: &str, draft: &mut Draft<Object>) -> Result<(), Failure> {
        if is_newcomer(pod) {
            return Ok(());
        }
        if is_held(pod) {
            let freed = without_tracking(pod.raw());
            draft.put(self.snapshot.patch_value(pod.raw(), &freed, reason)?);
            return Ok(());
        }
        self.delete(pod, reason, draft)
    }

    /// Deletes a pod. If it is held, it stays until its end is written down.
    pub(super) fn delete(&self, pod: &Seen<Pod>, reason: &str, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let key = draft.put(self.snapshot.delete(pod.raw(), reason));
        let note = format!("Deleted pod: {}", pod.name());
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulDelete", &note)?);
        draft.after(&event, &key)?;
        Ok(())
    }

    /// Deletes pods that the job let go of. Whether it did any.
    pub(super) fn delete_freed(&self, draft: &mut Draft<Object>) -> Result<bool, Failure> {
        let is_freed = |pod: &&Seen<Pod>| !is_held(pod) && !is_newcomer(pod);
        let mut freed = self.active().filter(is_freed).peekable();
        let is_any = freed.peek().is_some();
        for pod in freed {
            self.delete(pod, "the job has let go of it", draft)?;
        }
        Ok(is_any)
    }

    /// Lets go of whatever is left of a job that has succeeded: it was not needed, and did not fail.
    pub(super) fn dismiss(&self, reason: &str, draft: &mut Draft<Object>) -> Result<(), Failure> {
        for pod in self.pods.iter().filter(|pod| !pods::has_ended(pod)) {
            if !pod.is_deleting() || (is_held(pod) && !self.has_failed(pod)) {
                self.take_away(pod, reason, draft)?;
            }
        }
        Ok(())
    }
}
