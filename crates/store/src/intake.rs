//! How submissions reach the committer: at once on the caller's thread, or through a queue to a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::WriteError;
use crate::committer::{Committer, Submission};

/// The most that goes into one batch, so that the first in it does not wait for ever on the last.
const BATCH_BYTES: usize = 8 << 20;

/// How long the committer stays idle before it looks after itself.
const IDLE: Duration = Duration::from_secs(5);

/// The same while the disk refuses writes.
const REFUSED: Duration = Duration::from_millis(200);

/// The way in.
pub(crate) enum Intake {
    Direct(Mutex<Committer>),
    Queued {
        queue: Arc<Queue>,
        thread: Mutex<Option<JoinHandle<()>>>,
    },
}

/// What waits for the committer.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrival: Condvar,
}

#[derive(Default)]
struct Waiting {
    submissions: VecDeque<Submission>,
    closing: bool,
}

/// What came of waiting.
enum Taken {
    Batch(Vec<Submission>),
    Nothing,
    Closing,
}

impl Intake {
    pub(crate) fn direct(committer: Committer) -> Self {
        Self::Direct(Mutex::new(committer))
    }

    pub(crate) fn queued(committer: Committer) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let clerk = Clerk {
            queue: Arc::clone(&queue),
            committer,
        };
        let thread = thread::Builder::new()
            .name("store-committer".to_owned())
            .spawn(move || clerk.work())?;
        Ok(Self::Queued {
            queue,
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(crate) fn hand_in(&self, submission: Submission) {
        match self {
            Self::Direct(committer) => {
                let mut committer = lock(committer);
                if committer.is_closed() {
                    return submission.reply.send(Err(WriteError::Closed));
                }
                let announcement = committer.commit(vec![submission]);
                committer.settle();
                drop(committer);
                announcement.announce();
            }
            Self::Queued { queue, .. } => queue.push(submission),
        }
    }

    /// Looks after what would otherwise be looked after with the next write.
    pub(crate) fn tidy(&self) {
        match self {
            Self::Direct(committer) => lock(committer).tidy(),
            Self::Queued { queue, .. } => queue.arrival.notify_one(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Direct(committer) => {
                let mut committer = lock(committer);
                let announcement = committer.close();
                drop(committer);
                announcement.announce();
            }
            Self::Queued { queue, thread } => {
                queue.close();
                let Some(thread) = thread.lock().expect("no code panics while holding the thread").take() else {
                    return;
                };
                // The last handle may be let go by whoever the committer has just answered, on its own thread.
                if thread.thread().id() != thread::current().id() {
                    let _ = thread.join();
                }
            }
        }
    }
}

fn lock(committer: &Mutex<Committer>) -> MutexGuard<'_, Committer> {
    committer.lock().expect("the committer does not panic")
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no code panics while holding the queue")
    }

    fn push(&self, submission: Submission) {
        let mut waiting = self.waiting();
        if waiting.closing {
            drop(waiting);
            return submission.reply.send(Err(WriteError::Closed));
        }
        waiting.submissions.push_back(submission);
        let first = waiting.submissions.len() == 1;
        drop(waiting);
        if first {
            self.arrival.notify_one();
        }
    }

    fn close(&self) {
        self.waiting().closing = true;
        self.arrival.notify_one();
    }

    fn take(&self, patience: Duration) -> Taken {
        let mut waiting = self.waiting();
        if waiting.submissions.is_empty() && !waiting.closing {
            let (woken, _) = self
                .arrival
                .wait_timeout(waiting, patience)
                .expect("no code panics while holding the queue");
            waiting = woken;
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(submission) = waiting.submissions.pop_front()
        {
            bytes += submission.transaction.size();
            batch.push(submission);
        }
        match (batch.is_empty(), waiting.closing) {
            (false, _) => Taken::Batch(batch),
            (true, false) => Taken::Nothing,
            (true, true) => Taken::Closing,
        }
    }
}

/// The committer at work on its own thread.
struct Clerk {
    queue: Arc<Queue>,
    committer: Committer,
}

impl Clerk {
    fn work(mut self) {
        loop {
            let patience = if self.committer.is_ready() { IDLE } else { REFUSED };
            match self.queue.take(patience) {
                Taken::Batch(batch) => {
                    self.committer.commit(batch).announce();
                    self.committer.settle();
                }
                Taken::Nothing => self.committer.tidy(),
                Taken::Closing => return self.committer.close().announce(),
            }
        }
    }
}

impl Drop for Clerk {
    /// However the work ended, nobody is left waiting.
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting();
        waiting.closing = true;
        let abandoned = std::mem::take(&mut waiting.submissions);
        drop(waiting);
        drop(abandoned);
    }
}
