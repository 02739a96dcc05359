//! What a column can hold and what an operation can do, by name and by number.

/// The type of a column (§2.4). The number is the tag on the wire.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ColumnType {
    /// UTF-8 text.
    String,
    /// A whole number in ±(2^53 − 1).
    Integer,
    /// An IEEE-754 double; NaN and infinities are legal.
    Float,
    /// True or false.
    Boolean,
    /// JSON text, kept as written.
    Json,
    /// Raw bytes; also every encrypted column.
    Bytes,
    /// A reference to a blob, as canonical JSON text (§5.9.1).
    BlobRef,
    /// The state of a CRDT, merged on the server (§5.10).
    Crdt,
}

impl ColumnType {
    /// Every type, in tag order.
    pub const ALL: [Self; 8] = [
        Self::String,
        Self::Integer,
        Self::Float,
        Self::Boolean,
        Self::Json,
        Self::Bytes,
        Self::BlobRef,
        Self::Crdt,
    ];

    /// The tag on the wire, 1 … 8.
    pub fn tag(self) -> u8 {
        match self {
            Self::String => 1,
            Self::Integer => 2,
            Self::Float => 3,
            Self::Boolean => 4,
            Self::Json => 5,
            Self::Bytes => 6,
            Self::BlobRef => 7,
            Self::Crdt => 8,
        }
    }

    /// The type with this tag.
    pub fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.tag() == tag)
    }

    /// The name in schema documents and renderings.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Float => "float",
            Self::Boolean => "boolean",
            Self::Json => "json",
            Self::Bytes => "bytes",
            Self::BlobRef => "blob_ref",
            Self::Crdt => "crdt",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What an operation does, and what a change records (§6.1, §4.5).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Op {
    /// Insert or update.
    Upsert,
    /// Delete.
    Delete,
}

impl Op {
    /// The byte on the wire and in the log.
    pub fn tag(self) -> u8 {
        match self {
            Self::Upsert => 1,
            Self::Delete => 2,
        }
    }

    /// The operation with this byte.
    pub fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            1 => Some(Self::Upsert),
            2 => Some(Self::Delete),
            _ => None,
        }
    }

    /// The name in renderings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upsert => "upsert",
            Self::Delete => "delete",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_tag_and_by_its_name() {
        for kind in ColumnType::ALL {
            assert_eq!(ColumnType::from_tag(kind.tag()), Some(kind));
            assert_eq!(ColumnType::from_name(kind.name()), Some(kind));
        }
        assert_eq!(ColumnType::from_tag(0), None);
        assert_eq!(ColumnType::from_tag(9), None);
        assert_eq!(ColumnType::from_name("text"), None);
    }

    #[test]
    fn every_operation_is_found_by_its_byte() {
        for op in [Op::Upsert, Op::Delete] {
            assert_eq!(Op::from_tag(op.tag()), Some(op));
        }
        assert_eq!(Op::from_tag(0), None);
    }
}
