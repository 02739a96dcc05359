//! References to blobs, as the text of a `blob_ref` column (§5.9.1).

/// A reference to a blob.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BlobRef {
    /// The content address of the blob.
    pub blob_id: String,
    /// Its size, 0 … 2^53 − 1.
    pub byte_length: i64,
    /// What it is.
    pub media_type: Option<String>,
    /// What its author called it.
    pub name: Option<String>,
}

impl BlobRef {
    /// Reads the text; `None` when it breaks a rule.
    pub fn parse(_text: &str) -> Option<Self> {
        unimplemented!()
    }

    /// The canonical text.
    pub fn to_text(&self) -> String {
        unimplemented!()
    }
}
