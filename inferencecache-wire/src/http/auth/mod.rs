//! Bearer tokens for the bridge: whose they are is asked of a [`TokenReviewer`], and remembered for a while.
//!
//! ```text
//! header ──> token ──> known? ──yes──────────────────────────────────────────> verdict
//!                        └─no─> under review? ──yes─> wait for that ──────────> verdict
//!                                 └─no─> accepted lately? ──> its own places ──> review ──> remembered
//!                                          └─no─> within the source's budget? ──> shared places ──┘
//! ```
//!
//! 1. Each path has its own audience and its own verdicts: a token for one is nothing on another.
//! 2. One review at a time for one token and path; whoever else brings it waits for the same answer. A review goes on when its
//!    caller has left.
//! 3. Only verdicts are remembered. That nobody could be asked is forgotten at once, and never held against the token.
//! 4. Unknown tokens cannot keep out one that was accepted before: those have places of their own.
//! 5. Everything is bounded: see [`BearerOptions`]. No token is logged, and none is kept beyond its review.

mod budget;
mod verdicts;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use inferencecache_core::{Clock, SystemClock};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use self::budget::{Allowance, Budget};
use self::verdicts::{TokenKey, Verdict, Verdicts};
use super::access::{Decision, Denied, Guard};
use crate::auth::{Review, TokenReviewer};
use crate::metrics::AuthPath;

/// Longest token that is looked at, in bytes. Those of service accounts have one or two thousand.
pub const MAX_TOKEN: usize = 16 * 1024;

/// How much of a reviewer's explanation is logged, in bytes.
const MAX_EXPLANATION: usize = 512;

/// Times and bounds. Start from [`BearerOptions::default`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BearerOptions {
    /// How long an accepted token needs no review, from the review on. Default 30 s.
    pub accepted_ttl: Duration,
    /// How long a refused one gets none. Default 10 s.
    pub refused_ttl: Duration,
    /// Accepted tokens remembered for each path, and as many refused ones. Default 32.
    pub cache_entries: usize,
    /// For a review, waiting for a place included. Default 3 s.
    pub review_timeout: Duration,
    /// Reviews at a time of tokens that were accepted within the last hour. Default 4.
    pub known_reviews: usize,
    /// Reviews at a time of other tokens. Default 16.
    pub unknown_reviews: usize,
    /// Reviews of other tokens under way or waiting, above which further ones are not asked for. Default 256.
    pub waiting_reviews: usize,
    /// Reviews of other tokens that one source address may cause at once. Default 64.
    pub source_burst: u32,
    /// And per second after that. Default 16.
    pub source_rate: u32,
    /// Sources told apart; beyond that, new ones share one budget. Default 1024.
    pub sources: usize,
}

/// How long a token that was accepted is preferred to unknown ones: about as long as one of them lives.
const KNOWN_FOR: Duration = Duration::from_secs(3600);

/// Whom tokens must be for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audiences {
    /// On `/snapshot` and `/probe`. Empty asks for none, which only tests should.
    pub controller: String,
    /// On `/policy`.
    pub policy: String,
}

/// Lets through whoever brings a token of one account, meant for the path.
pub struct BearerGuard {
    /// In the order of [`AuthPath`].
    gates: [Arc<Gate>; 3],
}

/// One authenticator.
struct Gate {
    audience: String,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

/// What the three authenticators have in common.
struct Shared {
    reviewer: Arc<dyn TokenReviewer>,
    username: String,
    clock: Arc<dyn Clock>,
    options: BearerOptions,
    budget: Mutex<Budget>,
    known: Semaphore,
    unknown: Semaphore,
}

struct State {
    verdicts: Verdicts,
    /// Tokens that were accepted, for longer than a verdict lasts; kept by the same rules.
    regulars: Verdicts,
    under_review: HashMap<TokenKey, watch::Receiver<Outcome>>,
}

/// What waiters see: `None` as long as there is nothing to see. Ends without a verdict if nobody could be asked.
type Outcome = Option<Verdict>;

impl Default for BearerOptions {
    fn default() -> Self {
        Self {
            accepted_ttl: Duration::from_secs(30),
            refused_ttl: Duration::from_secs(10),
            cache_entries: 32,
            review_timeout: Duration::from_secs(3),
            known_reviews: 4,
            unknown_reviews: 16,
            waiting_reviews: 256,
            source_burst: 64,
            source_rate: 16,
            sources: 1024,
        }
    }
}

impl BearerGuard {
    /// Lets `username` through, on the word of `reviewer`.
    #[must_use]
    pub fn new(reviewer: Arc<dyn TokenReviewer>, username: impl Into<String>, audiences: Audiences) -> Self {
        let (clock, options) = (Arc::new(SystemClock::default()), BearerOptions::default());
        Self::with(reviewer, username, audiences, clock, options)
    }

    /// The same with other times and bounds. Verdicts age by `clock`; waiting is in real time.
    #[must_use]
    pub fn with(
        reviewer: Arc<dyn TokenReviewer>,
        username: impl Into<String>,
        audiences: Audiences,
        clock: Arc<dyn Clock>,
        options: BearerOptions,
    ) -> Self {
        let BearerOptions { source_burst: burst, source_rate: per_second, sources, .. } = options;
        let shared = Arc::new(Shared {
            reviewer,
            username: username.into(),
            clock,
            budget: Mutex::new(Budget::new(Allowance { burst, per_second, sources })),
            known: Semaphore::new(options.known_reviews),
            unknown: Semaphore::new(options.unknown_reviews),
            options,
        });
        let gate = |audience: &str| Arc::new(Gate::new(audience, shared.clone()));
        let Audiences { controller, policy } = &audiences;
        Self { gates: [gate(controller), gate(policy), gate(controller)] }
    }
}

impl Guard for BearerGuard {
    fn admit<'a>(&'a self, path: AuthPath, headers: &'a HeaderMap, source: Option<IpAddr>) -> Decision<'a> {
        let gate = &self.gates[path as usize];
        Box::pin(async move {
            let token = bearer(headers).ok_or(Denied::Unauthorized)?;
            match gate.verdict(token, source).await {
                Some(Verdict::Accepted) => Ok(()),
                Some(Verdict::NotAuthenticated) => Err(Denied::Unauthorized),
                Some(Verdict::SomebodyElse) => Err(Denied::Forbidden),
                None => Err(Denied::Unavailable),
            }
        })
    }
}

impl fmt::Debug for BearerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let audiences: Vec<_> = self.gates.iter().map(|gate| &gate.audience).collect();
        let shared = &self.gates[0].shared;
        f.debug_struct("BearerGuard").field("username", &shared.username).field("audiences", &audiences).finish()
    }
}

// === impl Gate ===

impl Gate {
    fn new(audience: &str, shared: Arc<Shared>) -> Self {
        let BearerOptions { accepted_ttl, refused_ttl, cache_entries, .. } = shared.options;
        let state = State {
            verdicts: Verdicts::new(cache_entries, accepted_ttl, refused_ttl),
            regulars: Verdicts::new(cache_entries, KNOWN_FOR, Duration::ZERO),
            under_review: HashMap::new(),
        };
        Self { audience: audience.to_owned(), shared, state: Mutex::new(state) }
    }

    /// The verdict on a token, or `None` if nobody could be asked.
    async fn verdict(self: &Arc<Self>, token: &str, source: Option<IpAddr>) -> Option<Verdict> {
        let key = TokenKey::of(token);
        let now = self.shared.clock.monotonic();
        let mut outcome = {
            let mut state = self.state.lock();
            if let Some(verdict) = state.verdicts.get(&key, now) {
                return Some(verdict);
            }
            match state.under_review.get(&key) {
                Some(outcome) => outcome.clone(),
                None => self.begin(&mut state, key, token, source, now)?,
            }
        };
        *outcome.wait_for(Option::is_some).await.ok()?
    }

    /// Has a token reviewed, unless there is no place or no budget for that.
    fn begin(
        self: &Arc<Self>,
        state: &mut State,
        key: TokenKey,
        token: &str,
        source: Option<IpAddr>,
        now: u64,
    ) -> Option<watch::Receiver<Outcome>> {
        let options = &self.shared.options;
        let known = state.regulars.get(&key, now).is_some();
        if !known
            && (state.under_review.len() >= options.waiting_reviews || !self.shared.budget.lock().take(source, now))
        {
            return None;
        }
        let (tell, outcome) = watch::channel(None);
        state.under_review.insert(key.clone(), outcome.clone());
        let (gate, token) = (self.clone(), token.to_owned());
        tokio::spawn(async move {
            // Dropped last and however this ends: a review that is over is under way for nobody.
            let entry = UnderReview { gate: &gate, key: &key };
            let review = tokio::time::timeout(gate.shared.options.review_timeout, gate.review(&token, known));
            let verdict = review.await.unwrap_or_else(|_| {
                let limit = gate.shared.options.review_timeout;
                tracing::warn!(err = format!("no answer within {limit:?}"), "auth_token_review_failed");
                None
            });
            if let Some(verdict) = verdict {
                gate.remember(&key, verdict);
            }
            drop(entry);
            let _ = tell.send(verdict); // without a verdict, waiters see the sender go
        });
        Some(outcome)
    }

    /// Asks.
    async fn review(&self, token: &str, known: bool) -> Option<Verdict> {
        let shared = &self.shared;
        let places = if known { &shared.known } else { &shared.unknown };
        let _place = places.acquire().await.ok()?;
        match shared.reviewer.review(token, &self.audience).await {
            Ok(review) => Some(self.judge(&review, token)),
            Err(why) => {
                tracing::warn!(err = explanation(&why.0, token), "auth_token_review_failed");
                None
            }
        }
    }

    fn judge(&self, review: &Review, token: &str) -> Verdict {
        if !review.authenticated {
            if !review.error.is_empty() {
                tracing::warn!(error = explanation(&review.error, token), "auth_token_review_unauthenticated");
            }
            return Verdict::NotAuthenticated;
        }
        // A reviewer that knows no audiences ignores the question; such a token could be anybody's secret.
        if !self.audience.is_empty() && !review.audiences.contains(&self.audience) {
            let error = format!("the review does not confirm the audience {:?}", self.audience);
            tracing::warn!(error, "auth_token_review_unauthenticated");
            return Verdict::NotAuthenticated;
        }
        if review.username == self.shared.username { Verdict::Accepted } else { Verdict::SomebodyElse }
    }

    fn remember(&self, key: &TokenKey, verdict: Verdict) {
        let now = self.shared.clock.monotonic();
        let mut state = self.state.lock();
        state.verdicts.put(key.clone(), verdict, now);
        state.regulars.put(key.clone(), verdict, now);
    }
}

/// An entry among the tokens under review, for as long as it lives.
struct UnderReview<'a> {
    gate: &'a Gate,
    key: &'a TokenKey,
}

impl Drop for UnderReview<'_> {
    fn drop(&mut self) {
        self.gate.state.lock().under_review.remove(self.key);
    }
}

/// The token of a request, if it carries one: `Bearer`, in any case, a space, and something.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN).then_some(token)
}

/// What a reviewer said, fit for a log: without the token, and short.
fn explanation(said: &str, token: &str) -> String {
    let mut text = said.replace(token, "[token]");
    if text.len() > MAX_EXPLANATION {
        text.truncate(text.floor_char_boundary(MAX_EXPLANATION));
    }
    text
}
