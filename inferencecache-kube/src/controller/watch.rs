//! Watches that wake somebody up: metadata alone, nothing kept, and never silent for long.
//!
//! ```text
//!  list, page by page ─▶ Present… Synced ─▶ watch ─▶ Present, Gone … ─▶ ends: resume where it was
//!        ▲                                                              expired: from the start
//!        └── backoff, own to the kind ◀── failed
//! ```
//!
//! What woke us is read anew by whoever acts, so a watch needs no store: its memory is one page of metadata while it lists.
//!
//! 1. A watch is asked for [`PERIOD`] at most, and given up from this side a few seconds after that: one that a middleman froze
//!    is replaced. Nothing waits longer than [`ANSWER`] for the start of an answer either; the watcher of kube's runtime does,
//!    which is why it is not used here.
//! 2. Each kind has its own backoff, with a cap: one kind that fails holds up no other, and one that does not exist yet is
//!    asked for again until it does.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Longest life of a watch request, in seconds. Middlemen forget idle connections after 240.
pub const PERIOD: u32 = 180;
/// Longest wait for a page, or for the start of a watch.
pub const ANSWER: Duration = Duration::from_secs(30);
/// How long after its end was due a watch is given up.
const MARGIN: Duration = Duration::from_secs(5);
/// A watch that ends sooner without a word has failed.
const SOON: Duration = Duration::from_secs(1);
/// First wait after a failure; it doubles with each.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest wait after a failure.
const LAST_RETRY: Duration = Duration::from_secs(15);
/// Objects in one page of a listing.
const PAGE: u32 = 250;

/// What became of an object.
#[derive(Debug)]
pub enum Seen<'a, K> {
    /// It is there.
    Present {
        /// Its metadata.
        object: &'a K,
        /// Whether it was seen by a listing, and may have been there all along.
        listed: bool,
    },
    /// It was deleted.
    Gone(&'a K),
    /// Everything that exists has been told once since the last break.
    Synced,
}

/// What is followed.
#[derive(Clone, Debug)]
pub struct Scope {
    /// A label selector; default: every object.
    pub labels: Option<String>,
    /// Longest life of a watch request, in seconds. Default [`PERIOD`].
    pub period: u32,
}

impl Default for Scope {
    fn default() -> Self {
        Self { labels: None, period: PERIOD }
    }
}

/// Why a listing or a watch ended before its time.
#[derive(Debug, thiserror::Error)]
enum Break {
    #[error("the API server refused or did not answer")]
    Failed(#[source] kube::Error),
    #[error("no answer within {ANSWER:?}")]
    Late,
    #[error("the watch ended at once")]
    AtOnce,
    /// What was seen last is too old to resume from.
    #[error("the watch has expired")]
    Expired,
}

impl From<kube::Error> for Break {
    fn from(why: kube::Error) -> Self {
        match &why {
            kube::Error::Api(status) if status.code == 410 => Self::Expired,
            _ => Self::Failed(why),
        }
    }
}

/// Follows a kind until `stop`.
pub async fn follow<K>(
    api: Api<PartialObjectMeta<K>>,
    scope: &Scope,
    stop: &CancellationToken,
    tell: impl FnMut(Seen<'_, PartialObjectMeta<K>>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let follower = Follower { api, scope, tell, failures: 0 };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = follower.run() => {}
    }
}

struct Follower<'a, K, F> {
    api: Api<PartialObjectMeta<K>>,
    scope: &'a Scope,
    tell: F,
    /// Without a success between them.
    failures: u32,
}

impl<K, F> Follower<'_, K, F>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    F: FnMut(Seen<'_, PartialObjectMeta<K>>),
{
    async fn run(mut self) {
        loop {
            let mut version = match self.list().await {
                Ok(version) => version,
                Err(why) => {
                    self.pause(&why).await;
                    continue;
                }
            };
            (self.tell)(Seen::Synced);
            loop {
                match self.watch(&mut version).await {
                    Ok(()) => {}
                    Err(why) => {
                        self.pause(&why).await;
                        if matches!(why, Break::Expired) {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Tells everything that exists; the version that it was seen at.
    async fn list(&mut self) -> Result<String, Break> {
        let mut params = ListParams { label_selector: self.scope.labels.clone(), ..ListParams::default() }.limit(PAGE);
        loop {
            let page = timeout(ANSWER, self.api.list(&params)).await.map_err(|_| Break::Late)??;
            for object in &page.items {
                (self.tell)(Seen::Present { object, listed: true });
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(page.metadata.resource_version.unwrap_or_default()),
            }
        }
    }

    /// One watch from that version, which it moves on.
    async fn watch(&mut self, version: &mut String) -> Result<(), Break> {
        // Zero would mean for ever.
        let period = self.scope.period.max(1);
        let params =
            WatchParams { label_selector: self.scope.labels.clone(), ..WatchParams::default() }.timeout(period);
        let began = Instant::now();
        let events = timeout(ANSWER, self.api.watch(&params, version)).await.map_err(|_| Break::Late)??;
        let mut events = std::pin::pin!(events);
        let mut heard = false;
        let silence = Duration::from_secs(u64::from(period)) + MARGIN;
        while let Ok(Some(event)) = timeout(silence, events.next()).await {
            let event = event?;
            if let WatchEvent::Error(status) = event {
                return Err(kube::Error::Api(status).into());
            }
            heard = true;
            self.good();
            let object = match &event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    (self.tell)(Seen::Present { object, listed: false });
                    object
                }
                WatchEvent::Deleted(object) => {
                    (self.tell)(Seen::Gone(object));
                    object
                }
                WatchEvent::Bookmark(bookmark) => {
                    version.clone_from(&bookmark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(_) => continue,
            };
            if let Some(seen) = object.resource_version() {
                *version = seen;
            }
        }
        if !heard && began.elapsed() < SOON {
            return Err(Break::AtOnce);
        }
        self.good();
        Ok(())
    }

    fn good(&mut self) {
        if self.failures > 0 {
            tracing::info!(kind = %K::kind(&()), "watching again");
            self.failures = 0;
        }
    }

    async fn pause(&mut self, why: &Break) {
        let cause = std::error::Error::source(why).map(ToString::to_string).unwrap_or_default();
        // Once a break: a kind that does not exist is no reason to fill the log.
        if self.failures == 0 {
            tracing::warn!(kind = %K::kind(&()), error = %why, cause, "cannot watch");
        } else {
            tracing::debug!(kind = %K::kind(&()), error = %why, cause, failures = self.failures, "cannot watch");
        }
        let wait = FIRST_RETRY.saturating_mul(1 << self.failures.min(8)).min(LAST_RETRY);
        self.failures = self.failures.saturating_add(1);
        sleep(wait).await;
    }
}

/// Namespace and name of an object.
#[must_use]
pub fn key_of<K: Resource>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}
