//! One bucket: twelve slots in a cache line.
//!
//! ```text
//!  w0: version │ tags 8 to 11    w1: tags 0 to 7    w2 to w7: cells
//! ```
//!
//! A slot whose tag is 0 is free, whatever cell it shows. Ordering is the callers' affair but for the version.

use std::sync::atomic::Ordering;

use crate::index::arena::Line;

/// Slots of a bucket: a version, a byte of tag and four of cell number each fill a cache line.
pub(super) const SLOTS: usize = 12;

const ONES: u64 = 0x0101_0101_0101_0101;

/// The high bit of each byte of `tags` that equals `tag`. It may also mark bytes above the lowest equal one.
fn equal_bytes(tags: u64, tag: u8) -> u64 {
    let x = tags ^ (ONES * u64::from(tag));
    x.wrapping_sub(ONES) & !x & (ONES << 7)
}

/// One bit per slot (at 8·slot mod 64 + 7), for both words of tags.
pub(super) fn marked(bucket: &Line, tag: u8) -> (u64, u64) {
    (equal_bytes(bucket.get(1), tag), equal_bytes(bucket.get(0) >> 32 | !0 << 32, tag) & 0xffff_ffff)
}

pub(super) fn slots_of((low, high): (u64, u64)) -> impl Iterator<Item = usize> {
    let bytes = |mut mask: u64, base: usize| {
        std::iter::from_fn(move || {
            let slot = (mask != 0).then(|| base + mask.trailing_zeros() as usize / 8);
            mask &= mask.wrapping_sub(1);
            slot
        })
    };
    bytes(low, 0).chain(bytes(high, 8))
}

pub(super) fn cell_at(bucket: &Line, slot: usize) -> u32 {
    bucket.half(4 + slot)
}

pub(super) fn set_tag(bucket: &Line, slot: usize, tag: u8) {
    let (word, shift) = if slot < 8 { (1, slot * 8) } else { (0, 32 + (slot - 8) * 8) };
    bucket.set(word, bucket.get(word) & !(0xff << shift) | u64::from(tag) << shift);
}

pub(super) fn free_slots(bucket: &Line) -> usize {
    // The high bit of each byte that is 0, without false marks.
    let zeros = |word: u64| (!(((word & !(ONES << 7)) + (ONES * 0x7f)) | word) & (ONES << 7)).count_ones() as usize;
    zeros(bucket.get(1)) + zeros(bucket.get(0) >> 32 | !0 << 32)
}

pub(super) fn first_free(bucket: &Line) -> Option<usize> {
    slots_of(marked(bucket, 0)).next()
}

pub(super) fn put(bucket: &Line, slot: usize, tag: u8, cell: u32) {
    bucket.set_half(4 + slot, cell);
    set_tag(bucket, slot, tag);
}

#[expect(clippy::cast_possible_truncation, reason = "the version is the low half")]
pub(super) fn version(bucket: &Line, order: Ordering) -> u32 {
    bucket.word(0).load(order) as u32
}

pub(super) fn set_version(bucket: &Line, version: u32, order: Ordering) {
    bucket.word(0).store(bucket.get(0) & !0xffff_ffff | u64::from(version), order);
}

pub(super) fn tag_at(bucket: &Line, slot: usize) -> u64 {
    if slot < 8 { bucket.get(1) >> (8 * slot) & 0xff } else { bucket.get(0) >> (32 + 8 * (slot - 8)) & 0xff }
}
