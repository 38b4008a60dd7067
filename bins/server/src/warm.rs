//! The index on disk: read once at start, written now and then and when the server ends.
//!
//! ```text
//!  Index ──save──> FILE.new ──sync──> rename to FILE ──sync of the folder
//!  FILE ──restore──> Index        whatever is wrong with it: a line in the log, and an empty index
//! ```
//!
//! FILE is whole at every moment: a process that dies while it writes leaves the one before it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use inferencecache_core::index::{ImageSize, RestoreError};
use inferencecache_core::{Index, IndexOptions};
use inferencecache_wire::metrics::{Metrics, Restored};

/// Where, and how often.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotFile {
    pub(crate) path: PathBuf,
    pub(crate) every: Duration,
}

/// Keeps a file up to date.
#[derive(Debug)]
pub(crate) struct Keeper {
    file: SnapshotFile,
    index: Arc<Index>,
    metrics: Arc<Metrics>,
    /// One write at a time.
    writing: Mutex<()>,
}

/// The index of a file, or an empty one. Blocks.
pub(crate) fn restore(file: &Path, options: IndexOptions, metrics: &Metrics) -> Index {
    let began = Instant::now();
    let outcome = match open(file) {
        Ok(Some(open)) => Index::restore(options.clone(), BufReader::with_capacity(256 << 10, open)),
        Ok(None) => {
            tracing::info!(file = %file.display(), "index_snapshot_absent");
            metrics.index_restored(Restored::Absent, 0);
            return Index::new(options);
        }
        Err(why) => Err(RestoreError::Io(why)),
    };
    match outcome {
        Ok((index, ImageSize { entries, bytes })) => {
            let took_ms = millis(began);
            tracing::info!(file = %file.display(), entries, bytes, took_ms, "index_snapshot_restored");
            metrics.index_restored(Restored::Ok, entries);
            index
        }
        Err(why) => {
            let effect = "the index starts empty; the file is replaced with the next one";
            tracing::warn!(file = %file.display(), err = %why, effect, "index_snapshot_ignored");
            metrics.index_restored(Restored::Ignored, 0);
            Index::new(options)
        }
    }
}

/// Nothing if there is no such file.
fn open(file: &Path) -> io::Result<Option<File>> {
    match fs::metadata(file) {
        Ok(found) if found.is_file() => File::open(file).map(Some),
        Ok(_) => Err(io::Error::other("not a regular file")),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

impl Keeper {
    pub(crate) fn new(file: SnapshotFile, index: Arc<Index>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { file, index, metrics, writing: Mutex::new(()) })
    }

    /// Writes the file again and again.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.file.every).await;
            self.clone().write().await;
        }
    }

    /// Writes the file, after the write that is under way.
    pub(crate) async fn write(self: Arc<Self>) {
        // Fails only if it panicked, which has been logged then.
        let _ = tokio::task::spawn_blocking(move || self.write_now()).await;
    }

    fn write_now(&self) {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let path = &self.file.path;
        match replace(path, &self.index) {
            Ok(ImageSize { entries, bytes }) => {
                tracing::debug!(file = %path.display(), entries, bytes, took_ms = millis(began), "index_snapshot_saved");
                self.metrics.index_saved(Some(bytes));
            }
            Err(why) => {
                let effect = "the one before it stays, if there is one";
                tracing::warn!(file = %path.display(), err = %why, effect, "index_snapshot_failed");
                self.metrics.index_saved(None);
            }
        }
    }
}

/// Writes beside the file, and puts it in its place only once it is on the disk.
fn replace(path: &Path, index: &Index) -> io::Result<ImageSize> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    // It names tenants: nobody else's business.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    let mut to = BufWriter::with_capacity(256 << 10, file);
    let size = index.save(&mut to)?;
    to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&aside, path)?;
    // The name is on the disk once its folder is.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(size)
}

fn millis(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
