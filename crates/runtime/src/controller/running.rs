//! A controller at work, and how it ends.

use std::time::Duration;

use moorline_plan::{Cancel, Cancellation};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::cache::Listening;

/// How long work that was cut off may take to notice. Only a transformer that computes on and on takes longer; what
/// it would have written, the fence keeps back.
const CUT_WITHIN: Duration = Duration::from_secs(1);

/// A controller at work. Dropping it is [`abandon`](Self::abandon) without waiting.
pub struct Running {
    pub(super) queue: Box<dyn Fn() + Send + Sync>,
    pub(super) workers: TaskTracker,
    /// No more work is taken; whoever only waits is done. Follows `stop`.
    pub(super) ending: CancellationToken,
    /// Whatever is under way is cut off.
    pub(super) stop: CancellationToken,
    pub(super) cancellation: Cancellation,
    pub(super) _listening: Vec<Listening>,
}

impl Running {
    /// Takes no more work and waits for what is under way; cuts it off at the deadline. Tells whether all was done.
    pub async fn stop(self, within: Duration) -> bool {
        self.stop_unless(within, &CancellationToken::new()).await
    }

    /// Like [`stop`](Self::stop), but cut off as soon as `lost` says that this process may no longer act.
    pub(crate) async fn stop_unless(self, within: Duration, lost: &CancellationToken) -> bool {
        (self.queue)();
        self.ending.cancel();
        self.workers.close();
        let finished = tokio::time::timeout(within, self.workers.wait());
        let done = lost
            .run_until_cancelled(finished)
            .await
            .is_some_and(|finished| finished.is_ok());
        if !done {
            self.abandon().await;
        }
        done
    }

    /// Stops at once, writing nothing more, not even a status: for a process that may no longer lead. A transformer that
    /// never returns is not waited for.
    pub async fn abandon(self) {
        self.cut();
        self.workers.close();
        let over = tokio::time::timeout(CUT_WITHIN, self.workers.wait()).await;
        if over.is_err() {
            tracing::error!("a transformer does not return and is left behind");
        }
    }

    fn cut(&self) {
        self.cancellation.cancel(Cancel::All);
        (self.queue)();
        self.stop.cancel();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cut();
    }
}
