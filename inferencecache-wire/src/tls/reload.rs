//! Something built from files, and built again when they change.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::{MAX_FILE, READ_TIMEOUT, TlsError};

/// How often files that stay unusable are complained about again.
const REMIND: Duration = Duration::from_secs(60);
/// How often files that change while they are read are read again at once.
const TRIES: usize = 4;

/// What a look at the files has changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reload<'a, T> {
    /// The new content is in use.
    Replaced(&'a T),
    /// The new content cannot be used, the last good one stays. Said once for each content, and again every minute.
    Refused(&'a TlsError),
    /// The files hold again what is in use.
    Restored,
}

/// Knows its files and what to make of them.
pub(super) trait Recipe: Send + Sync + 'static {
    type Product: Send + Sync + 'static;
    /// The files, in a fixed order.
    fn paths(&self) -> Vec<PathBuf>;
    /// Makes the product of their contents, given in the same order.
    fn build(&self, contents: &[Vec<u8>]) -> Result<Self::Product, TlsError>;
    /// Whether `next` may take the place of `current`.
    fn succeeds(&self, _current: &Self::Product, _next: &Self::Product) -> Result<(), TlsError> {
        Ok(())
    }
}

type Observer<T> = Box<dyn Fn(Reload<'_, T>) + Send + Sync>;
type Sum = [u8; 32];

/// The product of a recipe, as fresh as its files.
pub(super) struct Reloading<R: Recipe> {
    shared: Arc<Shared<R>>,
    /// One look at a time. A look that hangs keeps its turn, so that there is never more than one hanging thread.
    turn: Arc<Mutex<Seen>>,
}

struct Shared<R: Recipe> {
    recipe: R,
    paths: Vec<PathBuf>,
    current: RwLock<Arc<R::Product>>,
    observer: Observer<R::Product>,
}

/// What the files held when last looked at.
struct Seen {
    good: Sum,
    bad: Option<(Sum, Instant)>,
}

impl<R: Recipe> Reloading<R> {
    /// Reads the files for the first time. `observer` hears of each later change, on a thread that may block.
    pub(super) async fn load(
        recipe: R,
        observer: impl Fn(Reload<'_, R::Product>) + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let paths = recipe.paths();
        let read = tokio::task::spawn_blocking(move || {
            let (sum, contents) = read_settled(&paths)?;
            let product = recipe.build(&contents)?;
            Ok((sum, product, recipe, paths))
        });
        let (good, product, recipe, paths) = match read.await {
            Ok(read) => read?,
            Err(_) => return Err(TlsError::Unsettled), // the runtime is ending
        };
        let current = RwLock::new(Arc::new(product));
        let shared = Arc::new(Shared { recipe, paths, current, observer: Box::new(observer) });
        Ok(Self { shared, turn: Arc::new(Mutex::new(Seen { good, bad: None })) })
    }

    /// The product that was last found good.
    pub(super) fn current(&self) -> Arc<R::Product> {
        self.shared.current.read().clone()
    }

    /// Looks at the files, and gives the product of what they hold now if it is good.
    pub(super) async fn fresh(&self) -> Arc<R::Product> {
        let deadline = Instant::now() + READ_TIMEOUT;
        if let Ok(mut seen) = timeout_at(deadline, self.turn.clone().lock_owned()).await {
            let shared = self.shared.clone();
            let look = tokio::task::spawn_blocking(move || shared.look(&mut seen));
            let _ = timeout_at(deadline, look).await; // too late: what was found is used by the next
        }
        self.current()
    }
}

impl<R: Recipe> Shared<R> {
    fn look(&self, seen: &mut Seen) {
        let sum = match read(&self.paths) {
            Ok((sum, _)) => sum,
            Err(why) => return self.refuse(seen, &why, None),
        };
        if sum == seen.good {
            return self.unchanged(seen);
        }
        if seen.still_bad(sum) {
            return;
        }
        let (sum, contents) = match read_settled(&self.paths) {
            Ok(read) => read,
            Err(why) => return self.refuse(seen, &why, None),
        };
        // The first look may have met a set half put back.
        if sum == seen.good {
            return self.unchanged(seen);
        }
        let built = self.recipe.build(&contents).and_then(|next| {
            let current = self.current.read().clone();
            self.recipe.succeeds(&current, &next).map(|()| next)
        });
        match built {
            Ok(product) => {
                let product = Arc::new(product);
                *seen = Seen { good: sum, bad: None };
                *self.current.write() = product.clone();
                (self.observer)(Reload::Replaced(&product));
            }
            Err(why) => self.refuse(seen, &why, Some(sum)),
        }
    }

    /// The files hold what is in use.
    fn unchanged(&self, seen: &mut Seen) {
        if seen.bad.take().is_some() {
            (self.observer)(Reload::Restored);
        }
    }

    /// Complains, unless it has done so lately about the same content, or for the same reason where nothing could be read.
    fn refuse(&self, seen: &mut Seen, why: &TlsError, content: Option<Sum>) {
        let sum = content.unwrap_or_else(|| Sha256::digest(why.full()).into());
        if !seen.still_bad(sum) {
            seen.bad = Some((sum, Instant::now()));
            (self.observer)(Reload::Refused(why));
        }
    }
}

impl Seen {
    /// Whether that content has been complained about not long ago.
    fn still_bad(&self, sum: Sum) -> bool {
        self.bad.is_some_and(|(bad, said)| bad == sum && said.elapsed() < REMIND)
    }
}

/// All files, read until two readings in a row agree: a set of files is not replaced in one step.
fn read_settled(paths: &[PathBuf]) -> Result<(Sum, Vec<Vec<u8>>), TlsError> {
    let mut last = read(paths)?;
    for _ in 1..TRIES {
        let again = read(paths)?;
        if again.0 == last.0 {
            return Ok(again);
        }
        last = again;
    }
    Err(TlsError::Unsettled)
}

fn read(paths: &[PathBuf]) -> Result<(Sum, Vec<Vec<u8>>), TlsError> {
    let contents: Vec<_> = paths.iter().map(|path| read_file(path)).collect::<Result<_, _>>()?;
    let mut sum = Sha256::new();
    for content in &contents {
        sum.update((content.len() as u64).to_le_bytes());
        sum.update(content);
    }
    Ok((sum.finalize().into(), contents))
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut content = Vec::new();
    // To open a pipe is to wait for whoever writes to it.
    let regular = std::fs::metadata(path).and_then(|found| {
        if found.is_file() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")) }
    });
    let read = regular.and_then(|()| File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut content));
    match read {
        Ok(length) if length as u64 > MAX_FILE => Err(TlsError::TooLarge { path: path.to_owned() }),
        Ok(_) => Ok(content),
        Err(source) => Err(TlsError::Read { path: path.to_owned(), source }),
    }
}
