//! The frozen digests: every vector of `data/fingerprint_vectors.json`, and fingerprint:1-14.

use std::num::NonZeroU32;

use inferencecache_core::fingerprint::{
    Roll, chain, content_digest, prefix_digest, prefix_digests, prefix_digests_from, wire_bytes,
};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    seed: u64,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    tokens: Vec<u32>,
    block_size: i64,
    parent: Option<Digest>,
    content: Vec<Digest>,
    prefix: Vec<Digest>,
    block_token_counts: Vec<i32>,
}

#[derive(Deserialize)]
struct Digest {
    dec: String,
    hex: String,
    b64be: String,
}

fn size(block: u32) -> NonZeroU32 {
    NonZeroU32::new(block).expect("a block size above 0")
}

fn prefixes(tokens: impl IntoIterator<Item = u32>, block: u32, parent: Option<u64>) -> Vec<u64> {
    let tokens: Vec<u32> = tokens.into_iter().collect();
    let mut out = Vec::new();
    prefix_digests_from(&tokens, size(block), parent, &mut out);
    out
}

fn base64(bytes: [u8; 8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u128::from(u64::from_be_bytes(bytes)) << 2;
    let digits = (0..11).rev().map(|i| char::from(ALPHABET[(bits >> (6 * i)) as usize & 63]));
    digits.chain(['=']).collect()
}

#[track_caller]
fn check(got: &[u64], want: &[Digest], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: number of digests");
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.to_string(), want.dec, "{what}");
        assert_eq!(format!("{got:016x}"), want.hex, "{what}");
        assert_eq!(base64(wire_bytes(*got)), want.b64be, "{what}");
    }
}

// fingerprint:1
#[test]
fn every_vector_is_reproduced() {
    let vectors: Vectors = serde_json::from_str(include_str!("data/fingerprint_vectors.json")).expect("vectors parse");
    assert_eq!(vectors.seed, inferencecache_core::fingerprint::SEED);
    assert_eq!(vectors.vectors.len(), 35);
    for vector in vectors.vectors {
        let name = &vector.name;
        let Some(block) = u32::try_from(vector.block_size).ok().and_then(NonZeroU32::new) else {
            assert!(vector.prefix.is_empty(), "{name}: a size that the type refuses has no digests");
            continue;
        };
        let content: Vec<u64> = vector.tokens.chunks_exact(block.get() as usize).map(content_digest).collect();
        check(&content, &vector.content, name);
        let parent = vector.parent.map(|parent| parent.dec.parse().expect("a u64"));
        let mut prefix = Vec::new();
        prefix_digests_from(&vector.tokens, block, parent, &mut prefix);
        check(&prefix, &vector.prefix, name);
        let (mut keys, mut counts) = (Vec::new(), Vec::new());
        chain(&vector.tokens, block, &mut keys, &mut counts);
        assert_eq!(counts, vector.block_token_counts, "{name}");
        if parent.is_none() {
            assert_eq!(keys, prefix.iter().copied().map(wire_bytes).collect::<Vec<_>>(), "{name}");
        }
    }
}

// fingerprint:2, fingerprint:3
#[test]
fn a_parent_of_zero_is_a_parent() {
    let tokens: Vec<u32> = (1..=16).collect();
    let content = content_digest(&tokens);
    assert_eq!(format!("{content:016x}"), "ea06fc71a5ee6e88");
    assert_eq!(base64(wire_bytes(content)), "6gb8caXubog=");
    assert_eq!(prefixes(1..=16, 16, Some(0)), [0xadd6_a66e_b590_ce57]);
    assert_eq!(prefixes(1..=16, 16, None), [content]);
}

// fingerprint:4-9
#[test]
fn chains_roll() {
    const FIRST: u64 = 0xea06_fc71_a5ee_6e88;
    assert_eq!(prefixes(1..=32, 16, None), [FIRST, 0xad01_835a_37dd_294c]);
    let tokens: Vec<u32> = (1..=32).collect();
    let (mut keys, mut counts) = (Vec::new(), Vec::new());
    chain(&tokens, size(16), &mut keys, &mut counts);
    assert_eq!((keys.len(), &counts[..]), (2, &[16, 16][..]));
    // 5: in two steps
    assert_eq!(prefixes(17..=32, 16, Some(FIRST)), [0xad01_835a_37dd_294c]);
    // 6: other block sizes
    assert_eq!(prefixes(1..=32, 8, None).len(), 4);
    assert_eq!(prefixes(1..=32, 8, None).last(), Some(&0xe077_059e_4446_963f));
    assert_eq!(prefixes(1..=32, 32, None), [0x58cd_e804_6940_7a3a]);
    // 7: tails and sizes
    assert_eq!(prefixes(0..20, 16, None).len(), 1);
    assert_eq!(prefixes(0..10, 16, None).len(), 0);
    assert_eq!(prefixes(0..10, u32::MAX, None).len(), 0);
    assert!(NonZeroU32::new(0).is_none() && u32::try_from(-1_i32).is_err());
    // 8: equal content, different positions
    assert_eq!(prefixes((1..=16).chain(1..=16), 16, None), [FIRST, 0xeb30_6122_36f9_44a8]);
    // 9: the top bit is no sign
    assert_eq!(prefixes(1..=32, 16, Some(0x8000_0000_0000_0001)), [0x6970_38a9_71a6_3457, 0xc7ae_278d_e6a1_46f6]);
}

proptest! {
    // fingerprint:12
    #[test]
    fn rolling_in_pieces_equals_one_roll(
        tokens in prop::collection::vec(any::<u32>(), 0..400),
        block in 1_u32..40,
        parent in any::<Option<u64>>(),
        cuts in prop::collection::vec(0_usize..12, 0..5),
    ) {
        let whole = prefixes(tokens.iter().copied(), block, parent);
        let (mut pieces, mut last, mut rest) = (Vec::new(), parent, &tokens[..]);
        for cut in cuts {
            let (piece, tail) = rest.split_at((cut * block as usize).min(rest.len() / block as usize * block as usize));
            prefix_digests_from(piece, size(block), last, &mut pieces);
            last = pieces.last().copied().or(parent);
            rest = tail;
        }
        prefix_digests_from(rest, size(block), last, &mut pieces);
        prop_assert_eq!(&pieces, &whole);

        let mut roll = Roll::after(parent);
        for (block, want) in tokens.chunks_exact(block as usize).zip(&whole) {
            let before = roll.digest();
            prop_assert_eq!(roll.push(block), *want);
            prop_assert_eq!(prefix_digest(before, content_digest(block)), *want);
        }
    }

    // fingerprint:13
    #[test]
    fn chains_are_balanced(tokens in prop::collection::vec(any::<u32>(), 0..2000), block in 1_u32..700) {
        let (mut keys, mut counts) = (vec![[7; 8]], vec![7]);
        chain(&tokens, size(block), &mut keys, &mut counts);
        prop_assert_eq!(keys.len(), counts.len());
        prop_assert_eq!(keys.len() - 1, tokens.len() / block as usize);
        prop_assert!(counts[1..].iter().all(|&count| count == block as i32));
        prop_assert_eq!(keys[0], [7; 8], "results are appended");
        prop_assert!(keys[1..].iter().copied().eq(prefixes(tokens, block, None).into_iter().map(wire_bytes)));
    }
}

// fingerprint:14
#[test]
fn a_million_tokens_need_no_memory_per_block() {
    let tokens: Vec<u32> = (0..1 << 20).collect();
    let (mut keys, mut counts) = (Vec::with_capacity(1 << 16), Vec::with_capacity(1 << 16));
    let mut digests = Vec::with_capacity(1 << 16);
    for _ in 0..2 {
        keys.clear();
        counts.clear();
        digests.clear();
        let allocations = allocation_counter::measure(|| chain(&tokens, size(16), &mut keys, &mut counts));
        assert_eq!(allocations.count_total, 0);
        let allocations = allocation_counter::measure(|| prefix_digests(&tokens, size(16), &mut digests));
        assert_eq!(allocations.count_total, 0);
    }
    assert_eq!((keys.len(), counts.len(), digests.len()), (1 << 16, 1 << 16, 1 << 16));
    // How long it takes is measured by the benchmark `fingerprint`.
}
