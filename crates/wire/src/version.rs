//! The three versions of the envelope and what differs between them.

/// A wire version this server speaks. A response always uses that of its request.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum WireVersion {
    /// No log epoch.
    V1,
    /// Log epochs.
    V2,
    /// Log epochs, sparse payloads, conflicts by column.
    V3,
}

impl WireVersion {
    /// Every version, oldest first.
    pub const ALL: [Self; 3] = [Self::V1, Self::V2, Self::V3];

    /// The version with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.number() == number)
    }

    /// The number in the envelope.
    pub fn number(self) -> u16 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// Whether headers carry the log epoch (§2.1).
    pub fn has_epoch(self) -> bool {
        self >= Self::V2
    }

    /// Whether push payloads are sparse rows and conflicts name their columns (§6.2).
    pub fn is_sparse(self) -> bool {
        self >= Self::V3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_three_known_numbers_are_versions() {
        for version in WireVersion::ALL {
            assert_eq!(WireVersion::from_number(version.number()), Some(version));
        }
        for unknown in [0, 4, 999] {
            assert_eq!(WireVersion::from_number(unknown), None);
        }
    }
}
