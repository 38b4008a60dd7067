//! What readers see of one partition (tenant, model, scheme, adapter): pages, the table that leads to them, the names.
//!
//! 8-byte hashes are their own word; hashes of any other length get a word of their own, never used again, through
//! [`WideWords`], and live in pages of their own. A hash is compared whole, never truncated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::index::arena::NIL;
use crate::index::catalog::Scope;
use crate::index::page::Layout;
use crate::index::replicas::Names;
use crate::index::store::{credit, empty_layout};
use crate::index::table::Word;
use crate::query::CreditTarget;

/// Where a partition belongs. Ordered bytewise: tenant, model, scheme, adapter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PartitionKey {
    pub(super) tenant: Arc<str>,
    pub(super) model: Arc<str>,
    pub(super) scheme: Arc<str>,
    pub(super) adapter: Arc<str>,
}

impl PartitionKey {
    /// Tenant, model, scheme, adapter.
    pub(super) fn names(&self) -> (&str, &str, &str, &str) {
        (&self.tenant, &self.model, &self.scheme, &self.adapter)
    }
}

/// The words that stand for hashes of other lengths than 8, over all partitions.
#[derive(Debug, Default)]
pub(super) struct WideWords {
    words: papaya::HashMap<(u64, Box<[u8]>), u64, foldhash::fast::RandomState>,
}

#[derive(Hash)]
struct WideRef<'a>(u64, &'a [u8]);

impl papaya::Equivalent<(u64, Box<[u8]>)> for WideRef<'_> {
    fn equivalent(&self, key: &(u64, Box<[u8]>)) -> bool {
        key.0 == self.0 && *key.1 == *self.1
    }
}

/// The reader-visible half of a partition.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) key: Arc<PartitionKey>,
    /// It has been forgotten: whoever still knows it must ask for its successor.
    gone: AtomicBool,
    /// Its own among all partitions there ever were.
    number: u64,
    wide_words: Arc<WideWords>,
    pub(super) scope: Arc<Scope>,
    pub(super) seed: u64,
    pub(super) layout: ArcSwap<Layout>,
    pub(super) names: Names,
}

impl Partition {
    pub(super) fn new(
        key: Arc<PartitionKey>,
        (seed, number): (u64, u64),
        wide_words: Arc<WideWords>,
        scope: Arc<Scope>,
    ) -> Self {
        let layout = ArcSwap::new(empty_layout(seed));
        Self { key, gone: AtomicBool::new(false), number, wide_words, scope, seed, layout, names: Names::default() }
    }

    /// Lets go of the memory of a partition that holds nothing and is being forgotten. Readers may still be in it; what
    /// they find is nothing. It may itself be kept for a while, until the map it was in is sure that nobody reads it.
    pub(super) fn reset(&self) {
        self.layout.store(empty_layout(self.seed));
        self.names.reset();
    }

    /// From now on nobody may rely on finding it here. For the writer, before a successor can appear.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether it is the partition of these names in the index with these words.
    pub(super) fn is_of(&self, index: &Arc<WideWords>, names: (&str, &str, &str, &str)) -> bool {
        self.key.names() == names && Arc::ptr_eq(index, &self.wide_words) && !self.gone.load(Ordering::Acquire)
    }

    /// The word of a hash, if it can be stored here at all.
    pub(super) fn word(&self, hash: &[u8]) -> Option<Word> {
        Word::narrow(hash).or_else(|| {
            let words = self.wide_words.words.pin();
            words.get(&WideRef(self.number, hash)).map(|&bits| Word { bits, wide: true })
        })
    }

    /// Makes a word stand for a hash of another length than 8. For the writer.
    pub(super) fn add_wide(&self, hash: &[u8], word: u64) {
        self.wide_words.words.pin().insert((self.number, hash.into()), word);
    }

    /// For the writer.
    pub(super) fn remove_wide(&self, hash: &[u8]) {
        self.wide_words.words.pin().remove(&WideRef(self.number, hash));
    }
}

impl CreditTarget for Partition {
    fn credit(&self, slot: u32, generation: u32) {
        let layout = self.layout.load();
        if slot != NIL
            && let Some(line) = layout.counts.line(slot / 8)
        {
            credit(line.word(slot as usize % 8), generation);
        }
    }
}
