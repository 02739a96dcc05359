//! What waits for a listener.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{NodeId, Signal, SignalEvent};

/// Events that wait for one listener at most.
const EVENTS_MAX: usize = 16_384;

/// Bytes of those.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// The events of one listener.
#[derive(Debug)]
pub struct SignalStream(Arc<Queue>);

impl SignalStream {
    /// The next event; `None` when nothing will ever come again.
    pub async fn next(&mut self) -> Option<SignalEvent> {
        loop {
            let woken = self.0.woken.notified();
            match self.0.state.lock().take() {
                Taken::Event(event) => return Some(event),
                Taken::Closed => return None,
                Taken::Nothing => {}
            }
            woken.await;
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<SignalEvent>,
    bytes: usize,
    closed: bool,
}

enum Taken {
    Event(SignalEvent),
    Closed,
    Nothing,
}

impl State {
    fn take(&mut self) -> Taken {
        match self.events.pop_front() {
            Some(event) => {
                self.bytes -= weight(&event);
                Taken::Event(event)
            }
            None if self.closed => Taken::Closed,
            None => Taken::Nothing,
        }
    }

    /// Drops everything when it is too much, and says so.
    fn push(&mut self, event: SignalEvent) {
        let bytes = self.bytes + weight(&event);
        if self.events.len() < EVENTS_MAX && bytes <= BYTES_MAX {
            self.bytes = bytes;
            self.events.push_back(event);
            return;
        }
        self.events.clear();
        self.bytes = weight(&SignalEvent::Resumed);
        self.events.push_back(SignalEvent::Resumed);
    }
}

impl Queue {
    fn push(&self, event: SignalEvent) {
        self.state.lock().push(event);
        self.woken.notify_one();
    }
}

/// About what an event holds in memory.
fn weight(event: &SignalEvent) -> usize {
    const EVENT_BYTES: usize = 128;
    let SignalEvent::Received { signal, .. } = event else {
        return EVENT_BYTES;
    };
    EVENT_BYTES
        + match signal {
            Signal::Commits { partition, .. }
            | Signal::Registry { partition }
            | Signal::Wake { partition, .. } => partition.as_str().len(),
            Signal::Presence { partition, bytes } => partition.as_str().len() + bytes.len(),
            Signal::RefreshScopes { partition, actor } => {
                let actor = actor.as_ref().map_or("", |actor| actor.as_str());
                partition.as_str().len() + actor.len()
            }
            Signal::Anything | Signal::Alive { .. } | Signal::Gone => 0,
        }
}

/// The listeners of one node: for those who implement [`Signals`](super::Signals).
#[derive(Debug, Default)]
pub struct Subscribers(Mutex<Listeners>);

#[derive(Debug, Default)]
struct Listeners {
    /// Whether anything is heard.
    connected: bool,
    closed: bool,
    queues: Vec<Weak<Queue>>,
}

impl Subscribers {
    /// One more listener.
    pub fn subscribe(&self) -> SignalStream {
        let queue = Arc::new(Queue::default());
        let mut listeners = self.0.lock();
        queue.push(if listeners.connected {
            SignalEvent::Resumed
        } else {
            SignalEvent::Interrupted
        });
        queue.state.lock().closed = listeners.closed;
        listeners.queues.retain(|queue| queue.strong_count() > 0);
        listeners.queues.push(Arc::downgrade(&queue));
        SignalStream(queue)
    }

    /// Hands everybody a signal of another node.
    pub fn receive(&self, from: &NodeId, signal: &Signal) {
        self.0.lock().push(&SignalEvent::Received {
            from: from.clone(),
            signal: signal.clone(),
        });
    }

    /// Tells everybody that nothing is heard from here on. Once is enough.
    pub fn interrupt(&self) {
        let mut listeners = self.0.lock();
        if std::mem::take(&mut listeners.connected) {
            listeners.push(&SignalEvent::Interrupted);
        }
    }

    /// Tells everybody that signals are heard from here on, and that some may have been missed.
    pub fn resume(&self) {
        let mut listeners = self.0.lock();
        listeners.connected = true;
        listeners.push(&SignalEvent::Resumed);
    }

    /// Ends every stream after what waits in it.
    pub fn close(&self) {
        let mut listeners = self.0.lock();
        listeners.closed = true;
        for queue in listeners
            .queues
            .drain(..)
            .filter_map(|queue| queue.upgrade())
        {
            queue.state.lock().closed = true;
            queue.woken.notify_one();
        }
    }
}

impl Listeners {
    fn push(&mut self, event: &SignalEvent) {
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            queue.push(event.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tidewater_model::{CommitSeq, PartitionId};

    use super::*;

    fn commits(place: u64) -> Signal {
        Signal::Commits {
            partition: PartitionId::new("p"),
            up_to: CommitSeq::new(place).unwrap(),
        }
    }

    fn received(signal: Signal) -> SignalEvent {
        SignalEvent::Received {
            from: NodeId::new("b"),
            signal,
        }
    }

    /// What can be taken now.
    fn drain(stream: &mut SignalStream) -> Vec<SignalEvent> {
        let mut events = Vec::new();
        while let Some(Some(event)) = stream.next().now_or_never() {
            events.push(event);
        }
        events
    }

    #[test]
    fn a_listener_hears_first_whether_it_hears_anything() {
        let subscribers = Subscribers::default();
        let mut early = subscribers.subscribe();
        assert_eq!(drain(&mut early), [SignalEvent::Interrupted]);
        subscribers.resume();
        let mut late = subscribers.subscribe();
        subscribers.receive(&NodeId::new("b"), &commits(1));
        subscribers.interrupt();
        subscribers.interrupt();
        let expected = [
            SignalEvent::Resumed,
            received(commits(1)),
            SignalEvent::Interrupted,
        ];
        assert_eq!(drain(&mut early), expected);
        assert_eq!(drain(&mut late), expected);
    }

    #[test]
    fn a_slow_listener_is_told_that_it_has_missed_something() {
        let subscribers = Subscribers::default();
        subscribers.resume();
        let mut stream = subscribers.subscribe();
        for place in 0..u64::try_from(EVENTS_MAX).unwrap() + 2 {
            subscribers.receive(&NodeId::new("b"), &commits(place));
        }
        let events = drain(&mut stream);
        assert_eq!(events.first(), Some(&SignalEvent::Resumed));
        let last = u64::try_from(EVENTS_MAX).unwrap() + 1;
        assert_eq!(events.last(), Some(&received(commits(last))));
        assert!(events.len() < 10);
    }

    #[test]
    fn large_signals_are_bounded_by_their_bytes() {
        let subscribers = Subscribers::default();
        subscribers.resume();
        let mut stream = subscribers.subscribe();
        let signal = Signal::Presence {
            partition: PartitionId::new("p"),
            bytes: vec![0; BYTES_MAX / 4].into(),
        };
        for _ in 0..9 {
            subscribers.receive(&NodeId::new("b"), &signal);
        }
        assert!(drain(&mut stream).len() <= 4);
    }

    #[tokio::test]
    async fn a_listener_is_woken_and_ends_after_what_waits() {
        let subscribers = Subscribers::default();
        subscribers.resume();
        let mut stream = subscribers.subscribe();
        assert_eq!(stream.next().await, Some(SignalEvent::Resumed));
        let waiting = tokio::spawn(async move {
            let event = stream.next().await;
            (event, stream)
        });
        tokio::task::yield_now().await;
        subscribers.receive(&NodeId::new("b"), &Signal::Gone);
        let (event, mut stream) = waiting.await.unwrap();
        assert_eq!(event, Some(received(Signal::Gone)));
        subscribers.receive(&NodeId::new("b"), &commits(1));
        subscribers.close();
        assert_eq!(stream.next().await, Some(received(commits(1))));
        assert_eq!(stream.next().await, None);
    }
}
