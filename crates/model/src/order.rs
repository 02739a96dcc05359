//! The order of map keys on the wire and in canonical JSON.

use std::cmp::Ordering;

/// Compares two strings by UTF-16 code units, as JavaScript does (Conventions).
///
/// It differs from the order of UTF-8 bytes only between U+E000–U+FFFF and the characters above
/// U+FFFF, which is why a test with ASCII keys never notices the difference.
pub fn utf16_cmp(left: &str, right: &str) -> Ordering {
    if left.is_ascii() && right.is_ascii() {
        return left.cmp(right);
    }
    left.encode_utf16().cmp(right.encode_utf16())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_surrogate_pair_sorts_before_a_private_use_character() {
        assert_eq!(utf16_cmp("\u{1F600}", "\u{E000}"), Ordering::Less);
        assert_eq!("\u{1F600}".cmp("\u{E000}"), Ordering::Greater);
    }

    #[test]
    fn ascii_keys_sort_by_bytes() {
        assert_eq!(utf16_cmp("a", "ab"), Ordering::Less);
        assert_eq!(utf16_cmp("b", "ab"), Ordering::Greater);
        assert_eq!(utf16_cmp("a", "a"), Ordering::Equal);
    }
}
