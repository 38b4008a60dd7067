//! Events about engine Pods: which backend wired them, or that they were left alone.
//!
//! ```text
//!  Pod appears ─▶ candidate? ─▶ queue ─▶ live Pod, live CacheBackend ─▶ Event, once for ever
//! ```
//!
//! The webhook cannot say this: at admission a Pod has no uid yet. The name of the Event is made of the Pod's uid and the reason,
//! so whoever tells it again, after a restart or as another replica, finds it told.

mod decide;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

pub use self::decide::{Claim, claim, is_candidate};
use super::pages::is_missing;
use super::queue::{End, Pace, Queue};
use super::recorder::{Note, Recorder, Severity};
use super::watch::{Scope, Seen, follow, key_of};
use crate::api::CacheBackend;
use crate::api::names::{GROUP, VERSION};

/// `reportingController` of these Events.
pub const CONTROLLER: &str = "engine-pod-events";
/// Reason: wired.
pub const INJECTED: &str = "InjectedByCacheBackend";
/// Reason: left alone.
pub const SKIPPED: &str = "SkippedByOperator";
/// Looks at a time.
const WORKERS: usize = 4;
/// For looks under way at the end.
const GRACE: Duration = Duration::from_secs(3);
/// Pods that are remembered as looked at; beyond, the oldest is forgotten and at worst looked at again.
const REMEMBERED: usize = 65_536;

/// Tells where engine Pods come from.
#[derive(Clone)]
pub struct Engines {
    client: Client,
    recorder: Recorder,
}

/// Namespace, name and uid of a Pod.
type Key = (String, String, String);

impl std::fmt::Debug for Engines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engines").finish_non_exhaustive()
    }
}

impl Engines {
    /// Tells through `recorder`.
    #[must_use]
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Self { client, recorder }
    }

    /// Tells until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let queue = Queue::new(Pace::default());
        let memory = Arc::new(Mutex::new(Memory::default()));
        let pods: Api<PartialObjectMeta<Pod>> = Api::all(self.client.clone());
        let everything = Scope::default();
        let watching = follow(pods, &everything, &stop, |seen| match seen {
            Seen::Present { object, .. } if is_candidate(object.metadata.annotations.as_ref()) => {
                let uid = object.metadata.uid.clone().unwrap_or_default();
                // Later changes of a Pod do not count.
                if memory.lock().unwrap_or_else(PoisonError::into_inner).is_new(&uid) {
                    let (namespace, name) = key_of(object);
                    queue.add((namespace, name, uid));
                }
            }
            Seen::Gone(object) => {
                let uid = object.metadata.uid.as_deref().unwrap_or_default();
                memory.lock().unwrap_or_else(PoisonError::into_inner).forget(uid);
            }
            Seen::Present { .. } | Seen::Synced => {}
        });
        let work = queue.clone().work(WORKERS, &stop, GRACE, |key| {
            let engines = self.clone();
            async move {
                match engines.look(&key).await {
                    Ok(()) => End::Done,
                    Err(why) => {
                        tracing::debug!(namespace = key.0, pod = key.1, error = %why, "cannot tell where a Pod comes from");
                        End::Failed
                    }
                }
            }
        });
        tokio::join!(watching, work);
    }

    async fn look(&self, (namespace, name, uid): &Key) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let Some(pod) = pods.get_metadata_opt(name).await?.filter(|pod| pod.metadata.uid.as_deref() == Some(uid))
        else {
            return Ok(());
        };
        match claim(pod.metadata.annotations.as_ref()) {
            Claim::Nothing => {}
            Claim::Skipped => {
                let text = format!("not wired to a cache: {} asks for it", decide::SKIP_MARK);
                self.recorder.publish(note(&pod.metadata, SKIPPED, text, None));
            }
            Claim::Injected { namespace, name, uid } => {
                let backends: Api<CacheBackend> = Api::namespaced(self.client.clone(), &namespace);
                let backend = match backends.get_metadata_opt(&name).await {
                    Err(why) if is_missing(&why) => None,
                    backend => backend?,
                };
                if backend.is_some_and(|backend| backend.metadata.uid.as_deref() == Some(&uid)) {
                    let text = format!("wired to its cache by CacheBackend {namespace}/{name}");
                    let related = ObjectReference {
                        api_version: Some(format!("{GROUP}/{VERSION}")),
                        kind: Some("CacheBackend".to_owned()),
                        namespace: Some(namespace),
                        name: Some(name),
                        uid: Some(uid),
                        ..ObjectReference::default()
                    };
                    self.recorder.publish(note(&pod.metadata, INJECTED, text, Some(related)));
                }
            }
        }
        Ok(())
    }
}

fn note(pod: &ObjectMeta, reason: &str, note: String, related: Option<ObjectReference>) -> Note {
    Note {
        controller: CONTROLLER,
        regarding: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            ..ObjectReference::default()
        },
        related,
        severity: Severity::Normal,
        reason: reason.to_owned(),
        note,
        name: Some(event_name(pod, reason)),
    }
}

/// The same for the same Pod and reason, whoever tells it.
fn event_name(pod: &ObjectMeta, reason: &str) -> String {
    let digest = Sha256::digest(format!("{}/{reason}", pod.uid.as_deref().unwrap_or_default()));
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let name = pod.name.as_deref().unwrap_or("pod");
    let name = name.get(..name.len().min(230)).unwrap_or("pod").trim_end_matches(['.', '-']);
    format!("{name}.{hex}")
}

/// Uids that were seen.
#[derive(Debug, Default)]
struct Memory {
    /// By uid, the turn in which it was seen.
    seen: HashMap<String, u64>,
    order: VecDeque<(u64, String)>,
    turn: u64,
}

impl Memory {
    fn is_new(&mut self, uid: &str) -> bool {
        if self.seen.contains_key(uid) {
            return false;
        }
        self.turn += 1;
        self.seen.insert(uid.to_owned(), self.turn);
        self.order.push_back((self.turn, uid.to_owned()));
        // What was forgotten since leaves its place in the order behind.
        while self.seen.len() > REMEMBERED || self.order.len() > 2 * REMEMBERED {
            let Some((turn, oldest)) = self.order.pop_front() else { break };
            if self.seen.get(&oldest) == Some(&turn) {
                self.seen.remove(&oldest);
            }
        }
        true
    }

    fn forget(&mut self, uid: &str) {
        self.seen.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_new_once_and_the_memory_is_bounded() {
        let mut memory = Memory::default();
        assert!(memory.is_new("a"));
        assert!(!memory.is_new("a"));
        memory.forget("a");
        assert!(memory.is_new("a"));
        for number in 0..3 * REMEMBERED {
            memory.is_new(&number.to_string());
            memory.forget(&number.to_string());
        }
        for number in 0..2 * REMEMBERED {
            memory.is_new(&number.to_string());
        }
        assert!(memory.seen.len() <= REMEMBERED && memory.order.len() <= 2 * REMEMBERED);
        assert!(memory.is_new("a"), "the oldest was forgotten");
    }

    /// controller:156
    #[test]
    fn the_same_pod_and_reason_have_one_event() {
        let pod =
            |uid: &str| ObjectMeta { uid: Some(uid.to_owned()), name: Some("n".repeat(253)), ..ObjectMeta::default() };
        assert_eq!(event_name(&pod("u"), INJECTED), event_name(&pod("u"), INJECTED));
        assert_ne!(event_name(&pod("u"), INJECTED), event_name(&pod("u"), SKIPPED));
        assert_ne!(event_name(&pod("u"), INJECTED), event_name(&pod("v"), INJECTED));
        assert!(event_name(&pod("u"), INJECTED).len() <= 253);
    }
}
