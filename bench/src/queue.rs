//! The queue beside client-go's work queue, controller-runtime's priority queue and kube-runtime's scheduler.
//!
//! Both sides take turns, several times, and the median counts. One turn of the shortest work is the best of many
//! rounds, because whatever else the machine does only adds to it.

use std::collections::HashSet;
use std::future::{Future, poll_fn, ready};
use std::hash::Hash;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::{Stream, StreamExt, stream};
use kube_runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use moorline_queue::{Added, Clock, Config, Moment, Outcome, Queue, SystemClock, Timer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::peers;
use crate::report::Row;

const TURNS: usize = 5;

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = cycle();
    rows.push(drain());
    rows.push(idle());
    rows.push(hot_and_cold());
    rows.push(figure_2());
    rows
}

/// The counterpart of controller-runtime's `reconcile.Request`: hashed and compared by both strings, copied without
/// copying them.
type Request = Arc<NamespacedName>;

#[derive(Debug, PartialEq, Eq, Hash)]
struct NamespacedName {
    namespace: String,
    name: String,
}

fn request(namespace: String, name: String) -> Request {
    Arc::new(NamespacedName { namespace, name })
}

fn requests(count: usize) -> Vec<Request> {
    (0..count)
        .map(|number| request(format!("namespace-{}", number % 10), format!("name-{number}")))
        .collect()
}

/// Add, get and done, one thread: a thousand keys at a time.
fn cycle() -> Vec<Row> {
    const KEYS: usize = 1000;
    const ROUNDS: usize = 300;
    let keys = requests(KEYS);
    let ours = || {
        let queue = Queue::new(Config::default());
        let best = (0..ROUNDS)
            .map(|_| {
                let started = Instant::now();
                for key in &keys {
                    queue.add(key.clone());
                }
                for _ in &keys {
                    let work = queue.get_blocking().expect("the queue is not shut down");
                    work.done().expect("the key is ours");
                }
                started.elapsed()
            })
            .min();
        best.unwrap_or_default().as_nanos() as f64 / KEYS as f64
    };
    let theirs = |name| {
        let answer = peers::go(&["queue", "cycle", name, &KEYS.to_string(), &ROUNDS.to_string()])?;
        answer["nanoseconds"]
            .as_f64()
            .ok_or_else(|| format!("the Go peer gave no time for {name}"))
    };
    let mut samples = [const { Vec::new() }; 3];
    let mut missing = None;
    for _ in 0..TURNS {
        samples[0].push(ours());
        for (index, name) in [(1, "controller-runtime"), (2, "client-go")] {
            match theirs(name) {
                Ok(time) => samples[index].push(time),
                Err(reason) => missing = Some(reason),
            }
        }
    }
    let ours = median(&mut samples[0]).unwrap_or(f64::INFINITY);
    let mut row = |index: usize, name: &str, least: f64| {
        let peer = median(&mut samples[index]);
        let ratio = peer.map(|peer| peer / ours);
        Row {
            krate: "queue",
            work: format!("add, get and done of a key, {KEYS} at a time, one thread"),
            unit: "ns",
            ours,
            peer,
            peer_name: if peer.is_some() {
                Some(name.to_owned())
            } else {
                missing.clone()
            },
            ratio,
            bar: format!("< 300 ns, >= {least} x the peer"),
            holds: ours < 300.0 && ratio.is_none_or(|ratio| ratio >= least),
        }
    };
    vec![
        row(1, "controller-runtime priorityqueue", 2.0),
        row(2, "client-go workqueue", 0.5),
    ]
}

/// Three hundred thousand keys, from the first add to the end of the last trivial piece of work, four workers. Both sides
/// have the same keys and the same runtime, and take five turns of which the best counts: threads that meet at a lock
/// suffer more than most from whatever else the machine does.
fn drain() -> Row {
    let keys = requests(300_000);
    let runtime = runtime();
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..5 {
        ours.push(runtime.block_on(drain_ours(&keys)).as_secs_f64() * 1e3);
        theirs.push(runtime.block_on(drain_theirs(&keys)).as_secs_f64() * 1e3);
    }
    let best = |turns: &[f64]| turns.iter().copied().fold(f64::INFINITY, f64::min);
    let (mut ours, mut theirs) = ([best(&ours)], [best(&theirs)]);
    beside_scheduler(
        "drain 300,000 keys with 4 workers, best of 5",
        "ms",
        &mut ours,
        &mut theirs,
    )
}

async fn drain_ours(keys: &[Request]) -> Duration {
    let queue: Queue<Request, _> = Queue::with(Config::default(), SystemTimer::default(), ());
    let started = Instant::now();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let mut served = 0;
                let mut next = queue.get().await;
                while let Some(work) = next {
                    let finished = work.finish_and_try_get(Outcome::Done);
                    finished.settled.expect("the key is ours");
                    served += 1;
                    next = match finished.next {
                        Some(work) => Some(work),
                        None => queue.get().await,
                    };
                }
                served
            })
        })
        .collect();
    for key in keys {
        queue.add(key.clone());
    }
    let left = queue.drain(Duration::from_mins(1)).await;
    let mut served = 0;
    for worker in workers {
        served += worker.await.expect("workers do not panic");
    }
    let took = started.elapsed();
    assert_eq!((served, left.unfinished.len()), (keys.len(), 0));
    took
}

async fn drain_theirs(keys: &[Request]) -> Duration {
    let started = Instant::now();
    // The scheduler ends with its requests, so these must not end before it has given them all out.
    let requests = stream::iter(keys.iter().cloned().map(now)).chain(stream::pending());
    let mut runner = Runner::new(requests, 4, |_| ready(()));
    for _ in keys {
        runner.next().await;
    }
    started.elapsed()
}

/// From the add to the start of work, when nothing else is going on.
fn idle() -> Row {
    const TIMES: usize = 300;
    let runtime = runtime();
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..TURNS {
        ours.push(runtime.block_on(idle_ours(TIMES)));
        theirs.push(runtime.block_on(idle_theirs(TIMES)));
    }
    beside_scheduler(
        "idle add to start of work, p50, async on tokio",
        "µs",
        &mut ours,
        &mut theirs,
    )
}

/// A key that says when it was added and to whom to say that it came.
type Knock = (Instant, oneshot::Sender<Duration>);

async fn idle_ours(times: usize) -> f64 {
    let queue: Queue<Request, _> = Queue::with(Config::default(), SystemTimer::default(), ());
    let knocks = Arc::new(std::sync::Mutex::new(None::<Knock>));
    let worker = tokio::spawn({
        let (queue, knocks) = (queue.clone(), knocks.clone());
        async move {
            while let Some(work) = queue.get().await {
                answer(&knocks);
                work.done().expect("the key is ours");
            }
        }
    });
    let keys = requests(times);
    let p50 = knock_repeatedly(&knocks, keys, |key| assert_eq!(queue.add(key), Added::Queued)).await;
    assert!(queue.shut_down().is_empty());
    worker.await.expect("the worker does not panic");
    p50
}

async fn idle_theirs(times: usize) -> f64 {
    let (sender, requests_in): (UnboundedSender<ScheduleRequest<Request>>, _) = unbounded();
    let knocks = Arc::new(std::sync::Mutex::new(None::<Knock>));
    let worker = tokio::spawn({
        let knocks = knocks.clone();
        async move {
            let mut runner = pin!(scheduler(requests_in));
            while runner.next().await.is_some() {
                answer(&knocks);
            }
        }
    });
    let keys = requests(times);
    let p50 = knock_repeatedly(&knocks, keys, |key| {
        sender.unbounded_send(now(key)).expect("it is received");
    })
    .await;
    drop(sender);
    worker.await.expect("the worker does not panic");
    p50
}

fn answer(knocks: &std::sync::Mutex<Option<Knock>>) {
    let came = Instant::now();
    if let Some((since, reply)) = knocks.lock().expect("nobody panics with the lock").take() {
        let _ = reply.send(came - since);
    }
}

async fn knock_repeatedly(knocks: &std::sync::Mutex<Option<Knock>>, keys: Vec<Request>, add: impl Fn(Request)) -> f64 {
    let mut waits = Vec::new();
    for key in keys {
        // Long enough for the worker to be asleep again, and not in step with the scheduler's milliseconds.
        tokio::time::sleep(Duration::from_micros(1300)).await;
        let (reply, replied) = oneshot::channel();
        *knocks.lock().expect("nobody panics with the lock") = Some((Instant::now(), reply));
        add(key);
        waits.push(replied.await.expect("the worker replies").as_secs_f64() * 1e6);
    }
    median(&mut waits).unwrap_or(f64::INFINITY)
}

/// Five keys ask for themselves again whenever they run, forty-five were asked for once, and there is one worker, which
/// takes two milliseconds over each.
fn hot_and_cold() -> Row {
    const LIMIT: usize = 20_000;
    const WORK: Duration = Duration::from_millis(2);
    let keys = requests(50);
    let (hot, cold) = keys.split_at(5);
    let ours = paused_runtime().block_on(async {
        let queue = Queue::with(Config::default(), PausedTimer(tokio::time::Instant::now()), ());
        for key in &keys {
            queue.add(key.clone());
        }
        let mut count = LastCold::new(cold);
        while count.hand_outs < LIMIT && count.never() > 0 {
            let work = queue.get().await.expect("the queue is not shut down");
            count.serve(&work);
            if hot.contains(&work) {
                queue.add(work.clone());
            }
            tokio::time::sleep(WORK).await;
            work.done().expect("the key is ours");
        }
        count
    });
    let theirs = paused_runtime().block_on(async {
        let (sender, requests_in) = unbounded();
        for key in &keys {
            sender.unbounded_send(now(key.clone())).expect("it is received");
        }
        let mut runner = Runner::new(requests_in, 1, |key| {
            if hot.contains(key) {
                sender.unbounded_send(now(key.clone())).expect("it is received");
            }
            Box::pin(tokio::time::sleep(WORK))
        });
        let mut count = LastCold::new(cold);
        while count.hand_outs < LIMIT && count.never() > 0 {
            count.serve(&runner.next().await);
        }
        count
    });
    let name = match theirs.never() {
        0 => "kube-runtime scheduler".to_owned(),
        never => format!("kube-runtime scheduler; {never} of 45 never in 20,000"),
    };
    Row {
        krate: "queue",
        work: "5 hot keys and 45 cold ones, one worker: last cold key served".to_owned(),
        unit: "hand-outs",
        ours: ours.hand_outs as f64,
        peer: Some(theirs.hand_outs as f64),
        peer_name: Some(name),
        ratio: Some(theirs.hand_outs as f64 / ours.hand_outs as f64),
        bar: "every cold key within 50".to_owned(),
        holds: ours.never() == 0 && ours.hand_outs <= 50,
    }
}

/// Counts hand-outs until every cold key has had one.
struct LastCold {
    hand_outs: usize,
    waiting: HashSet<Request>,
}

impl LastCold {
    fn new(cold: &[Request]) -> Self {
        Self {
            hand_outs: 0,
            waiting: cold.iter().cloned().collect(),
        }
    }

    fn serve(&mut self, key: &Request) {
        self.hand_outs += 1;
        self.waiting.remove(key);
    }

    fn never(&self) -> usize {
        self.waiting.len()
    }
}

/// A key is asked for again at the start of its run; a thousand others arrive before it ends.
fn figure_2() -> Row {
    const LATER: usize = 1000;
    let again = request("again".to_owned(), "again".to_owned());
    let queue = Queue::new(Config::default());
    let get = || queue.get_blocking().expect("the queue is not shut down");
    queue.add(again.clone());
    let running = get();
    queue.add(again.clone());
    for key in requests(LATER) {
        queue.add(key);
    }
    running.done().expect("the key is ours");
    let mut ours = 0.0;
    loop {
        let work = get();
        let key = (*work).clone();
        work.done().expect("the key is ours");
        if key == again {
            break;
        }
        ours += 1.0;
    }
    let peer = peers::go(&["queue", "overtaken", &LATER.to_string()]).and_then(|answer| {
        answer["keys"]
            .as_f64()
            .ok_or_else(|| "the Go peer gave no count".to_owned())
    });
    Row {
        krate: "queue",
        work: "seed 002, Figure 2: later arrivals served before the key added while it ran".to_owned(),
        unit: "keys",
        ours,
        peer: peer.as_ref().ok().copied(),
        peer_name: Some(peer.map_or_else(|reason| reason, |_| "client-go workqueue".to_owned())),
        ratio: None,
        bar: "none".to_owned(),
        holds: ours == 0.0,
    }
}

/// A row whose bar is to be twenty times as fast as kube-runtime's scheduler.
fn beside_scheduler(work: &str, unit: &'static str, ours: &mut [f64], theirs: &mut [f64]) -> Row {
    let ours = median(ours).unwrap_or(f64::INFINITY);
    let peer = median(theirs);
    let ratio = peer.map(|peer| peer / ours);
    Row {
        krate: "queue",
        work: work.to_owned(),
        unit,
        ours,
        peer,
        peer_name: Some("kube-runtime scheduler".to_owned()),
        ratio,
        bar: ">= 20 x the peer".to_owned(),
        holds: ratio.is_some_and(|ratio| ratio >= 20.0),
    }
}

/// kube-runtime's scheduler, driven the way its controller's private runner drives it; each item is a key whose work is
/// over. Its slots are a short list, which costs less than the map of futures there.
struct Runner<T, R, F, W> {
    scheduler: Pin<Box<Scheduler<T, R>>>,
    running: Vec<(T, F)>,
    most: usize,
    work: W,
}

impl<T, R, F, W> Runner<T, R, F, W>
where
    T: Eq + Hash + Clone,
    R: Stream<Item = ScheduleRequest<T>>,
    F: Future<Output = ()> + Unpin,
    W: FnMut(&T) -> F,
{
    fn new(requests: R, most: usize, work: W) -> Self {
        Self {
            scheduler: Box::pin(scheduler(requests)),
            running: Vec::new(),
            most,
            work,
        }
    }

    async fn next(&mut self) -> T {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        let over = self
            .running
            .iter_mut()
            .position(|(_, work)| Pin::new(work).poll(context).is_ready());
        if let Some(index) = over {
            return Poll::Ready(self.running.swap_remove(index).0);
        }
        while self.running.len() < self.most {
            let running = &self.running;
            let is_free = |key: &T| running.iter().all(|(other, _)| other != key);
            match self.scheduler.as_mut().hold_unless(is_free).poll_next_unpin(context) {
                Poll::Ready(Some(key)) => {
                    let work = (self.work)(&key);
                    self.running.push((key, work));
                    context.waker().wake_by_ref();
                }
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
        let _ = self.scheduler.as_mut().hold().poll_next_unpin(context);
        Poll::Pending
    }
}

fn now<T>(message: T) -> ScheduleRequest<T> {
    ScheduleRequest {
        message,
        run_at: tokio::time::Instant::now(),
    }
}

/// The machine's clock, with tokio to wake up by it.
#[derive(Default)]
struct SystemTimer(SystemClock);

impl Clock for SystemTimer {
    fn now(&self) -> Moment {
        self.0.now()
    }
}

impl Timer for SystemTimer {
    type Sleep = Pin<Box<tokio::time::Sleep>>;

    fn sleep_until(&self, moment: Moment) -> Self::Sleep {
        Box::pin(tokio::time::sleep(moment.since(self.0.now())))
    }
}

/// tokio's clock, which can be paused.
struct PausedTimer(tokio::time::Instant);

impl Clock for PausedTimer {
    fn now(&self) -> Moment {
        Moment::from_start(self.0.elapsed())
    }
}

impl Timer for PausedTimer {
    type Sleep = Pin<Box<tokio::time::Sleep>>;

    fn sleep_until(&self, moment: Moment) -> Self::Sleep {
        Box::pin(tokio::time::sleep_until(self.0 + moment.since(Moment::START)))
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("threads can be started")
}

/// A runtime whose clock jumps to the next timer whenever every task waits.
fn paused_runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs no more than memory")
}

fn median(samples: &mut [f64]) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}
