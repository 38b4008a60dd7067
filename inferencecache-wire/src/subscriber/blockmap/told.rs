//! What comes out of the map: for the server, for the operator, and counts.

use super::{AdapterId, Tier};

/// One thing that is held, as the server is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Digest of the prefix that ends with the block.
    pub digest: u64,
    /// Tokens of that prefix, at most 2147483647.
    pub tokens: u32,
    /// Whose partition.
    pub adapter: AdapterId,
    /// Where it is.
    pub tier: Tier,
}

/// Something the server should learn, in the order in which it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A pair is held.
    Add {
        /// What is held.
        report: Report,
        /// The server may have lost it through the eviction just before, so it must not be taken for a repetition.
        again: bool,
    },
    /// The tier of pairs fell; they travel together, stamped with the time of their event.
    Downgrade(Vec<Report>),
    /// A pair is not held any more.
    Evict {
        /// Its digest.
        digest: u64,
        /// Its partition.
        adapter: AdapterId,
        /// Whether a report of it may have reached the server.
        sent: bool,
    },
    /// Nothing is held any more.
    Clear,
}

/// Something an operator should read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A store gave no index entries: it has no tokens, or their number does not fit the blocks.
    NothingIndexed {
        /// Blocks of the store.
        hashes: usize,
        /// Their tokens.
        tokens: usize,
        /// Tokens of each, as announced.
        block_size: u32,
    },
    /// An adapter has no name that may be used; its blocks stay out of the index. Once per id.
    UnnamedAdapter {
        /// The engine's number, if it gave one.
        lora_id: Option<i64>,
    },
    /// A medium that no engine is known to use counts as T2. Once per medium.
    UnknownMedium {
        /// As the engine spells it.
        medium: String,
    },
}

/// What an event leads to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What the server should learn.
    pub ops: Vec<Op>,
    /// What an operator should read.
    pub notices: Vec<Notice>,
}

impl Outcome {
    /// Empties both lists and keeps their memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.notices.clear();
    }
}

/// Counts since the start. Blocks unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Not indexed: no usable adapter name.
    pub lora: u64,
    /// Not indexed: a salt, an image or an embedding.
    pub salt: u64,
    /// Not indexed: unknown, opaque or differently sized parent.
    pub parent: u64,
    /// Stores whose tokens do not fit their blocks, or contradict what device memory said.
    pub mismatch: u64,
    /// Not indexed: device memory without tokens.
    pub no_tokens: u64,
    /// Stored or removed in a group that is not indexed.
    pub group: u64,
    /// Named in another tier without ever having been described.
    pub unresolved: u64,
    /// Removed without being known.
    pub unknown_removals: u64,
    /// Forgotten because of the bound.
    pub map_evictions: u64,
    /// Losses that only a parent nobody had announced gave away. Not blocks.
    pub unnumbered_losses: u64,
    /// Doubted because the engine has not spoken of them for too long.
    pub aged: u64,
    /// Doubted because device memory cannot hold so many.
    pub over_capacity: u64,
}
