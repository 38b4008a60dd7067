//! Events (`events.k8s.io/v1`) about objects, written beside the work that causes them.
//!
//! ```text
//!  reconcile ── publish ──▶ bounded queue ──▶ Writer ──▶ API server
//!               never waits    full: dropped     │ create, or count up what was written lately
//!               never fails    and counted       └ Memory: bounded, 6 minutes
//! ```
//!
//! 1. Publishing never blocks and never fails: an Event is best effort.
//! 2. Events of one queue are written in the order they were published.
//! 3. The same Event again within [`WINDOW`] becomes a series of the first one, so a flapping object costs one object.
//! 4. An Event with a name of its own exists once: where it exists already, nothing is written.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use prometheus::{IntCounterVec, Opts};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::text;

/// Events that may wait; what comes beyond is dropped and counted as `dropped`.
pub const QUEUE: usize = 4096;
/// Events that are remembered to be counted up; beyond, the oldest is forgotten.
pub const REMEMBERED: usize = 4096;
/// How long after its last occurrence an Event is still counted up.
pub const WINDOW: Duration = Duration::from_mins(6);
/// Longest note, in bytes, as the API server has it.
pub const NOTE_BYTES: usize = 1024;
/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(10);
/// Waits before an Event is tried again; then it is given up and counted as `failed`.
const RETRIES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// How long what is queued may take at the end.
const FAREWELL: Duration = Duration::from_secs(3);

/// How an Event is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// To know.
    Normal,
    /// To look at.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An Event to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// `reportingController`.
    pub controller: &'static str,
    /// What it is about. Its namespace is that of the Event, `default` for objects without one.
    pub regarding: ObjectReference,
    /// What else is concerned.
    pub related: Option<ObjectReference>,
    /// How it is shown.
    pub severity: Severity,
    /// Why, in one word; `action` too.
    pub reason: String,
    /// Why, for people; cut to [`NOTE_BYTES`].
    pub note: String,
    /// Name of the Event object. `None`: one is made up. With a name it is written once for ever: existing is success.
    pub name: Option<String>,
}

/// Takes Events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Note>,
    counts: IntCounterVec,
}

impl Recorder {
    /// A recorder and the writer that empties its queue. `instance` is `reportingInstance`: the name of the Pod or host.
    ///
    /// # Errors
    /// The metric cannot be made; a test rules this out.
    pub fn new(client: Client, instance: &str) -> Result<(Self, Writer), prometheus::Error> {
        let counts = IntCounterVec::new(
            Opts::new("inferencecache_controller_events_total", "Kubernetes Events by what became of them."),
            &["result"],
        )?;
        let (queue, notes) = mpsc::channel(QUEUE);
        let recorder = Self { queue, counts: counts.clone() };
        let instance = text::cut(if instance.is_empty() { "controller" } else { instance }, 128);
        Ok((recorder, Writer { client, instance, notes, counts, memory: Memory::default() }))
    }

    /// What became of the Events, by `result`: `created`, `repeated`, `failed`, `dropped`. To be registered.
    #[must_use]
    pub fn counts(&self) -> &IntCounterVec {
        &self.counts
    }

    /// Queues an Event, or drops it when the queue is full or nobody writes any more.
    pub fn publish(&self, note: Note) {
        if self.queue.try_send(note).is_err() {
            self.counts.with_label_values(&["dropped"]).inc();
        }
    }
}

/// Writes what a [`Recorder`] was told.
pub struct Writer {
    client: Client,
    instance: String,
    notes: mpsc::Receiver<Note>,
    counts: IntCounterVec,
    memory: Memory,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("instance", &self.instance).field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Writer {
    /// Writes until `stop`, then what is queued, for three seconds at most.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let note = tokio::select! {
                () = stop.cancelled() => break,
                note = self.notes.recv() => note,
            };
            let Some(note) = note else { return };
            tokio::select! {
                () = self.write(&note) => {}
                () = async { stop.cancelled().await; sleep(FAREWELL).await } => break,
            }
        }
        self.notes.close();
        let rest = async {
            while let Some(note) = self.notes.recv().await {
                self.write(&note).await;
            }
        };
        let _ = timeout(FAREWELL, rest).await;
    }

    async fn write(&mut self, note: &Note) {
        let mut waits = RETRIES.iter();
        let result = loop {
            match timeout(ANSWER, self.attempt(note)).await {
                Ok(Ok(result)) => break result,
                Ok(Err(why)) if is_final(&why) => {
                    tracing::debug!(reason = note.reason, error = %why, "event refused");
                    break "failed";
                }
                Ok(Err(_)) | Err(_) => match waits.next() {
                    Some(wait) => sleep(*wait).await,
                    None => {
                        tracing::warn!(reason = note.reason, "event given up");
                        break "failed";
                    }
                },
            }
        };
        self.counts.with_label_values(&[result]).inc();
    }

    async fn attempt(&mut self, note: &Note) -> Result<&'static str, kube::Error> {
        let namespace = note.regarding.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let now = Timestamp::now();
        let key = Key::of(note);
        if note.name.is_none()
            && let Some((name, count)) = self.memory.again(&key, Instant::now())
        {
            let series = EventSeries { count, last_observed_time: MicroTime(now) };
            let patch = serde_json::json!({"series": series});
            match events.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => {
                    self.memory.keep(key, name, count, Instant::now());
                    return Ok("repeated");
                }
                // It has expired: the next one is the first again.
                Err(kube::Error::Api(status)) if status.code == 404 => self.memory.forget(&key),
                Err(why) => return Err(why),
            }
        }
        let name = note.name.clone().unwrap_or_else(|| made_up(note, now));
        match events.create(&PostParams::default(), &self.event(note, namespace, &name, now)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 && note.name.is_some() => return Ok("repeated"),
            Err(why) => return Err(why),
        }
        if note.name.is_none() {
            self.memory.keep(key, name, 1, Instant::now());
        }
        Ok("created")
    }

    fn event(&self, note: &Note, namespace: &str, name: &str, now: Timestamp) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(note.controller.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(note.reason.clone()),
            reason: Some(note.reason.clone()),
            type_: Some(note.severity.as_str().to_owned()),
            note: Some(text::cut(&note.note, NOTE_BYTES)),
            regarding: Some(note.regarding.clone()),
            related: note.related.clone(),
            ..Event::default()
        }
    }
}

/// Whether trying again is of no use: the API server understood and refused.
fn is_final(why: &kube::Error) -> bool {
    matches!(why, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 404 | 405 | 409 | 422))
}

/// `<object>.<time in hex>`: two Events of one object do not fall into one nanosecond, because one writer writes them.
fn made_up(note: &Note, now: Timestamp) -> String {
    let object = note.regarding.name.as_deref().unwrap_or("object");
    let mut end = object.len().min(220);
    while !object.is_char_boundary(end) {
        end -= 1;
    }
    let object = object.get(..end).unwrap_or_default().trim_end_matches(['.', '-']);
    format!("{object}.{:x}", now.as_nanosecond())
}

/// What makes two Events the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    controller: &'static str,
    object: (String, String, String, String),
    severity: &'static str,
    reason: String,
    note: String,
}

impl Key {
    fn of(note: &Note) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let object = &note.regarding;
        Self {
            controller: note.controller,
            object: (text(&object.kind), text(&object.namespace), text(&object.name), text(&object.uid)),
            severity: note.severity.as_str(),
            reason: note.reason.clone(),
            note: text::cut(&note.note, NOTE_BYTES),
        }
    }
}

/// What was written lately.
#[derive(Debug, Default)]
struct Memory {
    entries: HashMap<Key, Entry>,
    /// By age: the turn in which an entry was kept last.
    ages: BTreeMap<u64, Key>,
    turn: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    count: i32,
    last: Instant,
    turn: u64,
}

impl Memory {
    /// Name of the same Event if it was written within the window, and what its count becomes.
    fn again(&self, key: &Key, now: Instant) -> Option<(String, i32)> {
        let entry = self.entries.get(key)?;
        (now.duration_since(entry.last) <= WINDOW).then(|| (entry.name.clone(), entry.count.saturating_add(1)))
    }

    fn keep(&mut self, key: Key, name: String, count: i32, now: Instant) {
        self.forget(&key);
        while self.entries.len() >= REMEMBERED {
            let Some((_, oldest)) = self.ages.pop_first() else { break };
            self.entries.remove(&oldest);
        }
        self.turn += 1;
        self.ages.insert(self.turn, key.clone());
        self.entries.insert(key, Entry { name, count, last: now, turn: self.turn });
    }

    fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.ages.remove(&entry.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &str, reason: &str, text: &str) -> Note {
        Note {
            controller: "test",
            regarding: ObjectReference {
                name: Some(name.to_owned()),
                uid: Some(format!("uid-of-{name}")),
                ..ObjectReference::default()
            },
            related: None,
            severity: Severity::Normal,
            reason: reason.to_owned(),
            note: text.to_owned(),
            name: None,
        }
    }

    #[test]
    fn the_same_event_within_the_window_is_counted_up() {
        let mut memory = Memory::default();
        let start = Instant::now();
        let key = Key::of(&note("a", "R", "n"));
        assert_eq!(memory.again(&key, start), None);
        memory.keep(key.clone(), "a.1".to_owned(), 1, start);
        assert_eq!(memory.again(&key, start + WINDOW), Some(("a.1".to_owned(), 2)));
        assert_eq!(memory.again(&key, start + WINDOW + Duration::from_secs(1)), None, "too long ago");
        for other in [note("b", "R", "n"), note("a", "S", "n"), note("a", "R", "m")] {
            assert_eq!(memory.again(&Key::of(&other), start), None, "{other:?}");
        }
    }

    #[test]
    fn the_memory_is_bounded_and_forgets_the_oldest() {
        let mut memory = Memory::default();
        let now = Instant::now();
        for number in 0..=REMEMBERED {
            memory.keep(Key::of(&note(&number.to_string(), "R", "n")), String::new(), 1, now);
            // Kept again, the first is no longer the oldest.
            memory.keep(Key::of(&note("0", "R", "n")), String::new(), 1, now);
        }
        assert_eq!((memory.entries.len(), memory.ages.len()), (REMEMBERED, REMEMBERED));
        assert!(memory.again(&Key::of(&note("0", "R", "n")), now).is_some());
        assert!(memory.again(&Key::of(&note("1", "R", "n")), now).is_none());
    }

    #[test]
    fn a_name_fits_whatever_the_object_is_called() {
        let now = Timestamp::now();
        let name = made_up(&note(&"n".repeat(253), "R", "n"), now);
        assert!(name.len() <= 253, "{name}");
        assert!(made_up(&note(&format!("{}.b", "n".repeat(219)), "R", "n"), now).contains("n."), "no two dots");
    }
}
