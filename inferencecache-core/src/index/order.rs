//! Where an entry stands in line: by age, then hash, then replica id, all bytewise.
//!
//! The whole order is in the key, so the first in line is the first of a set, however many entries share a stamp or the
//! beginning of their hashes.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::index::replicas::Replica;
use crate::time::Micros;

/// A hash that orders as its bytes do. The 8-byte ones need no second look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HashKey {
    /// The first 8 bytes, big-endian, padded with zeros.
    head: u64,
    /// The whole hash, unless it is the 8 bytes of `head`.
    whole: Option<Arc<Box<[u8]>>>,
}

impl HashKey {
    pub(super) fn narrow(head: u64) -> Self {
        Self { head, whole: None }
    }

    pub(super) fn wide(whole: &Arc<Box<[u8]>>) -> Self {
        let mut head = [0; 8];
        let len = whole.len().min(8);
        head[..len].copy_from_slice(&whole[..len]);
        Self { head: u64::from_be_bytes(head), whole: Some(whole.clone()) }
    }
}

impl Ord for HashKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| match (&self.whole, &other.whole) {
            (None, None) => Ordering::Equal,
            (Some(a), Some(b)) => a.cmp(b),
            // Equal heads: the shorter is the beginning of the longer.
            (None, Some(b)) => 8.cmp(&b.len()),
            (Some(a), None) => a.len().cmp(&8),
        })
    }
}

impl PartialOrd for HashKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The place of one entry.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) seen: Micros,
    pub(super) hash: HashKey,
    pub(super) replica: Arc<Replica>,
    /// The entry. Two seats that are equal before it never are two entries, but for those of a cleared replica.
    pub(super) index: u32,
}

impl Ord for Seat {
    fn cmp(&self, other: &Self) -> Ordering {
        self.seen
            .cmp(&other.seen)
            .then_with(|| self.hash.cmp(&other.hash))
            .then_with(|| self.replica.id.cmp(&other.replica.id))
            .then_with(|| self.index.cmp(&other.index))
    }
}

impl PartialOrd for Seat {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Seat {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Seat {}

#[cfg(test)]
mod tests {
    use super::*;

    /// index:141: ties go to the smaller hash, bytewise, whatever the lengths.
    #[test]
    fn hashes_order_as_their_bytes() {
        let hashes: [&[u8]; 9] =
            [b"", b"\0", b"\0\0", b"ab", b"ab\0", b"ab\0\0\0\0\0\0", b"ab\0\0\0\0\0\0\0", b"abcdefgh", b"abcdefgh1"];
        let key = |hash: &[u8]| match <[u8; 8]>::try_from(hash) {
            Ok(bytes) => HashKey::narrow(u64::from_be_bytes(bytes)),
            Err(_) => HashKey::wide(&Arc::new(hash.into())),
        };
        for a in hashes {
            for b in hashes {
                assert_eq!(key(a).cmp(&key(b)), a.cmp(b), "{a:?} and {b:?}");
            }
        }
    }
}
