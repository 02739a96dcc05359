//! The small JSON documents beside the bytes: records, pointers and a blob's use.
//!
//! Field names are the reference's. Three generations of a record are read: the one with
//! publications; the one with a set of digests, which are publications of the stored context; and
//! the oldest, which lies in the metadata of the bytes.
//!
//! **Invariant:** what does not parse is never overwritten as if it were not there, except in
//! pointers, which only save work.

use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use tidewater_model::{CommitSeq, LogEpoch, PartitionId, limits::PUBLICATIONS_PER_SEGMENT_MAX};
use tidewater_wire::MediaType;

use crate::{
    ObjectError, ObjectErrorKind, Publication, PublicationContext, SegmentId, SegmentKey,
    SegmentRecord,
};

/// Metadata of the bytes object, where the reference first kept the record.
pub(super) const RECORD_ATTRIBUTE: &str = "syncular-record";
/// Metadata of a blob.
pub(super) const BLOB_ATTRIBUTE: &str = "syncular-blob";

/// A segment's record as it is stored.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordDocument {
    segment_id: String,
    byte_length: u64,
    row_count: u64,
    /// The newest publication, for readers that know one only.
    #[serde(flatten)]
    newest: PublicationDocument,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope_digests: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    publications: Option<Vec<PublicationDocument>>,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PublicationDocument {
    partition: String,
    #[serde(default)]
    log_epoch: String,
    table: String,
    schema_version: i32,
    media_type: MediaName,
    scope_digest: String,
    as_of_commit_seq: u64,
    #[serde(default)]
    row_cursor: Option<String>,
    #[serde(default)]
    next_row_cursor: Option<String>,
    created_at_ms: i64,
    expires_at_ms: i64,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum MediaName {
    Rows,
    Sqlite,
}

/// Reads a record; `None` for one whose publications are all removed.
pub(super) fn read_record(
    during: &'static str,
    id: &str,
    json: &[u8],
) -> Result<Option<SegmentRecord>, ObjectError> {
    parse_record(id, json).map_err(|detail| {
        ObjectError::new(ObjectErrorKind::Corrupt, during)
            .with_detail(format!("the record of segment {id}: {detail}"))
    })
}

/// Reads a record from the metadata of the bytes. What cannot be read is as if it were not there:
/// its segment is built again.
pub(super) fn read_attribute(id: &str, base64url: &str) -> Option<SegmentRecord> {
    let json = BASE64_URL_SAFE_NO_PAD
        .decode(base64url.trim_end_matches('='))
        .ok()?;
    parse_record(id, &json).ok().flatten()
}

fn parse_record(id: &str, json: &[u8]) -> Result<Option<SegmentRecord>, String> {
    let document: RecordDocument =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if document.segment_id != id {
        return Err(format!("it is that of {}", document.segment_id));
    }
    let listed = match (document.publications, document.scope_digests) {
        (Some(listed), _) => listed,
        (None, digests) => {
            let mut digests = digests.unwrap_or_default();
            if !digests.contains(&document.newest.scope_digest) {
                digests.push(document.newest.scope_digest.clone());
            }
            let of_digest = |scope_digest| PublicationDocument {
                scope_digest,
                ..document.newest.clone()
            };
            digests.into_iter().map(of_digest).collect()
        }
    };
    let publications: Vec<Publication> = listed
        .into_iter()
        .map(PublicationDocument::into_publication)
        .collect::<Result<_, _>>()?;
    if publications.is_empty() {
        return Ok(None);
    }
    Ok(Some(SegmentRecord {
        id: SegmentId::new(id),
        byte_length: document.byte_length,
        row_count: document.row_count,
        publications,
    }))
}

/// Writes a record. `last` is what readers of an older generation see; with `publications` empty
/// it is a mark that the segment is being removed.
pub(super) fn write_record(record: &SegmentRecord) -> Vec<u8> {
    let newest = record
        .publications
        .last()
        .map(PublicationDocument::of)
        .expect("a record has a publication");
    let mut digests: Vec<String> = record
        .publications
        .iter()
        .map(|publication| publication.context.key.scope_digest.clone())
        .collect();
    digests.sort_unstable();
    digests.dedup();
    let document = RecordDocument {
        segment_id: record.id.as_str().to_owned(),
        byte_length: record.byte_length,
        row_count: record.row_count,
        newest,
        scope_digests: Some(digests),
        publications: Some(
            record
                .publications
                .iter()
                .map(PublicationDocument::of)
                .collect(),
        ),
    };
    to_json(&document)
}

/// A record whose publications are all removed: whoever publishes meanwhile begins with none.
pub(super) fn write_removed(record: &SegmentRecord) -> Vec<u8> {
    let mut document: serde_json::Value =
        serde_json::from_slice(&write_record(record)).expect("it was just written");
    document["publications"] = serde_json::Value::Array(Vec::new());
    document["scopeDigests"] = serde_json::Value::Array(Vec::new());
    to_json(&document)
}

impl PublicationDocument {
    fn of(publication: &Publication) -> Self {
        let context = &*publication.context;
        Self {
            partition: context.key.partition.as_str().to_owned(),
            log_epoch: context.key.log_epoch.as_str().to_owned(),
            table: context.key.table.clone(),
            schema_version: context.key.schema_version,
            media_type: match context.key.media_type {
                MediaType::Rows => MediaName::Rows,
                MediaType::Sqlite => MediaName::Sqlite,
            },
            scope_digest: context.key.scope_digest.clone(),
            as_of_commit_seq: context.key.as_of.get(),
            row_cursor: context.row_cursor.clone(),
            next_row_cursor: context.next_row_cursor.clone(),
            created_at_ms: publication.created_at_ms,
            expires_at_ms: publication.expires_at_ms,
        }
    }

    fn into_publication(self) -> Result<Publication, String> {
        let as_of = CommitSeq::new(self.as_of_commit_seq)
            .ok_or_else(|| format!("no commit has the number {}", self.as_of_commit_seq))?;
        let key = SegmentKey {
            partition: PartitionId::new(self.partition),
            log_epoch: LogEpoch::new(self.log_epoch),
            table: self.table,
            schema_version: self.schema_version,
            media_type: match self.media_type {
                MediaName::Rows => MediaType::Rows,
                MediaName::Sqlite => MediaType::Sqlite,
            },
            scope_digest: self.scope_digest,
            as_of,
        };
        Ok(Publication {
            context: Arc::new(PublicationContext {
                key,
                row_cursor: self.row_cursor,
                next_row_cursor: self.next_row_cursor,
            }),
            created_at_ms: self.created_at_ms,
            expires_at_ms: self.expires_at_ms,
        })
    }
}

/// Adds a publication to those that a segment has, or renews the one with an equal context;
/// whether it was renewed. The number stays within its bound by dropping what ends first.
pub(super) fn merge(publications: &mut Vec<Publication>, new: &Publication) -> bool {
    let same = publications
        .iter_mut()
        .find(|publication| publication.context == new.context);
    if let Some(same) = same {
        // A clock that was set back must not shorten a lifetime that was promised.
        same.expires_at_ms = same.expires_at_ms.max(new.expires_at_ms);
        return true;
    }
    while publications.len() >= PUBLICATIONS_PER_SEGMENT_MAX {
        let first = publications
            .iter()
            .enumerate()
            .min_by_key(|(_, publication)| publication.expires_at_ms)
            .map(|(position, _)| position)
            .expect("there are many");
        publications.remove(first);
    }
    publications.push(new.clone());
    false
}

/// Points from what somebody looks for to a segment that has it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WholePointer {
    pub(super) segment_id: String,
    /// The reference's pointers may lack it: the record decides.
    #[serde(default)]
    pub(super) expires_at_ms: Option<i64>,
}

/// Points to the pages that start at one place.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct PagesPointer {
    pub(super) pages: Vec<PagePointer>,
}

/// One page that starts there.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PagePointer {
    pub(super) segment_id: String,
    pub(super) row_count: u64,
    pub(super) byte_length: u64,
    pub(super) next_row_cursor: Option<String>,
    pub(super) expires_at_ms: i64,
}

/// Pages of different sizes that are remembered for one place.
const PAGES_PER_START_MAX: usize = 8;

impl PagesPointer {
    /// Adds a page, for which others of its size, or those that end first, make room.
    pub(super) fn add(&mut self, page: PagePointer) {
        self.pages.retain(|other| {
            other.segment_id != page.segment_id && other.row_count != page.row_count
        });
        self.pages.push(page);
        if self.pages.len() > PAGES_PER_START_MAX {
            self.pages.sort_by_key(|page| page.expires_at_ms);
            self.pages.remove(0);
        }
    }

    /// When there is nothing left to point to.
    pub(super) fn expires_at_ms(&self) -> Option<i64> {
        self.pages.iter().map(|page| page.expires_at_ms).max()
    }
}

/// What the metadata of a blob says.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BlobDocument {
    /// Absent where the object was begun before its length was known; the backend knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) byte_length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) media_type: Option<String>,
    pub(super) created_at_ms: i64,
}

impl BlobDocument {
    pub(super) fn to_attribute(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(to_json(self))
    }

    /// What is not ours says nothing.
    pub(super) fn from_attribute(text: &str) -> Option<Self> {
        let json = BASE64_URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .ok()?;
        serde_json::from_slice(&json).ok()
    }
}

/// When a blob was used, and what the backend keeps no metadata for.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsageDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) blob: Option<BlobDocument>,
    /// When somebody last held it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held_at_ms: Option<i64>,
    /// Since when the sweep has been removing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) removing_since_ms: Option<i64>,
}

impl UsageDocument {
    pub(super) fn parse(
        during: &'static str,
        document: Option<&[u8]>,
    ) -> Result<Self, ObjectError> {
        let Some(json) = document else {
            return Ok(Self::default());
        };
        serde_json::from_slice(json)
            .map_err(|error| ObjectError::new(ObjectErrorKind::Corrupt, during).with_source(error))
    }
}

/// Documents of ours are always JSON.
pub(super) fn to_json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("text and numbers are JSON")
}

#[cfg(test)]
mod tests;
