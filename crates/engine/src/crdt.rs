//! Merging CRDT columns (§5.10).
//!
//! A merger is commutative, associative and idempotent, so replicas agree whatever order their
//! edits arrive in. The stored state is read, merged and written in one transaction; an update
//! that cannot be merged changes nothing.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use yrs::{
    ClientID, Doc, Options, ReadTxn, StateVector, Transact, Update, updates::decoder::Decode,
};

/// Merges updates of one CRDT type.
pub trait CrdtMerger: Send + Sync + 'static {
    /// The state after `incoming`, an update or a whole state, is merged into `stored`.
    fn merge(&self, stored: Option<&[u8]>, incoming: &[u8]) -> Result<Vec<u8>, MergeError>;
}

/// An update or a stored state that the merger does not understand. The text is for the log.
#[derive(Debug, thiserror::Error)]
#[error("CRDT merge failed: {0}")]
pub struct MergeError(pub String);

/// The mergers by CRDT type.
#[derive(Clone)]
pub struct CrdtMergers(BTreeMap<String, Arc<dyn CrdtMerger>>);

impl Default for CrdtMergers {
    /// Knows `yjs-doc`.
    fn default() -> Self {
        Self::none().with("yjs-doc", Arc::new(YjsMerger))
    }
}

impl CrdtMergers {
    /// Knows no type: every CRDT value is refused.
    pub fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds or replaces the merger of a type.
    #[must_use]
    pub fn with(mut self, crdt_type: impl Into<String>, merger: Arc<dyn CrdtMerger>) -> Self {
        self.0.insert(crdt_type.into(), merger);
        self
    }

    /// Whether the type has a merger.
    pub fn knows(&self, crdt_type: &str) -> bool {
        self.0.contains_key(crdt_type)
    }

    /// Merges. A merger that panics has failed, and nothing else has.
    pub(crate) fn merge(
        &self,
        crdt_type: &str,
        stored: Option<&[u8]>,
        incoming: &[u8],
    ) -> Result<Vec<u8>, MergeError> {
        let merger = self
            .0
            .get(crdt_type)
            .ok_or_else(|| MergeError(format!("no merger for {crdt_type}")))?;
        catch_unwind(AssertUnwindSafe(|| merger.merge(stored, incoming)))
            .unwrap_or_else(|_| Err(MergeError("the merger panicked".to_owned())))
    }
}

/// Yjs documents, as updates of the v1 encoding. Zero bytes are the empty document.
#[derive(Clone, Copy, Debug, Default)]
pub struct YjsMerger;

impl CrdtMerger for YjsMerger {
    fn merge(&self, stored: Option<&[u8]>, incoming: &[u8]) -> Result<Vec<u8>, MergeError> {
        // A fixed id: this document is only read from and never edits.
        let doc = Doc::with_options(Options::with_client_id(SERVER_CLIENT_ID));
        {
            let mut txn = doc.transact_mut();
            for update in [stored.unwrap_or_default(), incoming] {
                if update.is_empty() {
                    continue;
                }
                let update = Update::decode_v1(update).map_err(merge_error)?;
                txn.apply_update(update).map_err(merge_error)?;
            }
        }
        // Updates that wait for others to arrive first are part of the state.
        Ok(doc
            .transact()
            .encode_state_as_update_v1(&StateVector::default()))
    }
}

const SERVER_CLIENT_ID: ClientID = ClientID::new(1);

fn merge_error(error: impl std::fmt::Display) -> MergeError {
    MergeError(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use yrs::{GetString, Text};

    use super::*;

    /// The update that `client` makes by writing `text` into an empty document.
    fn edit(client: u64, text: &str) -> Vec<u8> {
        let doc = Doc::with_options(Options::with_client_id(ClientID::new(client)));
        let body = doc.get_or_insert_text("body");
        let mut txn = doc.transact_mut();
        body.insert(&mut txn, 0, text);
        txn.encode_update_v1()
    }

    /// A history of one client as separate updates.
    fn history(client: u64, words: &[String]) -> Vec<Vec<u8>> {
        let doc = Doc::with_options(Options::with_client_id(ClientID::new(client)));
        let body = doc.get_or_insert_text("body");
        words
            .iter()
            .map(|word| {
                let mut txn = doc.transact_mut();
                if word.is_empty() {
                    let length = body.len(&txn);
                    body.remove_range(&mut txn, 0, length);
                } else {
                    body.insert(&mut txn, 0, word);
                }
                txn.encode_update_v1()
            })
            .collect()
    }

    fn text(state: &[u8]) -> String {
        let doc = Doc::new();
        let body = doc.get_or_insert_text("body");
        doc.transact_mut()
            .apply_update(Update::decode_v1(state).unwrap())
            .unwrap();
        let txn = doc.transact();
        body.get_string(&txn)
    }

    fn merge_all<'a>(updates: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
        let mut state = None;
        for update in updates {
            state = Some(YjsMerger.merge(state.as_deref(), update).unwrap());
        }
        state.unwrap_or_default()
    }

    #[test]
    fn edits_of_two_replicas_are_both_kept() {
        let merged = merge_all([&edit(7, "left"), &edit(9, "right")]);
        let text = text(&merged);
        assert!(text.contains("left") && text.contains("right"), "{text}");
    }

    #[test]
    fn merging_twice_changes_nothing() {
        let once = merge_all([&edit(7, "a")]);
        assert_eq!(YjsMerger.merge(Some(&once), &edit(7, "a")).unwrap(), once);
        assert_eq!(YjsMerger.merge(Some(&once), &[]).unwrap(), once);
    }

    #[test]
    fn an_update_whose_predecessor_is_missing_waits_for_it() {
        let updates = history(7, &["a".to_owned(), "b".to_owned()]);
        let early = YjsMerger.merge(None, &updates[1]).unwrap();
        assert_eq!(
            text(&YjsMerger.merge(Some(&early), &updates[0]).unwrap()),
            "ba"
        );
    }

    #[test]
    fn a_panicking_merger_has_failed_and_no_more() {
        struct Panics;
        impl CrdtMerger for Panics {
            fn merge(&self, _: Option<&[u8]>, _: &[u8]) -> Result<Vec<u8>, MergeError> {
                panic!("on purpose")
            }
        }
        let mergers = CrdtMergers::none().with("x", Arc::new(Panics));
        assert!(mergers.merge("x", None, &[]).is_err());
        assert!(mergers.merge("y", None, &[]).is_err(), "no merger");
    }

    proptest! {
        #[test]
        fn the_state_is_the_same_whatever_order_edits_arrive_in(
            left in prop::collection::vec("[a-z]{0,3}", 1..5),
            right in prop::collection::vec("[a-z]{0,3}", 1..5),
            seed in any::<u64>(),
        ) {
            let mut updates = history(7, &left);
            updates.extend(history(9, &right));
            let straight = merge_all(&updates);
            let mut shuffled = updates.clone();
            let mut seed = seed;
            for index in (1..shuffled.len()).rev() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pick = usize::try_from(seed >> 33).unwrap() % (index + 1);
                shuffled.swap(index, pick);
            }
            let other = merge_all(&shuffled);
            prop_assert_eq!(text(&straight), text(&other));
            prop_assert_eq!(straight, other);
        }

        #[test]
        fn any_bytes_merge_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = CrdtMergers::default().merge("yjs-doc", None, &bytes);
        }
    }
}
