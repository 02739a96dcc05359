//! What waits to be sent to the other nodes: for those who implement
//! [`Signals`](super::Signals).

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes that wait at most. Beyond them all is dropped, and the others are told so.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes that are sent together.
const BATCH_BYTES: usize = 256 * 1024;

/// Texts that wait to be sent.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<State>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct State {
    texts: VecDeque<String>,
    bytes: usize,
    dropped: bool,
}

/// What is to be sent together.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct Batch {
    /// Whether something before it was dropped.
    pub dropped: bool,
    /// The texts, in their order.
    pub texts: Vec<String>,
}

impl Outbox {
    /// Adds a text.
    pub fn push(&self, text: String) {
        let mut state = self.state.lock();
        if state.bytes + text.len() > BYTES_MAX {
            *state = State {
                dropped: true,
                ..State::default()
            };
        } else {
            state.bytes += text.len();
            state.texts.push_back(text);
        }
        drop(state);
        self.woken.notify_one();
    }

    /// Waits until there is something to send.
    pub async fn wait(&self) {
        loop {
            let woken = self.woken.notified();
            if !self.is_empty() {
                return;
            }
            woken.await;
        }
    }

    fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.texts.is_empty() && !state.dropped
    }

    /// Takes what can be sent together; `None` when there is nothing.
    pub fn take(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        let mut batch = Batch {
            dropped: std::mem::take(&mut state.dropped),
            texts: Vec::new(),
        };
        let mut bytes = 0;
        while let Some(text) = state.texts.front()
            && (bytes == 0 || bytes + text.len() <= BATCH_BYTES)
        {
            bytes += text.len();
            batch.texts.extend(state.texts.pop_front());
        }
        state.bytes -= bytes;
        (batch != Batch::default()).then_some(batch)
    }

    /// Remembers that a batch may not have been sent.
    pub fn dropped(&self) {
        self.state.lock().dropped = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_leave_in_their_order_and_in_bounded_batches() {
        let outbox = Outbox::default();
        assert_eq!(outbox.take(), None);
        let texts: Vec<String> = ["a", "b", "c"]
            .map(|letter| letter.repeat(BATCH_BYTES / 2))
            .into();
        for text in &texts {
            outbox.push(text.clone());
        }
        let batch = |texts: &[String]| Batch {
            dropped: false,
            texts: texts.to_vec(),
        };
        assert_eq!(outbox.take(), Some(batch(&texts[..2])));
        assert_eq!(outbox.take(), Some(batch(&texts[2..])));
        assert_eq!(outbox.take(), None);
    }

    #[test]
    fn what_is_too_much_is_dropped_and_remembered() {
        let outbox = Outbox::default();
        outbox.push("x".repeat(BYTES_MAX));
        outbox.push("y".to_owned());
        outbox.push("z".to_owned());
        let batch = Batch {
            dropped: true,
            texts: vec!["z".to_owned()],
        };
        assert_eq!(outbox.take(), Some(batch));
        outbox.dropped();
        assert!(outbox.take().is_some_and(|batch| batch.dropped));
        assert_eq!(outbox.take(), None);
    }
}
