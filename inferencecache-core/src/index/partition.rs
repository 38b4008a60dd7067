//! What readers see of one partition (tenant, model, scheme, adapter): two tables, the entries, the names.
//!
//! 8-byte hashes are their own key word; hashes of any other length get a word of their own, never used again, through
//! [`WideWords`], and live in a second table. A hash is compared whole, never truncated.

use std::sync::Arc;

use crate::index::catalog::Scope;
use crate::index::entries::{Chunks, Entries, Entry, entry};
use crate::index::replicas::Names;
use crate::index::table::{Conflict, Directory, Read, Table};
use crate::query::CreditTarget;

/// Where a partition belongs. Ordered bytewise: tenant, model, scheme, adapter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Its own among all partitions there ever were.
    number: u64,
    wide_words: Arc<WideWords>,
    pub(super) scope: Arc<Scope>,
    pub(super) narrow: Table,
    pub(super) wide: Table,
    pub(super) entries: Entries,
    pub(super) names: Names,
}

impl Partition {
    pub(super) fn new(seed: u64, number: u64, wide_words: Arc<WideWords>, scope: Arc<Scope>) -> Self {
        Self {
            number,
            wide_words,
            scope,
            narrow: Table::new(seed),
            wide: Table::new(seed),
            entries: Entries::default(),
            names: Names::default(),
        }
    }

    /// Lets go of the memory of a partition that holds nothing and is being forgotten. Readers may still be in it; what
    /// they find is nothing. It may itself be kept for a while, until the map it was in is sure that nobody reads it.
    pub(super) fn reset(&self) {
        self.narrow.reset();
        self.wide.reset();
        self.entries.reset();
        self.names.reset();
    }

    /// The key word of a hash, if it can be stored here at all.
    pub(super) fn word(&self, hash: &[u8]) -> Option<Word> {
        match <[u8; 8]>::try_from(hash) {
            Ok(bytes) => Some(Word::Narrow(u64::from_be_bytes(bytes))),
            Err(_) => self.wide_words.words.pin().get(&WideRef(self.number, hash)).map(|&word| Word::Wide(word)),
        }
    }

    /// Makes a word stand for a hash of another length than 8. For the writer.
    pub(super) fn add_wide(&self, hash: &[u8], word: u64) {
        self.wide_words.words.pin().insert((self.number, hash.into()), word);
    }

    /// For the writer.
    pub(super) fn remove_wide(&self, hash: &[u8]) {
        self.wide_words.words.pin().remove(&WideRef(self.number, hash));
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
