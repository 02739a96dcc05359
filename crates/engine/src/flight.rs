//! Work that many wait for and one does.
//!
//! Whoever asks for a thing that is being made waits for it instead of making another. The work
//! is a task of its own: it goes on whoever has stopped waiting, and its outcome, good or bad,
//! goes to all who did wait. **Invariant:** work that has ended is joined by nobody, so a failure
//! is told to those who waited for it and tried again for the next.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;

use crate::RoundError;

/// An outcome to wait for.
pub(crate) type Landing<V> = Shared<BoxFuture<'static, Result<V, RoundError>>>;

/// Work under way, by what it makes.
pub(crate) struct Flights<K, V>(Arc<Mutex<HashMap<K, Landing<V>>>>);

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V> Flights<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The work under way, if there is any.
    pub(crate) fn find(&self, key: &K) -> Option<Landing<V>> {
        self.0.lock().get(key).cloned()
    }

    /// Joins the work under way, or begins it; whether it was joined. `during` names it in the
    /// log if it panics.
    pub(crate) fn join<F>(
        &self,
        key: K,
        during: &'static str,
        begin: impl FnOnce() -> F,
    ) -> (Landing<V>, bool)
    where
        F: Future<Output = Result<V, RoundError>> + Send + 'static,
    {
        let mut flights = self.0.lock();
        if let Some(landing) = flights.get(&key) {
            return (landing.clone(), true);
        }
        let over = Over {
            flights: Arc::clone(&self.0),
            key: key.clone(),
        };
        let work = begin();
        let task = tokio::spawn(async move {
            // Dropped before anybody sees the outcome, and when the work panics.
            let _over = over;
            work.await
        });
        let landing = async move {
            task.await
                .unwrap_or_else(|error| Err(RoundError::internal(&error, during)))
        };
        let landing = landing.boxed().shared();
        flights.insert(key, landing.clone());
        (landing, false)
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// Takes work that has ended out of the map.
struct Over<K: Eq + Hash, V> {
    flights: Arc<Mutex<HashMap<K, Landing<V>>>>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for Over<K, V> {
    fn drop(&mut self) {
        let landing = self.flights.lock().remove(&self.key);
        drop(landing);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tidewater_model::ErrorCode;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn many_who_ask_wait_for_one() {
        let flights: Flights<u8, u32> = Flights::default();
        let (begun, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let join = || {
            let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
            flights.join(1, "test", || async move {
                let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                gate.notified().await;
                Ok(number)
            })
        };
        let landings: Vec<_> = (0..5).map(|_| join()).collect();
        let joined: Vec<bool> = landings.iter().map(|(_, joined)| *joined).collect();
        assert_eq!(joined, [false, true, true, true, true]);
        assert_eq!(flights.len(), 1);
        gate.notify_one();
        for (landing, _) in landings {
            assert_eq!(landing.await, Ok(1));
        }
        assert_eq!(flights.len(), 0);
        let (landing, joined) = join();
        gate.notify_one();
        assert_eq!((landing.await, joined), (Ok(2), false));
    }

    #[tokio::test]
    async fn work_goes_on_when_those_who_waited_are_gone() {
        let flights: Flights<u8, u32> = Flights::default();
        let (gate, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (landing, _) = flights.join(1, "test", || {
            let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
            async move {
                gate.notified().await;
                done.notify_one();
                Ok(7)
            }
        });
        drop(landing);
        gate.notify_one();
        done.notified().await;
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_and_tried_again_by_the_next() {
        let flights: Flights<u8, u32> = Flights::default();
        let fail = || {
            flights.join(1, "test", || async {
                Err(RoundError::new(ErrorCode::NotFound, "x"))
            })
        };
        let ((first, _), (second, joined)) = (fail(), fail());
        assert!(joined);
        assert_eq!(first.await.unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(second.await.unwrap_err().code, ErrorCode::NotFound);
        let (next, joined) = flights.join(1, "test", || async { Ok(3) });
        assert_eq!((next.await, joined), (Ok(3), false));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_and_keeps_nobody_out() {
        let flights: Flights<u8, u32> = Flights::default();
        let (landing, _) = flights.join(1, "test", || async { panic!("on purpose") });
        assert_eq!(landing.await.unwrap_err().code, ErrorCode::InternalError);
        let (next, joined) = flights.join(1, "test", || async { Ok(3) });
        assert_eq!((next.await, joined), (Ok(3), false));
    }
}
