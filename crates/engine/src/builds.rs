//! Segments in the making, and what came of those that were made.
//!
//! Counters are for operators and tests: how much building was spared by joining and reuse.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lru::LruCache;
use parking_lot::Mutex;
use tidewater_model::CommitSeq;
use tidewater_objects::{SegmentKey, SegmentRecord};
use tokio::sync::Semaphore;

use crate::{EngineConfig, flight::Flights, pull::PageOutcome};

/// What became of an image.
#[derive(Clone, Debug)]
pub(crate) enum ImageOutcome {
    /// It is published at this pin.
    Built {
        pin: CommitSeq,
        record: Arc<SegmentRecord>,
    },
    /// These rows have no image, or too many are being built: they are sent as rows.
    Rows,
}

/// Names an image in the making. Its pin is that of the snapshot it is made from, which is known
/// only then.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct ImageKey(SegmentKey);

impl ImageKey {
    /// The image that a key at any pin asks for.
    pub(crate) fn new(mut key: SegmentKey) -> Self {
        key.as_of = CommitSeq::START;
        Self(key)
    }

    /// The key at a pin.
    pub(crate) fn at(&self, pin: CommitSeq) -> SegmentKey {
        SegmentKey {
            as_of: pin,
            ..self.0.clone()
        }
    }
}

/// Names a page in the making.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct PageKey {
    pub(crate) key: SegmentKey,
    pub(crate) row_cursor: Option<String>,
    pub(crate) rows_max: usize,
    /// Whether a small one goes inline.
    pub(crate) inline: bool,
}

/// Rows without an image that are remembered.
const UNSUITED_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// Everything that is being built.
pub(crate) struct Builds {
    pub(crate) images: Flights<ImageKey, ImageOutcome>,
    pub(crate) pages: Flights<PageKey, PageOutcome>,
    /// Images that are built at the same time.
    pub(crate) permits: Arc<Semaphore>,
    /// Rows that turned out to have no image, so that it is not tried again for each client.
    pub(crate) unsuited: Mutex<LruCache<SegmentKey, ()>>,
    pub(crate) counts: Counts,
}

impl Builds {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        Self {
            images: Flights::default(),
            pages: Flights::default(),
            permits: Arc::new(Semaphore::new(config.image_builds_max)),
            unsuited: Mutex::new(LruCache::new(UNSUITED_MAX)),
            counts: Counts::default(),
        }
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What was built, and what was spared, since the engine was opened.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct BuildStats {
            $($(#[$doc])* pub $name: u64,)+
        }

        #[derive(Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: AtomicU64,)+
        }

        impl Counts {
            pub(crate) fn stats(&self) -> BuildStats {
                BuildStats {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                }
            }
        }
    };
}

counts! {
    /// Images built.
    image_builds,
    /// Bootstraps that waited for an image somebody else had begun.
    image_joins,
    /// Bootstraps that got an image which was there.
    image_reuses,
    /// Images whose build failed.
    image_failures,
    /// Bootstraps that could have had an image and were sent rows: too few of them, none that an
    /// image can hold, or too many images waiting.
    image_declines,
    /// Rows pages read and encoded.
    page_builds,
    /// Pages that were waited for because somebody else had begun them.
    page_joins,
    /// Pages that were there.
    page_reuses,
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
