//! Commits as they land, to whoever watches.
//!
//! The last ones are remembered, so that a page that opens has something to show. A commit is
//! turned into text only when somebody looks at it: remembering must cost a busy server nothing.
//!
//! **Invariant:** remembering and sending happen under one lock, and so do looking back and
//! beginning to watch: a watcher sees each commit once.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use parking_lot::Mutex;
use serde_json::json;
use tidewater_engine::{CommitEvent, Engine};
use tidewater_schema::Schema;
use tidewater_store::ChangeKind;
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::Interval,
};

use super::describe::describe;
use crate::{
    encoding::StreamBody,
    quota::{Quota, Share},
};

/// What happened, for those who watch and those who come later.
#[derive(Debug)]
pub(crate) struct Feed {
    recent: Mutex<VecDeque<Entry>>,
    live: broadcast::Sender<Entry>,
    watchers: Arc<Quota>,
}

/// One thing to show.
#[derive(Clone, Debug)]
enum Entry {
    /// A commit small enough to keep as it is.
    Commit(CommitEvent),
    /// The text of something else.
    Text(Bytes),
}

impl Feed {
    pub(crate) fn new() -> Self {
        Self {
            recent: Mutex::default(),
            live: broadcast::Sender::new(ENTRIES_BUFFERED),
            watchers: Quota::new(WATCHERS_MAX),
        }
    }

    /// Remembers and sends the commits of the engine.
    pub(crate) async fn follow(&self, engine: &Engine) {
        let mut commits = engine.follow_commits();
        loop {
            match commits.recv().await {
                Ok(event) if weight(&event) <= BYTES_REMEMBERED_MAX => {
                    self.show(Entry::Commit(event));
                }
                Ok(event) => self.show(Entry::Text(text(&event, engine.schema()))),
                Err(RecvError::Lagged(missed)) => self.show(Entry::Text(missed_text(missed))),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Begins to watch, unless too many do.
    pub(crate) fn watch(&self, schema: &Arc<Schema>) -> Option<Watcher> {
        let share = self.watchers.take(1)?;
        let recent = self.recent.lock();
        Some(Watcher {
            backlog: recent.clone(),
            live: self.live.subscribe(),
            schema: Arc::clone(schema),
            heartbeat: tokio::time::interval(HEARTBEAT),
            _share: share,
        })
    }

    fn show(&self, entry: Entry) {
        let mut recent = self.recent.lock();
        if recent.len() == ENTRIES_REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(entry.clone());
        // An error only says that nobody watches.
        let _ = self.live.send(entry);
    }
}

/// Somebody who watches.
#[derive(Debug)]
pub(crate) struct Watcher {
    backlog: VecDeque<Entry>,
    live: broadcast::Receiver<Entry>,
    schema: Arc<Schema>,
    heartbeat: Interval,
    _share: Share,
}

impl Watcher {
    /// The events as a response body, until `end`.
    pub(crate) fn into_body(self, end: impl Future<Output = ()> + Send + 'static) -> Body {
        let events = stream::unfold((self, Box::pin(end)), |(mut watcher, mut end)| async {
            let text = tokio::select! {
                () = &mut end => return None,
                text = watcher.next() => text?,
            };
            Some((text, (watcher, end)))
        });
        StreamBody::body(Boxed(Box::pin(events)), None)
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(entry) = self.backlog.pop_front() {
            return Some(self.text(&entry));
        }
        tokio::select! {
            entry = self.live.recv() => match entry {
                Ok(entry) => Some(self.text(&entry)),
                Err(RecvError::Lagged(missed)) => Some(missed_text(missed)),
                Err(RecvError::Closed) => None,
            },
            // Tells a watcher that is gone from one to whom nothing happens.
            _ = self.heartbeat.tick() => Some(Bytes::from_static(b": ping\n\n")),
        }
    }

    fn text(&self, entry: &Entry) -> Bytes {
        match entry {
            Entry::Commit(event) => text(event, &self.schema),
            Entry::Text(text) => text.clone(),
        }
    }
}

struct Boxed(Pin<Box<dyn Stream<Item = Bytes> + Send>>);

impl Stream for Boxed {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.as_mut().poll_next(context)
    }
}

fn text(event: &CommitEvent, schema: &Schema) -> Bytes {
    Bytes::from(format!(
        "event: commit\ndata: {}\n\n",
        describe(event, schema)
    ))
}

fn missed_text(missed: u64) -> Bytes {
    Bytes::from(format!(
        "event: missed\ndata: {}\n\n",
        json!({ "commits": missed })
    ))
}

/// Bytes that a commit keeps alive.
fn weight(event: &CommitEvent) -> usize {
    let changes = event
        .commit
        .applied
        .iter()
        .flat_map(|applied| &applied.changes);
    let weights = changes.map(|change| match &change.kind {
        ChangeKind::Upsert { row, .. } => CHANGE_OVERHEAD + row.payload.len(),
        ChangeKind::Delete { .. } => CHANGE_OVERHEAD,
    });
    weights.sum()
}

/// Entries that a page gets when it opens.
const ENTRIES_REMEMBERED: usize = 50;
/// Bytes of a commit that is remembered as it is; of larger ones only the text is.
const BYTES_REMEMBERED_MAX: usize = 32 * 1024;
/// About what a change costs beside its row.
const CHANGE_OVERHEAD: usize = 256;
/// Entries that a watcher may fall behind before it misses some.
const ENTRIES_BUFFERED: usize = 256;
/// Pages open at once.
const WATCHERS_MAX: usize = 32;
/// Below the idle timeout of common proxies.
const HEARTBEAT: Duration = Duration::from_secs(10);
