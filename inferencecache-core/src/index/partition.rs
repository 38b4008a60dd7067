//! What readers see of one partition (tenant, model, scheme, adapter): two tables, the entries, the names.
//!
//! 8-byte hashes are their own key word; hashes of any other length get a word of their own, never used again, through
//! `wide_words`, and live in a second table. A hash is compared whole, never truncated.

use std::sync::Arc;

use crate::index::entries::{Chunks, Entries, Entry, entry};
use crate::index::replicas::Names;
use crate::index::table::{Conflict, Directory, Read, Table};
use crate::query::CreditTarget;

/// Where a partition belongs. Ordered bytewise: tenant, model, scheme, adapter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartitionKey {
    pub(super) tenant: Arc<str>,
    pub(super) model: Arc<str>,
    pub(super) scheme: Arc<str>,
    pub(super) adapter: Arc<str>,
}

/// A key word and the table it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Word {
    /// An 8-byte hash, big-endian, so that the order of words is the order of bytes.
    Narrow(u64),
    /// The stand-in of a hash of another length.
    Wide(u64),
}

/// The reader-visible half of a partition.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) narrow: Table,
    pub(super) wide: Table,
    pub(super) wide_words: papaya::HashMap<Box<[u8]>, u64, foldhash::fast::RandomState>,
    pub(super) entries: Entries,
    pub(super) names: Names,
}

impl Partition {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            narrow: Table::new(seed),
            wide: Table::new(seed),
            wide_words: papaya::HashMap::default(),
            entries: Entries::default(),
            names: Names::default(),
        }
    }

    /// The key word of a hash, if it can be stored here at all.
    pub(super) fn word(&self, hash: &[u8]) -> Option<Word> {
        match <[u8; 8]>::try_from(hash) {
            Ok(bytes) => Some(Word::Narrow(u64::from_be_bytes(bytes))),
            Err(_) => self.wide_words.pin().get(hash).map(|&word| Word::Wide(word)),
        }
    }

    pub(super) fn table(&self, word: Word) -> (&Table, u64) {
        match word {
            Word::Narrow(word) => (&self.narrow, word),
            Word::Wide(word) => (&self.wide, word),
        }
    }

    /// Starts one optimistic reading of the partition.
    pub(super) fn view(&self) -> View<'_> {
        View {
            partition: self,
            narrow: self.narrow.directory(),
            wide: self.wide.directory(),
            chunks: self.entries.chunks(),
        }
    }
}

impl CreditTarget for Partition {
    fn credit(&self, slot: u32, generation: u32) {
        if let Some(entry) = entry(&self.entries.chunks(), slot) {
            entry.credit(generation);
        }
    }
}

/// One attempt at reading: whatever it yields counts only if [`View::validate`] says so afterwards.
#[derive(Debug)]
pub(super) struct View<'a> {
    partition: &'a Partition,
    narrow: arc_swap::Guard<Arc<Directory>>,
    wide: arc_swap::Guard<Arc<Directory>>,
    chunks: arc_swap::Guard<Arc<Chunks>>,
}

/// The versions that one attempt has met, by table.
#[derive(Debug, Default)]
pub(super) struct Reads {
    narrow: Vec<Read>,
    wide: Vec<Read>,
}

impl Reads {
    pub(super) fn clear(&mut self) {
        self.narrow.clear();
        self.wide.clear();
    }
}

impl View<'_> {
    /// The first entry of the holders of `hash`.
    pub(super) fn holders(&self, hash: &[u8], reads: &mut Reads) -> Result<Option<u32>, Conflict> {
        match self.partition.word(hash) {
            None => Ok(None),
            Some(Word::Narrow(word)) => self.partition.narrow.read(&self.narrow, word, &mut reads.narrow),
            Some(Word::Wide(word)) => self.partition.wide.read(&self.wide, word, &mut reads.wide),
        }
    }

    /// An entry; a conflict when it is younger than this attempt.
    pub(super) fn entry(&self, index: u32) -> Result<&Entry, Conflict> {
        entry(&self.chunks, index).ok_or(Conflict)
    }

    /// Whether nothing that was read has changed meanwhile.
    pub(super) fn validate(&self, reads: &Reads) -> bool {
        Table::validate(&self.narrow, &reads.narrow) && Table::validate(&self.wide, &reads.wide)
    }
}
