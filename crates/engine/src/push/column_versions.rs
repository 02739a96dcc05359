//! When each column of a row was last written, as stored (§2.2).
//!
//! Pairs of column ordinal and row version, each number unsigned LEB128, by ascending ordinal;
//! only versions above 1 are listed. A missing blob is a row from before this feature, whose
//! columns all count as the row's version. An empty blob says that every column is at 1.

/// The version of every column of one row.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ColumnVersions(Vec<i64>);

/// The stored bytes are not what this module writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("column versions are corrupt")]
pub(crate) struct Corrupt;

impl ColumnVersions {
    /// Every column of a new row.
    #[cfg(test)]
    pub(crate) fn inserted(columns: usize) -> Self {
        Self(vec![1; columns])
    }

    /// Reads what was stored beside a row at `row_version`.
    pub(crate) fn decode(
        stored: Option<&[u8]>,
        row_version: i64,
        columns: usize,
    ) -> Result<Self, Corrupt> {
        let Some(mut rest) = stored else {
            return Ok(Self(vec![row_version; columns]));
        };
        let mut versions = vec![1; columns];
        let mut least = 0;
        while !rest.is_empty() {
            let ordinal = usize::try_from(number(&mut rest)?).map_err(|_| Corrupt)?;
            let version = number(&mut rest)?;
            if ordinal < least || version <= 1 {
                return Err(Corrupt);
            }
            *versions.get_mut(ordinal).ok_or(Corrupt)? = version;
            least = ordinal + 1;
        }
        Ok(Self(versions))
    }

    /// The version of one column.
    pub(crate) fn of(&self, column: usize) -> i64 {
        self.0[column]
    }

    /// Moves one column to `row_version`.
    pub(crate) fn advance(&mut self, column: usize, row_version: i64) {
        self.0[column] = row_version;
    }

    /// The bytes to store.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (ordinal, &version) in self
            .0
            .iter()
            .enumerate()
            .filter(|(_, version)| **version > 1)
        {
            put_number(
                &mut out,
                u64::try_from(ordinal).expect("a table has few columns"),
            );
            put_number(
                &mut out,
                u64::try_from(version).expect("the version is above 1"),
            );
        }
        out
    }
}

fn number(rest: &mut &[u8]) -> Result<i64, Corrupt> {
    let mut value: u64 = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, tail) = rest.split_first().ok_or(Corrupt)?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return i64::try_from(value).map_err(|_| Corrupt);
        }
    }
    Err(Corrupt)
}

fn put_number(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = u8::try_from(value & 0x7f).expect("seven bits");
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_the_protocol_is_byte_exact() {
        let bytes = [0x02, 0x05, 0x03, 0xac, 0x02];
        let versions = ColumnVersions::decode(Some(&bytes), 300, 5).unwrap();
        assert_eq!(versions, ColumnVersions(vec![1, 1, 5, 300, 1]));
        assert_eq!(versions.encode(), bytes);
    }

    #[test]
    fn a_missing_blob_counts_as_the_rows_version_and_an_empty_one_as_all_1() {
        assert_eq!(ColumnVersions::decode(None, 7, 2).unwrap().of(1), 7);
        assert_eq!(
            ColumnVersions::decode(Some(&[]), 7, 2),
            Ok(ColumnVersions::inserted(2))
        );
    }

    #[track_caller]
    fn check_corrupt(bytes: &[u8]) {
        assert_eq!(ColumnVersions::decode(Some(bytes), 9, 4), Err(Corrupt));
    }

    #[test]
    fn what_is_never_written_is_corrupt() {
        check_corrupt(&[0x02]);
        check_corrupt(&[0x02, 0x85]);
        check_corrupt(&[0x02, 0x01]);
        check_corrupt(&[0x04, 0x05]);
        check_corrupt(&[0x02, 0x05, 0x01, 0x05]);
        check_corrupt(&[0x02, 0x05, 0x02, 0x05]);
        check_corrupt(&[
            0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ]);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(versions in prop::collection::vec(1i64.., 0..40)) {
            let versions = ColumnVersions(versions);
            let bytes = versions.encode();
            let read = ColumnVersions::decode(Some(&bytes), 1, versions.0.len());
            prop_assert_eq!(read, Ok(versions));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = ColumnVersions::decode(Some(&bytes), 1, 8);
        }
    }
}
