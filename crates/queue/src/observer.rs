//! Hooks for metrics.

use std::time::Duration;

use crate::priority::Priority;

/// Told of what happens in a queue, while it happens. Every method does nothing unless it is written.
///
/// The calls come from inside the queue's lock, so they must be short, must not call the queue and must not panic.
/// Each is the source of one of controller-runtime's metrics. Two more are asked for when metrics are read:
/// `workqueue_unfinished_work_seconds` is [`Core::unfinished_work`](crate::Core::unfinished_work) and
/// `workqueue_longest_running_processor_seconds` is [`Core::longest_running`](crate::Core::longest_running).
pub trait Observer {
    /// So many keys of this priority now wait in line: `workqueue_depth`.
    fn depth(&mut self, priority: Priority, depth: usize) {
        let _ = (priority, depth);
    }

    /// A key was asked for and had not been before: `workqueue_adds_total`. A delayed key counts when it is due.
    fn added(&mut self, priority: Priority) {
        let _ = priority;
    }

    /// A key was given to a worker after it had waited so long: `workqueue_queue_duration_seconds`.
    fn handed_out(&mut self, priority: Priority, waited: Duration) {
        let _ = (priority, waited);
    }

    /// A worker was done with a key after so long: `workqueue_work_duration_seconds`.
    fn finished(&mut self, priority: Priority, worked: Duration) {
        let _ = (priority, worked);
    }

    /// A key failed and asks for another try: `workqueue_retries_total`.
    fn retried(&mut self, priority: Priority, failures: u32) {
        let _ = (priority, failures);
    }
}

/// Observes nothing, at no cost.
impl Observer for () {}
