//! The consistent pick: the same prompt goes to the same replica as long as the set of replicas stays the same.
//!
//! ```text
//! resolved chain ── each hash: length as big-endian u32, bytes ──┐
//! or exact key   ── its bytes ───────────────────────────────────┴─> seed ─> SHA-256 ─> first 8 bytes, big-endian
//!                                                                                      modulo the number of replicas
//! ```
//!
//! Neither tenant nor adapter nor token counts are part of the seed. The set must be sorted bytewise, so that a restart
//! does not change the pick.

use sha2::{Digest, Sha256};

use crate::query::HashList;

/// Makes `seed` the seed of a chain. An empty chain has an empty seed, which is no seed.
pub fn chain_seed(hashes: &HashList<'_>, seed: &mut Vec<u8>) {
    seed.clear();
    for hash in hashes.iter() {
        let length = u32::try_from(hash.len()).unwrap_or(u32::MAX);
        seed.extend_from_slice(&length.to_be_bytes());
        seed.extend_from_slice(hash);
    }
}

/// Makes `seed` the seed of an exact key. An empty key has an empty seed, which is no seed.
pub fn exact_seed(hash: &[u8], seed: &mut Vec<u8>) {
    seed.clear();
    seed.extend_from_slice(hash);
}

/// The number a seed stands for: the first 64 bits of its SHA-256.
#[must_use]
pub fn reduce(seed: &[u8]) -> u64 {
    let digest = Sha256::digest(seed);
    digest.iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Position of the pick in a set of `replicas`; `None` without a seed or a replica.
#[must_use]
pub fn pick_position(seed: &[u8], replicas: usize) -> Option<usize> {
    let replicas = u64::try_from(replicas).ok().filter(|&n| n > 0)?;
    if seed.is_empty() { None } else { usize::try_from(reduce(seed) % replicas).ok() }
}

/// The pick from replicas that are sorted bytewise; `None` without a seed or a replica.
#[must_use]
pub fn pick<'a, T>(seed: &[u8], sorted: &'a [T]) -> Option<&'a T> {
    sorted.get(pick_position(seed, sorted.len())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(replicas: &[&str], seed: &[u8], want: Option<&str>) {
        let mut sorted = replicas.to_vec();
        sorted.sort_unstable();
        assert_eq!(pick(seed, &sorted).copied(), want);
    }

    fn seed_of(hashes: &[&[u8]]) -> Vec<u8> {
        let mut seed = b"left over".to_vec();
        chain_seed(&HashList::Slices(hashes), &mut seed);
        seed
    }

    const THREE: [&str; 3] = ["r-3", "r-1", "r-2"];

    // index:154-156
    #[test]
    fn the_first_64_bits_of_the_digest_decide() {
        assert_eq!(reduce(b"any-seed"), 0xbe05_7fad_c196_81a8);
        check(&THREE, b"any-seed", Some("r-2"));
        check(&["r-1", "r-2", "r-3", "r-4"], b"any-seed", Some("r-1"));
        check(&["r-1", "r-2", "r-10"], b"any-seed", Some("r-10"));
    }

    // index:157-161, server:50
    #[test]
    fn chains_are_prefixed_with_lengths_and_exact_keys_are_not() {
        assert_eq!(seed_of(&[b"ab", b"cd"]), b"\0\0\0\x02ab\0\0\0\x02cd");
        assert_eq!(seed_of(&[b"abcd"]), b"\0\0\0\x04abcd");
        assert_eq!(reduce(&seed_of(&[b"ab", b"cd"])), 0xdb5c_456e_8961_3f07);
        check(&THREE, &seed_of(&[b"ab", b"cd"]), Some("r-3"));
        check(&THREE, &seed_of(&[b"abcd"]), Some("r-2"));
        check(&THREE, b"abcd", Some("r-1"));
        check(&THREE, &seed_of(&[&1_u64.to_be_bytes()]), Some("r-1"));
        let mut exact = b"left over".to_vec();
        exact_seed(&1_u64.to_be_bytes(), &mut exact);
        check(&THREE, &exact, Some("r-3"));
    }

    // index:162, index:163 (an empty scheme is the index's business)
    #[test]
    fn there_is_no_pick_without_a_seed_or_a_replica() {
        check(&["only"], b"x", Some("only"));
        check(&[], b"x", None);
        check(&THREE, b"", None);
        check(&THREE, &seed_of(&[]), None);
    }
}
