//! Calls of the functional probe, beside the passes that want them.
//!
//! ```text
//!  pass ── view ──▶ Due ── call ──▶ task, one for an object, a few at a time
//!   ▲                                 │ answer kept here
//!   └────────── wakes the object ─────┘     pass ── view ──▶ Answered ── published ──▶ rest 30 s
//! ```
//!
//! 1. A slow server holds up nobody: a pass never waits for a call.
//! 2. One object has one call under way, and 30 s between two calls, whatever they bring. An answer that was used but could not
//!    be published does not count: the next pass calls again.
//! 3. Everything is memory of this process: one entry for each object that is probed. An object that is gone or that left
//!    Managed is forgotten, and what a call for it still brings is dropped.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::status::probe::{INTERVAL, View};
use crate::adapters::RuntimeId;
use crate::api::CacheBackend;

/// Calls under way at a time, of all objects.
const CALLS: usize = 16;
/// Longest wait for an answer, should the caller not have a shorter one.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `NAMESPACE/NAME` of the object; the answer has to repeat it.
    pub backend: String,
    /// Hash scheme of its engines.
    pub hash_scheme: String,
    /// `spec.type`, if it says something.
    pub backend_type: Option<String>,
}

impl Request {
    /// About that object.
    #[must_use]
    pub fn about(backend: &CacheBackend) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let meta = &backend.metadata;
        let runtime = RuntimeId::of(Some(backend));
        let hash_scheme = if runtime.as_str().is_empty() { RuntimeId::VLLM } else { runtime.as_str() };
        Self {
            backend: format!("{}/{}", text(&meta.namespace), text(&meta.name)),
            hash_scheme: hash_scheme.to_owned(),
            backend_type: backend.spec.cache_type.as_ref().map(ToString::to_string).filter(|name| !name.is_empty()),
        }
    }
}

/// What the server found, stage by stage: `ok`, `skipped`, `failed`, or what it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether events arrive.
    pub ingest: String,
    /// Whether lookups find them.
    pub routing: String,
    /// Whether the shared tier answers.
    pub t2: String,
    /// What went wrong, in its order.
    pub errors: Vec<StageError>,
}

/// What went wrong in a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageError {
    /// The stage.
    pub stage: String,
    /// What the server says.
    pub message: String,
}

/// An answer on its way. The error is what people get to read: what went wrong, with the status or both names where they matter.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Report, String>> + Send + 'a>>;

/// Asks the server.
///
/// **Implementers must** answer within a few seconds, count what they were told, and return an error for everything but a 2xx
/// answer that can be read and repeats [`Request::backend`]. Called for one object at a time, for several objects at once.
pub trait ProbeBackend: Send + Sync + 'static {
    /// One call.
    fn probe(&self, request: Request) -> Answer<'_>;

    /// The object is gone, and what is counted for it may go too.
    fn forget(&self, backend: &str) {
        let _ = backend;
    }
}

/// `NAMESPACE/NAME`, apart.
pub(super) type Key = (String, String);

#[derive(Debug)]
enum Call {
    Underway,
    Answered(Result<Report, String>),
    Resting,
}

#[derive(Debug)]
struct Entry {
    call: Call,
    /// Of the object: one of the same name that came after it begins anew.
    uid: String,
    began: Instant,
    /// Tells a call of ours from one that was forgotten.
    turn: u64,
}

/// The calls of all objects.
#[derive(Clone)]
pub(super) struct Desk {
    probe: Option<Arc<dyn ProbeBackend>>,
    entries: Arc<Mutex<Entries>>,
    room: Arc<Semaphore>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Entries {
    list: HashMap<Key, Entry>,
    turn: u64,
}

impl Desk {
    pub(super) fn new(probe: Option<Arc<dyn ProbeBackend>>, stop: CancellationToken) -> Self {
        Self { probe, entries: Arc::default(), room: Arc::new(Semaphore::new(CALLS)), stop }
    }

    /// What is known of the calls for an object.
    pub(super) fn view(&self, key: &Key, uid: &str, now: Instant) -> View {
        if self.probe.is_none() {
            return View::Off;
        }
        let entries = self.lock();
        let Some(entry) = entries.list.get(key).filter(|entry| entry.uid == uid) else { return View::Due };
        let rest = INTERVAL.saturating_sub(now.saturating_duration_since(entry.began));
        match &entry.call {
            Call::Underway => View::Underway,
            // Nobody wanted it while it was fresh.
            Call::Answered(_) | Call::Resting if rest.is_zero() => View::Due,
            Call::Answered(answer) => View::Answered(answer.clone()),
            Call::Resting => View::Resting(rest),
        }
    }

    /// Makes a call, unless one is under way, and then wakes the object.
    pub(super) fn call(
        &self,
        key: Key,
        uid: &str,
        request: Request,
        now: Instant,
        wake: impl FnOnce(Key) + Send + 'static,
    ) {
        let Some(probe) = self.probe.clone() else { return };
        let turn = {
            let mut entries = self.lock();
            let known = entries.list.get(&key).filter(|entry| entry.uid == uid);
            if known.is_some_and(|entry| matches!(entry.call, Call::Underway)) {
                return;
            }
            entries.turn += 1;
            let turn = entries.turn;
            entries.list.insert(key.clone(), Entry { call: Call::Underway, uid: uid.to_owned(), began: now, turn });
            turn
        };
        let desk = self.clone();
        tokio::spawn(async move {
            let answer = async {
                let _permit = desk.room.acquire().await;
                let answer = tokio::time::timeout(PATIENCE, probe.probe(request)).await;
                answer.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))
            };
            let answer = tokio::select! {
                () = desk.stop.cancelled() => return,
                answer = answer => answer,
            };
            let is_ours = {
                let mut entries = desk.lock();
                let entry = entries.list.get_mut(&key).filter(|entry| entry.turn == turn);
                entry.map(|entry| entry.call = Call::Answered(answer)).is_some()
            };
            if is_ours {
                wake(key);
            }
        });
    }

    /// The answer that a pass used was published: the object rests. Otherwise it counts for nothing.
    pub(super) fn used(&self, key: &Key, published: bool) {
        let mut entries = self.lock();
        let Some(entry) = entries.list.get_mut(key) else { return };
        if matches!(entry.call, Call::Answered(_)) {
            if published {
                entry.call = Call::Resting;
            } else {
                entries.list.remove(key);
            }
        }
    }

    /// Forgets the calls for an object; what is under way is dropped when it comes.
    pub(super) fn forget(&self, key: &Key) {
        self.lock().list.remove(key);
    }

    /// The object is gone for good.
    pub(super) fn gone(&self, key: &Key) {
        self.forget(key);
        if let Some(probe) = &self.probe {
            probe.forget(&format!("{}/{}", key.0, key.1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk")
            .field("enabled", &self.probe.is_some())
            .field("objects", &self.lock().list.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Answers after a second, and counts.
    #[derive(Default)]
    struct Server {
        calls: AtomicUsize,
        forgotten: AtomicUsize,
    }

    impl ProbeBackend for Server {
        fn probe(&self, _: Request) -> Answer<'_> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            Box::pin(async {
                tokio::time::sleep(SECOND).await;
                Ok(Report::default())
            })
        }

        fn forget(&self, _: &str) {
            self.forgotten.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn desk() -> (Arc<Server>, Desk, Key) {
        let server = Arc::new(Server::default());
        let desk = Desk::new(Some(Arc::clone(&server) as _), CancellationToken::new());
        (server, desk, ("ns".to_owned(), "cache".to_owned()))
    }

    fn ask(desk: &Desk, key: &Key) -> tokio::sync::oneshot::Receiver<Key> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let request = Request { backend: "ns/cache".to_owned(), hash_scheme: "vllm".to_owned(), backend_type: None };
        desk.call(key.clone(), "uid", request, Instant::now(), move |key| {
            let _ = tell.send(key);
        });
        told
    }

    /// controller:91,101
    #[tokio::test(start_paused = true)]
    async fn an_object_rests_once_its_answer_is_published() {
        let (server, desk, key) = desk();
        assert_eq!(desk.view(&key, "uid", Instant::now()), View::Due);
        let told = ask(&desk, &key);
        assert_eq!(desk.view(&key, "uid", Instant::now()), View::Underway);
        assert!(ask(&desk, &key).await.is_err(), "one call at a time");
        assert_eq!(told.await.as_ref(), Ok(&key), "the object is woken");
        assert_eq!(desk.view(&key, "uid", Instant::now()), View::Answered(Ok(Report::default())));
        desk.used(&key, true);
        assert_eq!(
            desk.view(&key, "uid", Instant::now()),
            View::Resting(INTERVAL - SECOND),
            "from when the call began"
        );
        tokio::time::sleep(INTERVAL).await;
        assert_eq!(desk.view(&key, "uid", Instant::now()), View::Due);

        ask(&desk, &key).await.expect("an answer");
        desk.used(&key, false);
        assert_eq!(desk.view(&key, "uid", Instant::now()), View::Due, "not published, so it counts for nothing");
        ask(&desk, &key).await.expect("an answer");
        tokio::time::sleep(INTERVAL).await;
        assert_eq!(desk.view(&key, "uid", Instant::now()), View::Due, "an answer grows old");
        assert_eq!(server.calls.load(Ordering::SeqCst), 3);
    }

    /// controller:100 field:55
    #[tokio::test(start_paused = true)]
    async fn what_is_forgotten_is_due_at_once_and_its_call_brings_nothing() {
        let (server, desk, key) = desk();
        let lost = ask(&desk, &key);
        desk.forget(&key);
        assert_eq!(desk.view(&key, "uid", Instant::now()), View::Due);
        let told = ask(&desk, &key);
        assert!(lost.await.is_err(), "nobody is woken by it");
        told.await.expect("the second call is its own");
        assert_eq!(desk.view(&key, "another", Instant::now()), View::Due, "of the same name, and another object");
        desk.gone(&key);
        assert!(desk.lock().list.is_empty());
        assert_eq!(server.forgotten.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_request_says_whom_it_is_about() {
        let backend = serde_json::json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"runtime": "SGLang"}});
        let backend: CacheBackend = serde_json::from_value(backend).expect("a backend");
        let expected = Request { backend: "n/c".to_owned(), hash_scheme: "sglang".to_owned(), backend_type: None };
        assert_eq!(Request::about(&backend), expected);
    }
}
