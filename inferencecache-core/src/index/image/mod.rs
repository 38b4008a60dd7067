//! The index as a stream of bytes, to be kept somewhere and read back after a restart.
//!
//! ```text
//!  Index ──save──> frames ──> io::Write … io::Read ──> frames ──restore──> Index
//!           64 KiB a lock                               all or nothing
//! ```
//!
//! * An image holds what is held: entries with last-seen time, tier, tokens and use count, and load figures. Orders, counts
//!   and tables are made again. At rest, the restored index answers as the saved one does after a sweep.
//! * While others write, each page is copied as it is at one moment, but not all at the same one. A block that moves to
//!   another page meanwhile may be in the image twice or not at all; the later copy of an entry wins.
//! * Times are those of the wall. What has outlived its TTL since does not come back.
//! * Lookups that were answered before a restart credit nothing after it.
//! * A reader trusts nothing: a damaged image is refused whole, and memory grows with what is there.

pub(in crate::index) mod codec;
mod frame;

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::ops::Bound;

use crate::index::books::Change;
use crate::index::ledger::{Copied, Restored};
use crate::index::report::Report;
use crate::index::writer::StatKey;
use crate::index::{Index, IndexApi, IndexOptions};

use codec::{Bytes, PageImage, Put, put_stats, read_stats};
use frame::{FrameReader, FrameWriter};

const PAGES: u8 = 1;
const STATS: u8 = 2;
/// Stats rows of a frame.
const ROWS: usize = 256;

/// What an image held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImageSize {
    /// Storage entries. Of a restored index: those that are still alive.
    pub entries: u64,
    /// Bytes of the image.
    pub bytes: u64,
}

/// Why an image cannot be restored. Whatever the reason, an empty index is as good as any after a restart.
#[derive(Debug)]
pub enum RestoreError {
    /// Reading failed.
    Io(io::Error),
    /// It does not begin as an image does.
    NotAnImage,
    /// It was written in another version of the format.
    Version(u32),
    /// It is not what was written.
    Damaged(&'static str),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(why) => write!(f, "cannot read it: {why}"),
            Self::NotAnImage => f.write_str("not an image of an index"),
            Self::Version(found) => write!(f, "version {found} of the format; only {} is read", frame::VERSION),
            Self::Damaged(how) => write!(f, "damaged: {how}"),
        }
    }
}

impl std::error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(why) => Some(why),
            _ => None,
        }
    }
}

const ODD: RestoreError = RestoreError::Damaged("a frame no index writes");

impl Index {
    /// Writes an image of everything the index holds. Readers and writers go on meanwhile: the lock is held for about
    /// 64 KiB at a time, and no more than that is kept in memory, unless one page is larger.
    ///
    /// # Errors
    /// Those of `to`. What was written then is no image.
    pub fn save(&self, to: impl Write) -> io::Result<ImageSize> {
        let mut frames = FrameWriter::begin(to)?;
        let mut entries = 0;
        let partitions: Vec<_> = {
            let writer = self.writer.lock();
            writer.partitions().map(|(pid, ledger)| (pid, ledger.shared.clone())).collect()
        };
        let (mut copied, mut payload) = (Copied::default(), Vec::new());
        for (pid, shared) in partitions {
            let mut next = Some(0);
            while let Some(from) = next {
                copied.clear();
                next = self.writer.lock().same_ledger(pid, &shared).and_then(|ledger| ledger.copy(from, &mut copied));
                if copied.replicas.is_empty() {
                    continue;
                }
                payload.clear();
                let (tenant, model, scheme, adapter) = shared.key.names();
                [tenant, model, scheme, adapter].iter().for_each(|name| payload.put_bytes(name.as_bytes()));
                payload.put_u32(u32::try_from(copied.replicas.len()).unwrap_or(u32::MAX));
                copied.replicas.iter().for_each(|id| payload.put_bytes(id.as_bytes()));
                payload.extend_from_slice(&copied.pages);
                frames.frame(PAGES, &payload)?;
                entries += copied.entries;
            }
        }
        let mut after: Option<StatKey> = None;
        loop {
            payload.clear();
            let last = self.copy_stats(after.as_ref(), &mut payload);
            if last.is_none() {
                break;
            }
            after = last;
            frames.frame(STATS, &payload)?;
        }
        Ok(ImageSize { entries, bytes: frames.end()? })
    }

    /// Appends the rows that come next in order of liveness. Yields the last of them.
    fn copy_stats(&self, after: Option<&StatKey>, payload: &mut Vec<u8>) -> Option<StatKey> {
        let writer = self.writer.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for key in writer.stat_order.range((from, Bound::Unbounded)).take(ROWS) {
            let model = writer.tenants.get(&key.tenant).and_then(|tenant| tenant.models.get(&key.model));
            if let Some(row) = model.and_then(|model| model.members.get(&key.replica)?.stats()) {
                put_stats(payload, [&key.tenant, &key.model, &key.replica], &row);
            }
            last = Some(key);
        }
        last.cloned()
    }

    /// An index that holds what an image does, less what has outlived its TTL or does not fit into the bounds of `options`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn restore(options: IndexOptions, from: impl Read) -> Result<(Self, ImageSize), RestoreError> {
        let index = Self::new(options);
        let mut frames = FrameReader::begin(from)?;
        let mut report = Report::default();
        while let Some((kind, payload)) = frames.next()? {
            let whole = match kind {
                PAGES => index.restore_pages(Bytes(payload), &mut report),
                STATS => index.restore_stats(Bytes(payload)),
                _ => None,
            };
            whole.ok_or(ODD)?;
        }
        index.sweep();
        index.trim_stats();
        index.enforce_cap(&mut report);
        index.tell("", report);
        let size = ImageSize { entries: index.storage_entries().0, bytes: frames.bytes() };
        Ok((index, size))
    }

    fn restore_pages(&self, mut from: Bytes<'_>, report: &mut Report) -> Option<()> {
        let names = (from.text()?, from.text()?, from.text().filter(|scheme| !scheme.is_empty())?, from.text()?);
        let number = from.u32()? as usize;
        // Each takes at least the four bytes of its length.
        if number == 0 || number > from.0.len() / 4 {
            return None;
        }
        let mut replicas = Vec::with_capacity(number);
        for _ in 0..number {
            replicas.push(from.text().filter(|id| !id.is_empty())?);
        }
        if replicas.iter().collect::<HashSet<_>>().len() < number {
            return None;
        }
        let mut covered = vec![0; number];
        let mut change = Change::default();
        let mut writer = self.writer.lock();
        let places: Vec<_> = replicas.iter().map(|replica| writer.place(&self.ground, names, replica)).collect();
        let pid = places.first()?.0;
        let ledger = writer.ledger(pid)?;
        let mut restored = Restored::of(places.into_iter().map(|(_, slot)| slot));
        let mut page = PageImage::new();
        let mut whole = Some(());
        while whole.is_some() && !from.is_empty() {
            whole = page.read(&mut from, &mut covered);
            if whole.is_some() {
                ledger.restore(&page, &mut restored);
            }
        }
        ledger.end_restore(&restored, &mut change);
        ledger.commit();
        let key = ledger.key.clone();
        writer.settle(&self.ground, &key, &mut change, report);
        writer.sync(&self.ground, pid);
        whole
    }

    fn restore_stats(&self, mut from: Bytes<'_>) -> Option<()> {
        let mut writer = self.writer.lock();
        while !from.is_empty() {
            let ([tenant, model, replica], row) = read_stats(&mut from)?;
            writer.member(&self.ground, tenant, model, replica);
            writer.set_stats(&self.ground, tenant, model, replica, Some(row));
        }
        Some(())
    }
}
