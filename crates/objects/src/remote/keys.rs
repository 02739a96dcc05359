//! Where everything is in a bucket.
//!
//! ```text
//! {prefix}seg/sha256/{hex}                     a segment's bytes, immutable
//! {prefix}rec/sha256/{hex}.json                its record with the publications
//! {prefix}find/{hash of the key}.json          the whole-table segment of a key
//! {prefix}page/{hash of the key and start}.json   pages that start at one place
//! {prefix}blob/{partition}/sha256/{hex}        a blob's bytes, immutable
//! {prefix}use/{partition}/sha256/{hex}.json    when a blob was held, and whether it is removed
//! {prefix}upload/{partition}/sha256/{hex}      what arrived by a presigned URL, unverified
//! ```
//!
//! `seg`, `rec`, `find` and `blob` are the reference's; the rest is ours. Every look-up is by
//! key, never by listing. A partition is part of a key as it is, which the reference does too;
//! one that no key can hold is written as `~` and its bytes in hex, and a long one as `~h` and a
//! hash. File systems may take `A` and `a` for the same, and so may they two spellings of `é`, so
//! in a directory only plain names stay as they are.

use object_store::path::Path;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tidewater_model::PartitionId;
use tidewater_wire::is_content_address;

use crate::SegmentKey;

/// The keys below one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    names: Names,
}

/// Which names of partitions are different keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Names {
    /// All that are different bytes.
    Exact,
    /// Not all: these are files.
    Folded,
}

/// What is kept per blob, by partition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BlobObject {
    Content,
    Usage,
    Upload,
}

impl BlobObject {
    fn folder(self) -> &'static str {
        match self {
            Self::Content => "blob",
            Self::Usage => "use",
            Self::Upload => "upload",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Usage => ".json",
            Self::Content | Self::Upload => "",
        }
    }
}

impl Keys {
    pub(super) fn new(prefix: &str, names: Names) -> Self {
        Self {
            prefix: prefix.to_owned(),
            names,
        }
    }

    /// The bytes of a segment; `None` for what is not a content address.
    pub(super) fn segment(&self, id: &str) -> Option<Path> {
        let hex = hex_of(id)?;
        Some(self.path(&format!("seg/sha256/{hex}")))
    }

    pub(super) fn segments(&self) -> Path {
        self.path("seg/sha256")
    }

    /// The record of a segment.
    pub(super) fn record(&self, id: &str) -> Option<Path> {
        let hex = hex_of(id)?;
        Some(self.path(&format!("rec/sha256/{hex}.json")))
    }

    pub(super) fn records(&self) -> Path {
        self.path("rec/sha256")
    }

    /// The pointer to the segment that holds every row of a key.
    pub(super) fn whole(&self, key: &SegmentKey) -> Path {
        self.path(&format!("find/{}.json", hash(&parts(key))))
    }

    pub(super) fn wholes(&self) -> Path {
        self.path("find")
    }

    /// The pointer to the pages of a key that start at one place.
    pub(super) fn pages_at(&self, key: &SegmentKey, row_cursor: Option<&str>) -> Path {
        self.path(&format!("page/{}.json", hash(&(parts(key), row_cursor))))
    }

    pub(super) fn pages(&self) -> Path {
        self.path("page")
    }

    /// What is kept of a blob.
    pub(super) fn blob(
        &self,
        object: BlobObject,
        partition: &PartitionId,
        id: &str,
    ) -> Option<Path> {
        let hex = hex_of(id)?;
        let name = format!("{hex}{}", object.suffix());
        Some(self.blobs(object, partition).join(name))
    }

    /// Where a partition's blobs are.
    pub(super) fn blobs(&self, object: BlobObject, partition: &PartitionId) -> Path {
        let folder = object.folder();
        let text = partition.as_str();
        let is_plain = match self.names {
            Names::Exact => true,
            Names::Folded => text
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.')),
        };
        if is_plain
            && !text.starts_with('~')
            && text.len() <= NAME_BYTES_MAX
            && let Some(path) = self.parse(&format!("{folder}/{text}/sha256"))
        {
            return path;
        }
        let name = hex::encode(text);
        if name.len() <= NAME_BYTES_MAX {
            return self.path(&format!("{folder}/~{name}/sha256"));
        }
        let name = hex::encode(Sha256::digest(text));
        self.path(&format!("{folder}/~h{name}/sha256"))
    }

    /// Where everybody's uploads are.
    pub(super) fn uploads(&self) -> Path {
        self.path(BlobObject::Upload.folder())
    }

    /// A path that stands for exactly this text.
    fn parse(&self, key: &str) -> Option<Path> {
        let text = format!("{}{key}", self.prefix);
        let path = Path::parse(&text).ok()?;
        (path.as_ref() == text).then_some(path)
    }

    fn path(&self, key: &str) -> Path {
        self.parse(key)
            .unwrap_or_else(|| Path::from(format!("{}{key}", self.prefix)))
    }
}

/// Names of files end at 255 bytes, and keys of a bucket at 1,024.
const NAME_BYTES_MAX: usize = 200;

/// The content address whose hash a key ends in.
pub(super) fn id_of(path: &Path) -> Option<String> {
    let name = path.filename()?;
    let id = format!("sha256:{}", name.strip_suffix(".json").unwrap_or(name));
    is_content_address(&id).then_some(id)
}

fn hex_of(id: &str) -> Option<&str> {
    is_content_address(id)
        .then(|| id.strip_prefix("sha256:"))
        .flatten()
}

/// What makes two segments interchangeable, in the reference's order.
fn parts(key: &SegmentKey) -> (&str, &str, &str, i32, &'static str, &str, u64) {
    (
        key.partition.as_str(),
        key.log_epoch.as_str(),
        &key.table,
        key.schema_version,
        key.media_type.name(),
        &key.scope_digest,
        key.as_of.get(),
    )
}

fn hash(parts: &impl Serialize) -> String {
    let json = serde_json::to_vec(parts).expect("text and numbers are JSON");
    hex::encode(Sha256::digest(json))
}

#[cfg(test)]
mod tests {
    use super::*;

    use tidewater_model::{CommitSeq, LogEpoch};
    use tidewater_wire::MediaType;

    fn hex() -> String {
        "ab".repeat(32)
    }

    #[track_caller]
    fn check(path: Option<Path>, expected: &str) {
        assert_eq!(path.unwrap().as_ref(), expected);
    }

    #[test]
    fn keys_are_those_of_existing_buckets() {
        let keys = Keys::new("tidewater/", Names::Exact);
        let (id, hex) = (format!("sha256:{}", hex()), hex());
        check(keys.segment(&id), &format!("tidewater/seg/sha256/{hex}"));
        check(
            keys.record(&id),
            &format!("tidewater/rec/sha256/{hex}.json"),
        );
        let partition = PartitionId::new("acme");
        check(
            keys.blob(BlobObject::Content, &partition, &id),
            &format!("tidewater/blob/acme/sha256/{hex}"),
        );
        let key = SegmentKey {
            partition,
            log_epoch: LogEpoch::new("e1"),
            table: "notes".to_owned(),
            schema_version: 2,
            media_type: MediaType::Sqlite,
            scope_digest: "d1".to_owned(),
            as_of: CommitSeq::new(7).unwrap(),
        };
        // printf '["acme","e1","notes",2,"sqlite","d1",7]' | sha256sum
        assert_eq!(
            keys.whole(&key).as_ref(),
            "tidewater/find/56347c3efdccd68afcd1539ff23372c49715d24fc1ff1a2e39324bbc811edf7e.json"
        );
        assert_ne!(keys.pages_at(&key, None), keys.pages_at(&key, Some("")));
    }

    #[test]
    fn what_is_no_address_has_no_key() {
        let keys = Keys::new("", Names::Exact);
        for id in ["", "sha256:", "sha256:../..", &hex(), "sha256:AB"] {
            assert_eq!(keys.segment(id), None);
            assert_eq!(keys.record(id), None);
            let partition = PartitionId::new("p");
            assert_eq!(keys.blob(BlobObject::Content, &partition, id), None);
        }
    }

    #[track_caller]
    fn check_partition(partition: &str, expected: &str) {
        check_named(Names::Exact, partition, expected);
    }

    #[track_caller]
    fn check_named(names: Names, partition: &str, expected: &str) {
        let keys = Keys::new("", names);
        let path = keys.blobs(BlobObject::Content, &PartitionId::new(partition));
        assert_eq!(path.as_ref(), expected);
    }

    #[test]
    fn no_partition_reaches_out_of_its_place_or_into_another() {
        check_partition("a b%é", "blob/a b%é/sha256");
        check_partition("a/b", "blob/a/b/sha256");
        check_partition("", "blob/~/sha256");
        check_partition("..", "blob/~2e2e/sha256");
        check_partition("a/../b", "blob/~612f2e2e2f62/sha256");
        check_partition("/a", "blob/~2f61/sha256");
        check_partition("a\n", "blob/~610a/sha256");
        check_partition("~2e2e", "blob/~7e32653265/sha256");
        let long = "a".repeat(NAME_BYTES_MAX);
        check_partition(&long, &format!("blob/{long}/sha256"));
        let longer = "a".repeat(NAME_BYTES_MAX + 1);
        let hash = hex::encode(Sha256::digest(&longer));
        check_partition(&longer, &format!("blob/~h{hash}/sha256"));
    }

    #[test]
    fn names_that_a_file_system_may_confuse_are_kept_apart() {
        check_named(Names::Folded, "acme-1.x_y", "blob/acme-1.x_y/sha256");
        check_named(Names::Folded, "Acme", "blob/~41636d65/sha256");
        check_named(Names::Folded, "é", "blob/~c3a9/sha256");
        check_named(Names::Folded, "a/b", "blob/~612f62/sha256");
        check_named(Names::Folded, "..", "blob/~2e2e/sha256");
        check_named(Names::Folded, "", "blob/~/sha256");
    }
}
