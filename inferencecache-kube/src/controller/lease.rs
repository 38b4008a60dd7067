//! Leader election on a Lease.
//!
//! ```text
//!  acquire ── nobody's, or not renewed for its duration ──▶ hold ── stop ──▶ release: the next one need not wait
//!                                                             └── lost ──▶ the process ends
//! ```
//!
//! 1. Whether a lease has run out is judged by how long *we* have seen it unchanged, never by the clock of its holder.
//! 2. A renewal counts from when it was asked for. Writes pass the [`Fence`] only while the last one is young enough, so a holder
//!    that cannot renew, or does not run, is shut out before anybody else may take over.
//! 3. A lease that was lost is not asked for again: the term of a process is over for good.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::fence::Fence;

/// Longest wait for the lease to be given back: whoever told us to end waits too.
const RELEASE: Duration = Duration::from_secs(2);

/// Name of the Lease.
pub const NAME: &str = "inference-cache-controller-leader-lock";
/// Longest wait for one answer while there is nothing to lose.
const ANSWER: Duration = Duration::from_secs(5);

/// Who wants to lead, and at what pace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name that tells this process from every other one.
    pub identity: String,
    /// How long others wait for a holder that does not renew. Default 15 s.
    pub duration: Duration,
    /// How long the holder may write after a renewal; shorter than `duration`. Default 10 s.
    pub renew_deadline: Duration,
    /// Time between two tries. Default 2 s.
    pub retry: Duration,
}

impl Options {
    /// The default pace.
    #[must_use]
    pub fn new(namespace: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// How a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// Somebody else leads, or may by now.
    Lost,
}

/// What to do about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Take,
    Renew,
    Wait,
}

/// `unchanged`: for how long the lease has been seen as it is.
fn decide(lease: Option<&LeaseSpec>, me: &str, unchanged: Duration) -> Step {
    let Some(lease) = lease else { return Step::Create };
    match lease.holder_identity.as_deref() {
        None | Some("") => Step::Take,
        Some(holder) if holder == me => Step::Renew,
        Some(_) => {
            let seconds = u64::try_from(lease.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            if unchanged >= Duration::from_secs(seconds) { Step::Take } else { Step::Wait }
        }
    }
}

/// The lease as we write it.
fn held(old: Option<&LeaseSpec>, options: &Options, now: Timestamp) -> LeaseSpec {
    let ours = old.is_some_and(|old| old.holder_identity.as_deref() == Some(&options.identity));
    let old = old.cloned().unwrap_or_default();
    let transitions = old.lease_transitions.unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(options.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(options.duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: if ours { old.acquire_time } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
        ..old
    }
}

/// Wants to lead, leads, and hands over.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    options: Options,
    fence: Fence,
    /// The version of the lease that was seen last, and since when.
    seen: Option<(String, Instant)>,
}

impl Elector {
    /// Asks with `client`, which must not pass the fence that it opens.
    #[must_use]
    pub fn new(client: Client, options: Options, fence: Fence) -> Self {
        let api = Api::namespaced(client, &options.namespace);
        Self { api, options, fence, seen: None }
    }

    /// Waits until this process leads; false if it was told to stop first.
    pub async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        let mut said = false;
        loop {
            match timeout(ANSWER, self.attempt()).await {
                Ok(Ok(true)) => {
                    tracing::info!(identity = self.options.identity, "leading");
                    return true;
                }
                Ok(Ok(false)) => {}
                Ok(Err(why)) if !said => {
                    tracing::warn!(error = %why, "cannot ask for the lease");
                    said = true;
                }
                Ok(Err(why)) => tracing::debug!(error = %why, "cannot ask for the lease"),
                Err(_) => tracing::debug!("no answer about the lease"),
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = sleep(self.options.retry) => {}
            }
        }
    }

    /// Renews until `stop`, or until the lease is lost.
    pub async fn hold(&mut self, stop: &CancellationToken) -> Ended {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ended::Stopped,
                () = sleep(self.options.retry) => {}
            }
            let remaining = self.fence.remaining();
            if remaining.is_zero() {
                tracing::error!("the lease has run out");
                return Ended::Lost;
            }
            match timeout(remaining.min(ANSWER), self.attempt()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    tracing::error!("somebody else holds the lease");
                    return Ended::Lost;
                }
                Ok(Err(why)) => tracing::warn!(error = %why, "lease not renewed"),
                Err(_) => tracing::warn!("no answer about the lease"),
            }
        }
    }

    /// Gives the lease back. Best effort: it runs out anyway.
    pub async fn release(self) {
        self.fence.shut();
        let released = timeout(RELEASE, async {
            let Some(mut lease) = self.api.get_opt(NAME).await? else { return Ok(()) };
            let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(&self.options.identity) {
                return Ok(());
            }
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            self.api.replace(NAME, &PostParams::default(), &lease).await.map(|_| ())
        });
        match released.await {
            Ok(Ok(())) => tracing::info!("lease released"),
            Ok(Err(why)) => tracing::warn!(error = %why, "lease not released"),
            Err(_) => tracing::warn!("lease not released in time"),
        }
    }

    /// Creates, takes or renews the lease; false if it is somebody else's.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let asked = self.fence.now();
        let found = self.api.get_opt(NAME).await?;
        let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
        // A lease without a body is nobody's.
        let empty = LeaseSpec::default();
        let spec = if found.is_some() { spec.or(Some(&empty)) } else { None };
        let unchanged = self.unchanged(found.as_ref());
        let written = match decide(spec, &self.options.identity, unchanged) {
            Step::Wait => return Ok(false),
            Step::Create => {
                let lease = Lease {
                    metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
                    spec: Some(held(None, &self.options, Timestamp::now())),
                };
                self.api.create(&PostParams::default(), &lease).await
            }
            Step::Take | Step::Renew => {
                let mut lease = found.clone().unwrap_or_default();
                lease.spec = Some(held(spec, &self.options, Timestamp::now()));
                self.api.replace(NAME, &PostParams::default(), &lease).await
            }
        };
        written?;
        self.fence.renewed(asked);
        Ok(true)
    }

    fn unchanged(&mut self, lease: Option<&Lease>) -> Duration {
        let version = lease.and_then(|lease| lease.metadata.resource_version.clone()).unwrap_or_default();
        match &self.seen {
            Some((seen, since)) if *seen == version => since.elapsed(),
            _ => {
                self.seen = Some((version, Instant::now()));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    /// controller:157
    #[test]
    fn a_lease_is_taken_when_it_is_nobodys_or_was_left() {
        let seconds = Duration::from_secs;
        for (found, unchanged, step) in [
            (None, seconds(0), Step::Create),
            (Some(LeaseSpec::default()), seconds(0), Step::Take),
            (Some(lease("")), seconds(0), Step::Take),
            (Some(lease("me")), seconds(0), Step::Renew),
            (Some(lease("other")), seconds(14), Step::Wait),
            (Some(lease("other")), seconds(15), Step::Take),
        ] {
            assert_eq!(decide(found.as_ref(), "me", unchanged), step, "{found:?} {unchanged:?}");
        }
    }

    #[test]
    fn taking_counts_a_transition_and_renewing_does_not() {
        let options = Options::new("ns", "me");
        let now = Timestamp::now();
        let taken = held(Some(&lease("other")), &options, now);
        assert_eq!((taken.lease_transitions, taken.acquire_time.clone()), (Some(4), Some(MicroTime(now))));
        let later = now + k8s_openapi::jiff::SignedDuration::from_secs(2);
        let renewed = held(Some(&taken), &options, later);
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(4), Some(MicroTime(now))));
        assert_eq!(renewed.renew_time, Some(MicroTime(later)));
        assert!(options.renew_deadline < options.duration);
    }
}
