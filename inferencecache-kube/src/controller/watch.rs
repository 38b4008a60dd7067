//! Watches that wake somebody up: metadata alone, nothing kept, and never silent for long.
//!
//! What woke us is read anew by whoever acts, so a watch needs no store: its memory is one page of metadata while it lists.
//!
//! 1. A watch is asked for [`PERIOD`] at most, and given up from this side a few seconds after that: one that a middleman froze
//!    is replaced. Every replacement resumes; where it cannot, everything is listed and woken again.
//! 2. Each kind has its own backoff, with a cap: one kind that fails holds up no other, and one that does not exist yet is
//!    asked for again until it does.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Longest life of a watch request, in seconds. Middlemen forget idle connections after 240.
pub const PERIOD: u32 = 180;
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

/// Follows a kind until `stop`.
pub async fn follow<K>(
    api: Api<PartialObjectMeta<K>>,
    stop: &CancellationToken,
    mut tell: impl FnMut(Seen<'_, PartialObjectMeta<K>>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let kind = K::kind(&());
    let config = watcher::Config::default().timeout(PERIOD).page_size(PAGE);
    let mut events = pin!(watcher(api, config));
    let mut failures = 0_u32;
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        let why = match event {
            // Said before anything is asked.
            Some(Ok(Event::Init)) => continue,
            Some(Ok(event)) => {
                if failures > 0 {
                    tracing::info!(%kind, "watching again");
                    failures = 0;
                }
                match &event {
                    Event::InitApply(object) => tell(Seen::Present { object, listed: true }),
                    Event::Apply(object) => tell(Seen::Present { object, listed: false }),
                    Event::Delete(object) => tell(Seen::Gone(object)),
                    Event::InitDone => tell(Seen::Synced),
                    Event::Init => {}
                }
                continue;
            }
            Some(Err(why)) => why,
            None => return,
        };
        // Once a break: a kind that does not exist is no reason to fill the log.
        if failures == 0 {
            tracing::warn!(%kind, error = %why, "cannot watch");
        } else {
            tracing::debug!(%kind, error = %why, failures, "cannot watch");
        }
        let wait = FIRST_RETRY.saturating_mul(1_u32 << failures.min(8)).min(LAST_RETRY);
        failures = failures.saturating_add(1);
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(wait) => {}
        }
    }
}

/// Namespace and name of an object.
#[must_use]
pub fn key_of<K: Resource>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}
