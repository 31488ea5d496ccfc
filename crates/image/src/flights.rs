//! One effort for everybody who wants the same thing at the same time.

use std::{collections::HashMap, hash::Hash, sync::Arc, sync::Mutex};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};

/// What is under way, by what it is for.
pub(crate) struct Flights<K, T: Clone> {
    under_way: Arc<Mutex<HashMap<K, Shared<BoxFuture<'static, T>>>>>,
}

impl<K, T: Clone> Default for Flights<K, T> {
    fn default() -> Self {
        Self {
            under_way: Arc::default(),
        }
    }
}

impl<K, T> Flights<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Waits for the effort under this key, beginning it with `work` when there is none. Once begun it runs to its end,
    /// also when all who wait for it leave: the next to ask finds it done.
    pub(crate) async fn join(&self, key: K, work: impl Future<Output = T> + Send + 'static) -> T {
        let flight = {
            let mut under_way = self.under_way.lock().expect("nothing panics while it is held");
            if let Some(flight) = under_way.get(&key) {
                flight.clone()
            } else {
                let flight = self.begin(key.clone(), work);
                under_way.insert(key, flight.clone());
                flight
            }
        };
        flight.await
    }

    fn begin(&self, key: K, work: impl Future<Output = T> + Send + 'static) -> Shared<BoxFuture<'static, T>> {
        let all = self.under_way.clone();
        let task = tokio::spawn(async move {
            let result = std::panic::AssertUnwindSafe(work).catch_unwind().await;
            all.lock().expect("nothing panics while it is held").remove(&key);
            result
        });
        let flight = async move {
            match task.await {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // The runtime is going away, and everybody who waits with it.
                Err(_) => std::future::pending().await,
            }
        };
        flight.boxed().shared()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn those_who_ask_at_once_share_one_effort_and_later_ones_begin_anew() {
        let flights = Flights::<&str, usize>::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let work = || {
            let (begun, gate) = (begun.clone(), gate.clone());
            async move {
                let mine = begun.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.unwrap().forget();
                mine
            }
        };
        let (left, right, other, ()) = tokio::join!(
            flights.join("a", work()),
            flights.join("a", work()),
            flights.join("b", work()),
            async {
                gate.add_permits(2);
            }
        );
        assert_eq!(left, right);
        assert_ne!(left, other);
        gate.add_permits(1);
        assert_eq!(flights.join("a", work()).await, 2);
    }

    #[tokio::test]
    async fn an_effort_goes_on_when_the_one_who_asked_has_left() {
        let flights = Flights::<&str, ()>::default();
        let (done, finished) = tokio::sync::oneshot::channel();
        let gate = Arc::new(tokio::sync::Notify::new());
        let inner = gate.clone();
        let asked = flights.join("a", async move {
            inner.notified().await;
            done.send(()).unwrap();
        });
        let mut asked = Box::pin(asked);
        assert!(futures_util::poll!(&mut asked).is_pending());
        drop(asked);
        gate.notify_one();
        finished.await.unwrap();
    }
}
