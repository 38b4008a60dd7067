//! What is remembered about each publisher.

use super::departed::Departed;
use super::places::Place;
use crate::kvevents::BlockHash;

/// One publisher: a connection and, behind it, a data-parallel rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(pub(super) u8);

impl StreamId {
    /// A small number, for tables beside the map.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Every stream that there can be, in order of appearance.
    pub(in crate::subscriber) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }
}

/// Streams that are told apart; further ones share the last.
const MAX_STREAMS: usize = 256;
/// KV-cache groups that are told apart in one stream; blocks of further ones are not indexed.
const MAX_GROUPS: usize = 256;
/// Root markers that are learned from one stream.
const MAX_ROOTS: usize = 16;

/// Parents that mean "none": 0, as simulators send it, and Python's hash of the empty tuple, as the oldest SGLang did.
const ROOTS: [u64; 2] = [0, 5_740_354_900_026_072_187];

#[derive(Debug)]
struct Group {
    index: i64,
    indexable: bool,
    /// Tokens of its full blocks; 0 before the first.
    size: u32,
}

#[derive(Debug)]
enum Root {
    Word(u64),
    Bytes(Box<[u8]>),
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    connection: u16,
    rank: Option<i64>,
    /// No event of the stream was missed and no block was stored yet.
    pub(super) fresh: bool,
    /// No event of the stream was missed since its beginning.
    pub(super) complete: bool,
    /// The stream tells where copies are, so that nothing need be guessed.
    pub(super) names_tiers: bool,
    /// A block was confirmed in this epoch.
    pub(super) confirmed: bool,
    /// Blocks of an older epoch are unconfirmed.
    pub(super) epoch: u16,
    /// Blocks of this stream in the map.
    pub(super) blocks: usize,
    groups: Vec<Group>,
    roots: Vec<Root>,
    departed: Departed,
}

impl Stream {
    /// Another publisher speaks from now on. Root markers stay.
    pub(super) fn renew(&mut self) {
        (self.fresh, self.complete, self.confirmed) = (false, false, false);
        self.departed = Departed::default();
    }

    /// A block of this size was stored in device memory.
    pub(super) fn note_size(&mut self, group: u8, size: u32) {
        if let Some(group) = self.groups.get_mut(usize::from(group)) {
            group.size = group.size.max(size);
        }
    }

    /// A block has left, or was said to leave.
    pub(super) fn note_departure(&mut self, group: u8, hash: BlockHash<'_>) {
        if self.complete {
            self.departed.note(group, hash);
        }
    }

    /// Whether a store that continues a block that is not known proves that a batch was lost before it was numbered.
    pub(super) fn proves_loss(&self, group: u8, parent: BlockHash<'_>, size: u32) -> bool {
        let full = self.groups.get(usize::from(group)).is_some_and(|group| group.size > 0 && size >= group.size);
        self.complete && full && !self.departed.contains(group, parent)
    }

    /// The group of a store, by its index and kind, and whether it is indexed. `wanted` overrides the kind.
    pub(super) fn group_of_store(&mut self, index: Option<i64>, kind: Option<&str>, wanted: Option<i64>) -> Option<u8> {
        let index = index.unwrap_or(0);
        let allowed = match (wanted, kind) {
            (Some(wanted), _) => Some(index == wanted),
            (None, Some(kind)) => Some(indexable(kind)),
            (None, None) => None,
        };
        let position = match self.groups.iter().position(|group| group.index == index) {
            Some(position) => position,
            None if self.groups.len() < MAX_GROUPS => {
                self.groups.push(Group { index, indexable: true, size: 0 });
                self.groups.len() - 1
            }
            None => return None,
        };
        let group = &mut self.groups[position];
        // A kind that is not indexed marks the group for good; a store without a kind follows the mark.
        group.indexable &= allowed.unwrap_or(true);
        (group.indexable && allowed.unwrap_or(true)).then(|| u8::try_from(position).ok()).flatten()
    }

    /// The group of a removal, and whether it is indexed; `None` when it was never seen.
    pub(super) fn group_of_removal(&self, index: Option<i64>) -> Option<(u8, bool)> {
        let index = index.unwrap_or(0);
        let position = self.groups.iter().position(|group| group.index == index)?;
        Some((u8::try_from(position).ok()?, self.groups[position].indexable))
    }

    /// Whether a parent stands for the start of a prompt.
    pub(super) fn is_root(&self, parent: BlockHash<'_>) -> bool {
        match parent {
            BlockHash::Word(word) if ROOTS.contains(&word) => true,
            BlockHash::Word(word) => self.roots.iter().any(|root| matches!(root, Root::Word(known) if *known == word)),
            BlockHash::Bytes(bytes) => {
                self.roots.iter().any(|root| matches!(root, Root::Bytes(known) if **known == *bytes))
            }
        }
    }

    /// Remembers that a parent stands for the start of a prompt.
    pub(super) fn learn_root(&mut self, parent: BlockHash<'_>) {
        if self.roots.len() < MAX_ROOTS {
            self.roots.push(match parent {
                BlockHash::Word(word) => Root::Word(word),
                BlockHash::Bytes(bytes) => Root::Bytes(bytes.into()),
            });
        }
    }

    pub(super) fn note_place(&mut self, place: Place) {
        self.names_tiers |= place != super::places::DEVICE;
    }
}

/// Kinds of attention whose blocks depend on the whole prefix and on nothing else.
fn indexable(kind: &str) -> bool {
    matches!(kind, "full_attention" | "mla_attention" | "sink_full_attention" | "unknown")
}

/// All publishers seen so far.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: Vec<Stream>,
}

impl Streams {
    pub(super) fn obtain(&mut self, connection: u16, rank: Option<i64>) -> (StreamId, bool) {
        let known = self.streams.iter().position(|stream| stream.connection == connection && stream.rank == rank);
        let (position, new) = match known {
            Some(position) => (position, false),
            None if self.streams.len() < MAX_STREAMS => {
                self.streams.push(Stream { connection, rank, ..Stream::default() });
                (self.streams.len() - 1, true)
            }
            None => (MAX_STREAMS - 1, false),
        };
        (StreamId(u8::try_from(position).unwrap_or(u8::MAX)), new)
    }

    pub(super) fn find(&self, connection: u16, rank: Option<i64>) -> Option<StreamId> {
        let mut streams = StreamId::all().zip(&self.streams);
        streams.find(|(_, stream)| stream.connection == connection && stream.rank == rank).map(|(id, _)| id)
    }

    pub(super) fn get(&self, id: StreamId) -> &Stream {
        &self.streams[id.index()]
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> &mut Stream {
        &mut self.streams[id.index()]
    }

    pub(super) fn of_connection(&self, connection: u16) -> impl Iterator<Item = StreamId> + use<> {
        let ids: Vec<StreamId> = StreamId::all()
            .zip(&self.streams)
            .filter(|(_, stream)| stream.connection == connection)
            .map(|(id, _)| id)
            .collect();
        ids.into_iter()
    }

    /// The streams of an engine: of its rank, or of its connection where no rank is named. `None` means all.
    pub(super) fn of_engine(&self, engine: Option<i64>) -> Vec<StreamId> {
        let meant =
            |stream: &Stream| engine.is_none_or(|engine| stream.rank.unwrap_or(i64::from(stream.connection)) == engine);
        (0..=u8::MAX).zip(&self.streams).filter(|(_, stream)| meant(stream)).map(|(id, _)| StreamId(id)).collect()
    }

    /// Blocks of all other streams.
    pub(super) fn blocks_outside(&self, ids: &[StreamId]) -> usize {
        let others = self.streams.iter().enumerate().filter(|(index, _)| !ids.iter().any(|id| id.index() == *index));
        others.map(|(_, stream)| stream.blocks).sum()
    }

    pub(super) fn no_blocks(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.blocks = 0);
    }

    pub(super) fn others_have_blocks(&self, id: StreamId) -> bool {
        self.streams.iter().enumerate().any(|(index, stream)| index != id.index() && stream.blocks > 0)
    }

    pub(super) fn only_ignored_groups(&self) -> bool {
        let mut groups = self.streams.iter().flat_map(|stream| &stream.groups).peekable();
        groups.peek().is_some() && groups.all(|group| !group.indexable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_judged_by_its_kind_and_the_judgement_stays() {
        let mut stream = Stream::default();
        assert_eq!(stream.group_of_store(None, None, None), Some(0));
        assert_eq!(stream.group_of_store(Some(1), Some("mamba"), None), None);
        assert_eq!(stream.group_of_store(Some(1), None, None), None);
        assert_eq!(stream.group_of_store(Some(2), Some("mla_attention"), None), Some(2));
        assert_eq!(stream.group_of_store(Some(2), None, None), Some(2));
        assert_eq!(stream.group_of_removal(Some(1)), Some((1, false)));
        assert_eq!(stream.group_of_removal(Some(7)), None);
    }

    #[test]
    fn a_wanted_group_is_indexed_whatever_its_kind() {
        let mut stream = Stream::default();
        assert_eq!(stream.group_of_store(None, Some("full_attention"), Some(1)), None);
        assert_eq!(stream.group_of_store(Some(1), Some("sliding_window"), Some(1)), Some(1));
    }

    #[test]
    fn streams_groups_and_roots_are_bounded() {
        let mut streams = Streams::default();
        for rank in 0..1000 {
            let (id, _) = streams.obtain(0, Some(rank));
            let stream = streams.get_mut(id);
            for group in 0..300 {
                stream.group_of_store(Some(group), None, None);
                stream.learn_root(BlockHash::Word(group.cast_unsigned()));
            }
            assert_eq!((stream.groups.len(), stream.roots.len()), (MAX_GROUPS, MAX_ROOTS));
        }
        assert_eq!(streams.streams.len(), MAX_STREAMS);
    }
}
