//! What consumers ask the index, and what it answers.
//!
//! A [`Query`] borrows the request; a [`Lookup`] is the caller's scratch, reused from call to call so that a lookup does
//! not allocate once it is warm.

use std::fmt;
use std::sync::Arc;

/// A list of block hashes in whichever shape the caller has it. Hashes are opaque bytes of any length.
#[derive(Debug, Clone, Copy)]
pub enum HashList<'a> {
    /// Slices.
    Slices(&'a [&'a [u8]]),
    /// Owned vectors, as a protobuf decoder makes them.
    Vecs(&'a [Vec<u8>]),
    /// 8-byte hashes, as the fingerprint makes them.
    Words(&'a [[u8; 8]]),
    /// Bytes, and where in them each hash begins and ends. A place outside the bytes is an empty hash.
    Spans(&'a [u8], &'a [(u32, u32)]),
}

impl Default for HashList<'_> {
    fn default() -> Self {
        Self::Slices(&[])
    }
}

impl<'a> HashList<'a> {
    /// Number of hashes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Slices(list) => list.len(),
            Self::Vecs(list) => list.len(),
            Self::Words(list) => list.len(),
            Self::Spans(_, list) => list.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hash at `i`, or an empty slice beyond the end.
    #[must_use]
    pub fn get(&self, i: usize) -> &'a [u8] {
        match *self {
            Self::Slices(list) => list.get(i).copied().unwrap_or_default(),
            Self::Vecs(list) => list.get(i).map(Vec::as_slice).unwrap_or_default(),
            Self::Words(list) => list.get(i).map(<[u8; 8]>::as_slice).unwrap_or_default(),
            Self::Spans(bytes, list) => {
                let span = list.get(i).map(|&(start, end)| start as usize..end as usize);
                span.and_then(|span| bytes.get(span)).unwrap_or_default()
            }
        }
    }

    /// All hashes in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }
}

/// One question to the index.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<'a> {
    /// Tenant.
    pub tenant: &'a str,
    /// Model.
    pub model: &'a str,
    /// Engine compatibility tag; an empty one matches nothing.
    pub scheme: &'a str,
    /// Partition; empty is the base model.
    pub adapter: &'a str,
    /// Exact key; ignored when either chain array is non-empty.
    pub prefix_hash: &'a [u8],
    /// Chain, root first.
    pub block_hashes: HashList<'a>,
    /// Tokens of each block; parallel to `block_hashes`, else the chain is malformed and matches nothing.
    pub block_token_counts: &'a [i32],
    /// Time-to-first-token target in milliseconds; 0 when none.
    pub ttft_ms: i32,
}

impl Query<'_> {
    /// Whether the query is in chain form: either chain array is non-empty.
    #[must_use]
    pub fn is_chain(&self) -> bool {
        !self.block_hashes.is_empty() || !self.block_token_counts.is_empty()
    }

    /// Whether it is in chain form and the arrays differ in length or a count is negative.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        self.is_chain()
            && (self.block_hashes.len() != self.block_token_counts.len()
                || self.block_token_counts.iter().any(|&count| count < 0))
    }
}

/// How the index answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Strategy {
    /// Nothing to say.
    #[default]
    None,
    /// Replicas that hold the prefix.
    PrefixMatch,
    /// No replica holds it; these are warm for the tenant.
    TenantHot,
    /// The tenant holds no key.
    UnknownTenant,
    /// The tenant holds no key of this model.
    UnknownModel,
    /// The model holds no key in this scheme.
    UnknownHashScheme,
}

/// One scored replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Replica.
    pub replica: Arc<str>,
    /// Bigger is better.
    pub score: f32,
    /// Realised overlap, in tokens.
    pub matched_tokens: i32,
    /// Freshness for a prefix match, hit rate for tenant-hot.
    pub hit_prob: f32,
    /// Coldest tier along the run as stored (1 T1, 2 T2, 3 T3, larger colder); 0 unspecified.
    pub tier: i32,
}

/// Receives the credits of delivered hits; an index hands itself out behind this.
pub trait CreditTarget: Send + Sync + fmt::Debug {
    /// Adds 1 to the use count of the entry in `slot`, if that is still the entry of `generation`.
    fn credit(&self, slot: u32, generation: u32);
}

/// One entry that contributed to a row, to be credited if the row is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capture {
    /// Index into `Lookup::rows`.
    pub row: u32,
    /// Entry slot, meaningful to the target alone.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// The answer of one lookup and the scratch memory behind it. Reuse it: a warm one makes lookups allocation-free.
#[derive(Debug, Default)]
pub struct Lookup {
    /// How the index answered.
    pub strategy: Strategy,
    /// Scored replicas, best first (score descending, then replica id ascending bytewise).
    pub rows: Vec<Row>,
    /// Entries to credit; only in LFU namespaces.
    pub captures: Vec<Capture>,
    /// Whom to credit.
    pub target: Option<Arc<dyn CreditTarget>>,
    /// Working memory of the index.
    pub scratch: crate::index::Scratch,
}

impl Lookup {
    /// An empty answer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the answer, keeps the memory.
    pub fn clear(&mut self) {
        self.strategy = Strategy::None;
        self.scratch.take_back(&mut self.rows);
        self.captures.clear();
        self.target = None;
    }

    /// Keeps the rows for which `keep` says so, in order, and drops the captures of the others with them.
    pub fn retain(&mut self, mut keep: impl FnMut(&Row) -> bool) {
        const GONE: u32 = u32::MAX;
        let mut moved = std::mem::take(&mut self.scratch.moved);
        moved.clear();
        let mut next = 0;
        self.rows.retain(|row| {
            let kept = keep(row);
            moved.push(if kept { next } else { GONE });
            next += u32::from(kept);
            kept
        });
        self.captures.retain_mut(|capture| {
            capture.row = moved.get(capture.row as usize).copied().unwrap_or(GONE);
            capture.row != GONE
        });
        self.scratch.moved = moved;
    }

    /// Credits the captured entries once each. Takes no lock, never fails, and skips entries that have gone meanwhile.
    pub fn credit_hits(&self) {
        if let Some(target) = &self.target {
            for capture in &self.captures {
                target.credit(capture.slot, capture.generation);
            }
        }
    }
}
