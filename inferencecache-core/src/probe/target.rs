//! What is probed, and the names that follow from it.
//!
//! ```text
//! hash     SHA-256 of "inferencecache.io/probe/v1\n", then scheme, model, backend, each after its length (u32, big-endian)
//! payload  "probe-payload-v1\n", hash
//! replica  "__probe-", backend
//! ```
//!
//! The lengths keep different targets apart whose names run into each other.

use std::fmt;

use sha2::{Digest, Sha256};

/// Bytes that are put into the second tier.
pub const PAYLOAD_BYTES: usize = PAYLOAD_TITLE.len() + HASH_BYTES;

const HASH_BYTES: usize = 32;
const HASH_TITLE: &[u8] = b"inferencecache.io/probe/v1\n";
const PAYLOAD_TITLE: &[u8; 17] = b"probe-payload-v1\n";

/// The backend to test, and the scope in which to test it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeTarget<'a> {
    /// Name of the backend, unique in the cluster; normally `namespace/name`.
    pub backend: &'a str,
    /// Model to pretend.
    pub model: &'a str,
    /// Engine compatibility tag.
    pub scheme: &'a str,
    /// Kind of the backend; empty is the default kind, `LMCache`.
    pub backend_type: &'a str,
}

/// The one block that is written, named after the target.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProbeHash([u8; HASH_BYTES]);

// === impl ProbeTarget ===

impl ProbeTarget<'_> {
    /// The replica that is made up for the backend.
    #[must_use]
    pub fn replica(&self) -> String {
        format!("__probe-{}", self.backend)
    }

    /// The hash of the block.
    #[must_use]
    pub fn hash(&self) -> ProbeHash {
        let mut hasher = Sha256::new_with_prefix(HASH_TITLE);
        for part in [self.scheme, self.model, self.backend] {
            hasher.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hasher.update(part);
        }
        ProbeHash(hasher.finalize().into())
    }

    /// Whether backends of this kind have a second tier that can be tested.
    #[must_use]
    pub fn has_second_tier(&self) -> bool {
        matches!(self.backend_type, "" | "LMCache")
    }
}

// === impl ProbeHash ===

impl ProbeHash {
    /// The bytes, as they are indexed.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; HASH_BYTES] {
        &self.0
    }

    /// What is put into the second tier.
    #[must_use]
    pub fn payload(&self) -> [u8; PAYLOAD_BYTES] {
        let mut payload = [0; PAYLOAD_BYTES];
        let (title, hash) = payload.split_at_mut(PAYLOAD_TITLE.len());
        title.copy_from_slice(PAYLOAD_TITLE);
        hash.copy_from_slice(&self.0);
        payload
    }
}

/// In hexadecimal.
impl fmt::Display for ProbeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ProbeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProbeHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(backend: &str, model: &str, scheme: &str, want: &str) {
        let hash = ProbeTarget { backend, model, scheme, backend_type: "" }.hash();
        assert_eq!(hash.to_string(), want);
        let payload = hash.payload();
        assert_eq!(payload.len(), 49);
        assert_eq!(&payload[..17], b"probe-payload-v1\n");
        assert_eq!(&payload[17..], hash.as_bytes());
    }

    #[test]
    fn names_are_as_published() {
        check("cb-1", "m", "vllm", "8b0bcbe0332ff69cb6f82d07b0e9549c3507cc26942198ee1a7e69aa04167881");
        check(
            "team-a/backend-1",
            "functional-self-test",
            "vllm",
            "220db67fed0517d70a5cdb2192909d957be73cd64d058407982a07516c03f8bc",
        );
        assert_eq!(ProbeTarget { backend: "cb-1", ..ProbeTarget::default() }.replica(), "__probe-cb-1");
    }

    #[test]
    fn names_that_run_into_each_other_stay_apart() {
        let hash = |backend, model, scheme| ProbeTarget { backend, model, scheme, backend_type: "" }.hash();
        assert_ne!(hash("ab", "c", "d"), hash("a", "bc", "d"));
        assert_ne!(hash("a", "bc", "d"), hash("a", "b", "cd"));
    }

    #[test]
    fn kinds_with_a_second_tier() {
        for (kind, want) in [("", true), ("LMCache", true), ("lmcache", false), ("Memory", false), ("External", false)]
        {
            assert_eq!(ProbeTarget { backend_type: kind, ..ProbeTarget::default() }.has_second_tier(), want, "{kind}");
        }
    }
}
