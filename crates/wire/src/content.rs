//! Content addresses: what segments and blobs are named by (§5.1, §5.9.2).

use sha2::{Digest, Sha256};

const PREFIX: &str = "sha256:";
const HEX_LEN: usize = 64;

/// The content address of `bytes`: `sha256:` and the hash in lowercase hex.
pub fn content_address(bytes: &[u8]) -> String {
    let mut hasher = ContentHasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// Whether `text` is a content address in its only spelling.
pub fn is_content_address(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|hash| {
        hash.len() == HEX_LEN && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Addresses content that is never in memory as a whole.
#[derive(Clone, Debug, Default)]
pub struct ContentHasher(Sha256);

impl ContentHasher {
    /// Starts with no content.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The content address of everything taken.
    pub fn finish(self) -> String {
        format!("{PREFIX}{}", hex::encode(self.0.finalize()))
    }
}

/// The bare hash of `bytes` in lowercase hex.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn content_in_pieces_has_the_address_of_the_whole() {
        let mut hasher = ContentHasher::new();
        hasher.update(b"ab");
        hasher.update(b"");
        hasher.update(b"c");
        assert_eq!(hasher.finish(), content_address(b"abc"));
        assert_eq!(content_address(b""), EMPTY);
    }

    #[test]
    fn an_address_has_one_spelling() {
        assert!(is_content_address(EMPTY));
        let hash = EMPTY.trim_start_matches(PREFIX);
        for other in [
            "",
            hash,
            &EMPTY.to_uppercase(),
            &EMPTY[..EMPTY.len() - 1],
            &format!("{EMPTY}0"),
            &format!("SHA256:{hash}"),
            &format!("sha256:{}", hash.replace('e', "g")),
        ] {
            assert!(!is_content_address(other), "{other}");
        }
    }
}
