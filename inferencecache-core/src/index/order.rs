//! Who is next in line: pages by the times and counts of what is in them, and single blocks only where those tie.
//!
//! ```text
//!  Order   (uses, last seen, page) sorted       one ticket for each page and pair, not for each block
//!  Ties    the blocks of the first pair, by hash, sorted only when somebody asks
//! ```

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

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

/// Use count and time: what orders entries before their names do.
pub(super) type Rank = (u64, Micros);

/// A rank and a page in one number that sorts as they do.
fn pack((uses, seen): Rank, page: u32) -> u128 {
    let seen = (seen as u64) ^ (1 << 63);
    u128::from(uses.min(u64::from(u32::MAX))) << 96 | u128::from(seen) << 32 | u128::from(page)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "the parts are taken out one by one")]
fn unpack(ticket: u128) -> (Rank, u32) {
    let seen = ((ticket >> 32) as u64 ^ (1 << 63)) as i64;
    (((ticket >> 96) as u64, seen), ticket as u32)
}

/// Tickets of one chunk.
const CHUNK: usize = 128;

/// A sorted set of tickets, in chunks that fill up completely when tickets come in order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The first ticket of each chunk.
    firsts: Vec<u128>,
    chunks: Vec<Vec<u128>>,
}

impl Order {
    /// All of these at once.
    pub(super) fn of(tickets: impl Iterator<Item = (Rank, u32)>) -> Self {
        let mut tickets: Vec<u128> = tickets.map(|(rank, page)| pack(rank, page)).collect();
        tickets.sort_unstable();
        tickets.dedup();
        let chunks: Vec<Vec<u128>> = tickets.chunks(CHUNK).map(<[u128]>::to_vec).collect();
        Self { firsts: chunks.iter().map(|chunk| chunk[0]).collect(), chunks }
    }

    pub(super) fn first(&self) -> Option<(Rank, u32)> {
        self.firsts.first().map(|&ticket| unpack(ticket))
    }

    /// The first ticket that is not before this one.
    pub(super) fn from(&self, rank: Rank, page: u32) -> Option<(Rank, u32)> {
        let ticket = pack(rank, page);
        let at = self.chunk_of(ticket);
        let chunk = self.chunks.get(at)?;
        let within = chunk.get(chunk.partition_point(|&other| other < ticket));
        within.or_else(|| self.firsts.get(at + 1)).map(|&ticket| unpack(ticket))
    }

    /// The pages of one rank.
    pub(super) fn pages(&self, rank: Rank) -> impl Iterator<Item = u32> + '_ {
        let (low, high) = (pack(rank, 0), pack(rank, u32::MAX));
        let from = self.chunk_of(low);
        let chunks = self.chunks.get(from..).unwrap_or_default().iter().flatten();
        let wanted = chunks.skip_while(move |&&ticket| ticket < low).take_while(move |&&ticket| ticket <= high);
        wanted.map(|&ticket| unpack(ticket).1)
    }

    fn chunk_of(&self, ticket: u128) -> usize {
        self.firsts.partition_point(|&first| first <= ticket).saturating_sub(1)
    }

    /// Adds a ticket, unless it is there.
    pub(super) fn insert(&mut self, rank: Rank, page: u32) {
        let ticket = pack(rank, page);
        let last = self.chunks.last().and_then(|chunk| chunk.last());
        if last.is_none_or(|&last| last < ticket) {
            match self.chunks.last_mut() {
                Some(chunk) if chunk.len() < CHUNK => chunk.push(ticket),
                _ => {
                    self.firsts.push(ticket);
                    self.chunks.push(vec![ticket]);
                }
            }
            return;
        }
        let mut at = self.chunk_of(ticket);
        let Err(mut place) = self.chunks[at].binary_search(&ticket) else { return };
        if self.chunks[at].len() == CHUNK {
            let upper = self.chunks[at].split_off(CHUNK / 2);
            self.firsts.insert(at + 1, upper[0]);
            self.chunks.insert(at + 1, upper);
            if place > CHUNK / 2 {
                (at, place) = (at + 1, place - CHUNK / 2);
            }
        }
        self.chunks[at].insert(place, ticket);
        self.firsts[at] = self.chunks[at][0];
    }

    /// Removes a ticket, if it is there.
    pub(super) fn remove(&mut self, rank: Rank, page: u32) {
        let ticket = pack(rank, page);
        let at = self.chunk_of(ticket);
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let Ok(place) = chunk.binary_search(&ticket) else { return };
        chunk.remove(place);
        match chunk.first() {
            Some(&first) => {
                self.firsts[at] = first;
                let next = self.chunks.get(at + 1).map_or(CHUNK, Vec::len);
                if self.chunks[at].len() + next <= CHUNK / 2 {
                    let next = self.chunks.remove(at + 1);
                    self.firsts.remove(at + 1);
                    self.chunks[at].extend(next);
                }
            }
            None => {
                self.chunks.remove(at);
                self.firsts.remove(at);
            }
        }
    }
}

/// A block that stands in line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seat {
    pub(super) hash: HashKey,
    pub(super) page: u32,
    pub(super) position: u32,
}

/// The first blocks, by hash, of those that share the first rank. Some may have gone since: whoever takes one looks.
#[derive(Debug, Default)]
pub(super) struct Ties {
    rank: Option<Rank>,
    heap: BinaryHeap<Reverse<Seat>>,
    /// Every block of the rank with a smaller hash is in the heap; without it, every block is.
    bound: Option<HashKey>,
    /// How long the heap may become before it is not worth its memory.
    most: usize,
}

impl Ties {
    /// Whether these are the blocks of this rank, and any are left.
    pub(super) fn are_of(&self, rank: Rank) -> bool {
        self.rank == Some(rank) && !self.heap.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Seat> {
        self.heap.peek().map(|seat| &seat.0)
    }

    pub(super) fn pop(&mut self) {
        self.heap.pop();
    }

    /// Takes the blocks of a rank. Of many it keeps the first sixteenth: looking through all of them again pays for
    /// itself with as many removals.
    pub(super) fn fill(&mut self, rank: Rank, mut seats: Vec<Seat>) {
        let keep = (seats.len() / 16).max(1024);
        self.rank = Some(rank);
        self.bound = None;
        if seats.len() > keep {
            let (_, bound, _) = seats.select_nth_unstable(keep);
            self.bound = Some(bound.hash.clone());
            seats.truncate(keep);
        }
        self.most = 4 * keep;
        self.heap = seats.into_iter().map(Reverse).collect();
    }

    /// Whether a block that joins this rank has to be told of.
    pub(super) fn want(&self, rank: Rank) -> bool {
        self.rank == Some(rank)
    }

    /// A block has joined the rank.
    pub(super) fn offer(&mut self, seat: Seat) {
        if self.bound.as_ref().is_none_or(|bound| seat.hash < *bound) {
            self.heap.push(Reverse(seat));
        }
        if self.heap.len() > self.most {
            self.forget();
        }
    }

    /// Lets go of everything.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    #[test]
    fn an_order_is_a_sorted_set() {
        let (mut order, mut set) = (Order::default(), BTreeSet::new());
        let mut x = 1u64;
        for step in 0..30_000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = (x >> 40) as u32 % 8;
            // In order at first, then anywhere, then ever fewer.
            let seen = if step < 5_000 { step as i64 } else { (x >> 33) as i64 % 6_000 - 500 };
            let rank = (x >> 61, seen);
            if x >> 20 & 15 < if step < 15_000 { 4 } else { 10 } {
                order.remove(rank, page);
                set.remove(&(rank, page));
            } else {
                order.insert(rank, page);
                set.insert((rank, page));
            }
            assert_eq!(order.first(), set.first().copied());
            let probe = (x >> 60, (x >> 10) as i64 % 6_000);
            assert_eq!(order.from(probe, 3), set.range((probe, 3)..).next().copied());
        }
        for rank in (0..8).flat_map(|uses| (-10..50).map(move |seen| (uses, seen))) {
            let pages: Vec<u32> = set.range((rank, 0)..=(rank, u32::MAX)).map(|&(_, page)| page).collect();
            assert_eq!(order.pages(rank).collect::<Vec<_>>(), pages);
        }
        let all = Order::of(set.iter().copied());
        assert_eq!(all.chunks.concat(), order.chunks.concat());
        while let Some((rank, page)) = set.pop_first() {
            assert_eq!(order.first(), Some((rank, page)));
            order.remove(rank, page);
        }
        assert!(order.chunks.is_empty() && order.firsts.is_empty());
    }

    #[test]
    fn extreme_times_keep_their_order() {
        for (early, late) in [(i64::MIN, -1), (-1, 0), (0, i64::MAX)] {
            assert!(pack((0, early), 9) < pack((0, late), 0));
            assert_eq!(unpack(pack((3, early), 9)), ((3, early), 9));
        }
    }

    /// However many there are, they come in order of hash, also those that join meanwhile.
    #[test]
    fn ties_come_in_order_of_hash() {
        let seat = |bits: u64| Seat { hash: HashKey::narrow(bits), page: 0, position: 0 };
        let mut all: BTreeSet<u64> = (0..5_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let mut ties = Ties::default();
        let mut x = 1u64;
        while !all.is_empty() {
            if !ties.are_of((0, 1)) {
                ties.fill((0, 1), all.iter().map(|&bits| seat(bits)).collect());
            }
            assert_eq!(ties.first(), all.first().map(|&bits| seat(bits)).as_ref());
            ties.pop();
            all.pop_first();
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if x >> 63 == 0 && all.insert(x) {
                ties.offer(seat(x));
            }
        }
    }
}
