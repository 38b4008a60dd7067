//! One whole LookupRoute question in, one whole answer out, with policies applied.
//!
//! ```text
//!            ┌─ Done                       reserved, late, chain demanded, input refused, too short
//! begin ─────┼─ Tokenise ── tokenised ──┬─ Done
//!            └─ Lookup                  └─ Lookup
//!                  └─ finish               index, floors, affinity, credits
//! ```
//!
//! [`Router::route`] runs all of it in the caller's thread. A server that must not block takes the steps itself, and
//! waits for the tokenizer, or for an index that is far away, as it likes.
//!
//! 1. One policy view for the whole call: it is read once, at the start.
//! 2. A deadline that has passed outranks everything but the reserved tenant.
//! 3. Input that is refused ends in `NO_HINT` before the index; it never reaches tenant-hot or affinity.
//! 4. A row that is not delivered is not credited.
//! 5. Nothing fails, and a warm [`Answer`] makes a call without text allocation-free.
//!
//! Not here: cancellation, permits and threads for tokenising, latency, metrics. They are the server's.

mod answer;
mod gate;
mod input;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::RESERVED_TENANT;
use crate::affinity::{chain_seed, exact_seed};
use crate::index::IndexApi;
use crate::policy::{Effective, RoutePolicy};
use crate::query::{HashList, Query, Row};
use crate::time::{Clock, SystemClock};
use crate::tokenizer::{TokenizeError, Tokenizer};

use self::gate::Verdict;
use self::input::{Input, Resolved};

pub use self::answer::{Answer, FailOpen, ReasonCode};
pub use self::input::{MAX_BLOCKS, MAX_HASH_BYTES, MAX_ID_BYTES, MAX_TEXT_BYTES, MAX_TOKENS};

/// Tokens per block unless configured otherwise.
pub const DEFAULT_BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// Time for a question that must be tokenised and has no deadline of its own: 5 s, in microseconds.
pub const DEFAULT_TOKENISE_TIMEOUT: u64 = 5_000_000;

/// One question, as it came over the wire, borrowed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Question<'a> {
    /// Tenant; equals the namespace of the policy that applies.
    pub tenant: &'a str,
    /// Model.
    pub model: &'a str,
    /// Engine compatibility tag.
    pub scheme: &'a str,
    /// Partition.
    pub adapter: &'a str,
    /// Exact key.
    pub prefix_hash: &'a [u8],
    /// Tokens the caller says `prefix_hash` covers.
    pub prefix_token_count: i32,
    /// Chain, root first.
    pub block_hashes: HashList<'a>,
    /// Tokens of each block.
    pub block_token_counts: &'a [i32],
    /// Tokens, fingerprinted here.
    pub token_ids: &'a [u32],
    /// Text, tokenised here if there is a tokenizer.
    pub prompt_text: &'a str,
    /// Time-to-first-token target in milliseconds; 0 when none.
    pub ttft_ms: i32,
}

/// What comes next for a question that was begun.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub enum Step {
    /// Nothing: the answer is complete.
    Done,
    /// Its text must be tokenised, then [`Router::tokenised`].
    Tokenise(Pending),
    /// The index must be asked: [`Router::finish`].
    Lookup(Pending),
}

/// A question that was begun and not yet answered.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    policy: Effective,
    deadline: Option<u64>,
    input: Input,
}

/// Answers questions from an index under policies. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
///
/// use inferencecache_core::query::HashList;
/// use inferencecache_core::{
///     Answer, Entry, Index, IndexApi, IndexOptions, PolicyStore, Question, ReasonCode, Router, Update,
/// };
///
/// let index = Arc::new(Index::new(IndexOptions::default()));
/// let router = Router::new(index.clone(), Arc::new(PolicyStore::new()));
///
/// let tokens: Vec<u32> = (0..64).collect();
/// let (mut keys, mut counts) = (Vec::new(), Vec::new());
/// inferencecache_core::fingerprint::chain(&tokens, router.block_size, &mut keys, &mut counts);
/// index.ingest(&Update {
///     replica: "pod-7",
///     tenant: "team-a",
///     model: "m",
///     scheme: "vllm",
///     entries: &[Entry {
///         block_hashes: HashList::Words(&keys),
///         block_token_counts: &counts,
///         ..Entry::default()
///     }],
///     ..Update::default()
/// });
///
/// let mut answer = Answer::new();
/// let question =
///     Question { tenant: "team-a", model: "m", scheme: "vllm", token_ids: &tokens, ..Question::default() };
/// router.route(&question, None, &mut answer);
/// assert_eq!(answer.reason, ReasonCode::PrefixMatch);
/// assert_eq!(&*answer.rows()[0].replica, "pod-7");
/// ```
pub struct Router<I: ?Sized> {
    /// The index asked.
    pub index: Arc<I>,
    /// The policies applied.
    pub policies: Arc<dyn RoutePolicy>,
    /// Time, for deadlines.
    pub clock: Arc<dyn Clock>,
    /// Tokens per block when the server fingerprints tokens itself. Default [`DEFAULT_BLOCK_SIZE`].
    pub block_size: NonZeroU32,
    /// What makes tokens of text. Default none: then text is answered with `NO_HINT`.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Microseconds for a question that must be tokenised and has no deadline of its own. Default
    /// [`DEFAULT_TOKENISE_TIMEOUT`].
    pub tokenise_timeout: u64,
}

// === impl Question ===

impl<'a> Question<'a> {
    /// Whether it asks about the tenant that is reserved for the self-test. Its answer is `NO_HINT`, echoes nothing, and
    /// took no time.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.tenant == RESERVED_TENANT
    }

    /// The hashes as sent, as a question to the index.
    pub(crate) fn as_query(&self) -> Query<'a> {
        Query {
            tenant: self.tenant,
            model: self.model,
            scheme: self.scheme,
            adapter: self.adapter,
            prefix_hash: self.prefix_hash,
            block_hashes: self.block_hashes,
            block_token_counts: self.block_token_counts,
            ttft_ms: self.ttft_ms,
        }
    }
}

// === impl Pending ===

impl Pending {
    /// When the question must have been answered, on [`Clock::monotonic`]; `None` when it has all the time.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.deadline
    }
}

// === impl Router ===

impl<I: ?Sized> Router<I> {
    /// A router with the default block size and the system's clock, and without a tokenizer.
    #[must_use]
    pub fn new(index: Arc<I>, policies: Arc<dyn RoutePolicy>) -> Self {
        Self {
            index,
            policies,
            clock: Arc::new(SystemClock::default()),
            block_size: DEFAULT_BLOCK_SIZE,
            tokenizer: None,
            tokenise_timeout: DEFAULT_TOKENISE_TIMEOUT,
        }
    }
}

impl<I: IndexApi + ?Sized> Router<I> {
    /// Answers `question` into `answer`. `deadline` is the caller's, on [`Clock::monotonic`]; `None` when it has none.
    ///
    /// Tokenises in the caller's thread, and notices a deadline that passed meanwhile only afterwards.
    pub fn route(&self, question: &Question<'_>, deadline: Option<u64>, answer: &mut Answer) {
        let mut step = self.begin(question, deadline, answer);
        if let (Step::Tokenise(pending), Some(tokenizer)) = (&step, &self.tokenizer) {
            let tokens = tokenizer.encode_chat(question.model, question.prompt_text).map_err(FailOpen::from);
            step = self.tokenised(pending, tokens, answer);
        }
        if let Step::Lookup(pending) = step {
            self.finish(question, &pending, answer);
        }
    }

    /// Everything up to the index, text aside.
    pub fn begin(&self, question: &Question<'_>, deadline: Option<u64>, answer: &mut Answer) -> Step {
        answer.clear();
        if question.is_reserved() {
            return Step::Done;
        }
        let policy = self.policies.effective(question.tenant);
        let deadline = self.deadline(question, &policy, deadline);
        if self.has_passed(deadline) {
            answer.time_out();
            return Step::Done;
        }
        if policy.require_chain && !input::has_chain(question) {
            answer.reason = ReasonCode::PolicyRequiresChain;
            return Step::Done;
        }
        let chain_matching = policy.enable_chain_matching;
        let input = match input::resolve(question, chain_matching, self.block_size, &mut answer.derived) {
            Ok(Resolved::Input(input)) => Ok(input),
            Ok(Resolved::Text) if self.tokenizer.is_some() => {
                let input = Input { derived: true, chain: chain_matching, tokens: 0 };
                return Step::Tokenise(Pending { policy, deadline, input });
            }
            Ok(Resolved::Text) => Err(FailOpen::Disabled),
            Err(cause) => Err(cause),
        };
        self.resolved(policy, deadline, input, answer)
    }

    /// Goes on with the tokens of the question's text, or with the reason why there are none.
    ///
    /// For a tokenizer that did not return in time, call [`Answer::time_out`] instead.
    pub fn tokenised(&self, pending: &Pending, tokens: Result<Vec<u32>, FailOpen>, answer: &mut Answer) -> Step {
        let input = tokens.and_then(|tokens| match tokens.len() {
            0 => Err(FailOpen::EncodeError),
            n if n > MAX_TOKENS => Err(FailOpen::OversizedTokens),
            _ => {
                answer.tokens = tokens;
                input::derive(&answer.tokens, pending.input.chain, self.block_size, &mut answer.derived)
            }
        });
        self.resolved(pending.policy, pending.deadline, input, answer)
    }

    /// Asks the index and completes the answer.
    pub fn finish(&self, question: &Question<'_>, pending: &Pending, answer: &mut Answer) {
        let Pending { policy, deadline, input } = pending;
        self.index.lookup_route(&answer.derived.query(question, *input), &mut answer.lookup);
        // The policy's budget began before the lookup, so this covers a lookup that alone took longer, too.
        if self.has_passed(*deadline) {
            answer.time_out();
            return;
        }
        answer.consulted = true;
        match gate::judge(policy, input.tokens, &mut answer.lookup) {
            Verdict::NoHint => answer.reason = ReasonCode::NoHint,
            Verdict::Nothing => match self.pick(question, policy, *input, answer) {
                Some(replica) => {
                    answer.lookup.rows.push(Row { replica, score: 0.0, matched_tokens: 0, hit_prob: 0.0, tier: 0 });
                    answer.reason = ReasonCode::AffinityHint;
                }
                None => answer.reason = ReasonCode::NoHint,
            },
            Verdict::Stands => {
                answer.reason = answer.lookup.strategy.into();
                answer.lookup.credit_hits();
            }
        }
    }

    /// What follows once it is known which input counts, if any.
    fn resolved(
        &self,
        policy: Effective,
        deadline: Option<u64>,
        input: Result<Input, FailOpen>,
        answer: &mut Answer,
    ) -> Step {
        if self.has_passed(deadline) {
            answer.time_out();
            return Step::Done;
        }
        match input {
            Err(cause) => {
                answer.fail_open = Some(cause);
                Step::Done
            }
            // Too short for a hint, and without affinity nothing else is open to it: the index need not be asked.
            Ok(input) if !policy.affinity_routing && gate::is_short(&policy, input.tokens) => Step::Done,
            Ok(input) => Step::Lookup(Pending { policy, deadline, input }),
        }
    }

    /// The replica on which prompts like this one gather.
    fn pick(&self, question: &Question<'_>, policy: &Effective, input: Input, answer: &mut Answer) -> Option<Arc<str>> {
        let Question { tenant, model, scheme, .. } = *question;
        let anonymous = tenant.is_empty() || model.is_empty() || scheme.is_empty();
        // Judged as sent: a chain that policy ignores must be well-formed, too.
        if !policy.affinity_routing || anonymous || question.as_query().is_malformed() {
            return None;
        }
        let query = answer.derived.query(question, input);
        if query.block_hashes.is_empty() {
            exact_seed(query.prefix_hash, &mut answer.seed);
        } else {
            chain_seed(&query.block_hashes, &mut answer.seed);
        }
        if answer.seed.is_empty() { None } else { self.index.affinity_hint(tenant, model, scheme, &answer.seed) }
    }

    /// The earliest of the caller's deadline, the policy's, and the one that bounds tokenising.
    fn deadline(&self, question: &Question<'_>, policy: &Effective, caller: Option<u64>) -> Option<u64> {
        let budget = match policy.lookup_timeout_ms {
            0 if caller.is_none() && input::is_text(question, policy.enable_chain_matching) => self.tokenise_timeout,
            0 => return caller,
            ms => u64::from(ms) * 1000,
        };
        let end = self.clock.monotonic().saturating_add(budget);
        Some(caller.map_or(end, |caller| caller.min(end)))
    }

    fn has_passed(&self, deadline: Option<u64>) -> bool {
        deadline.is_some_and(|deadline| self.clock.monotonic() >= deadline)
    }
}

impl<I: ?Sized> Clone for Router<I> {
    fn clone(&self) -> Self {
        Self {
            index: self.index.clone(),
            policies: self.policies.clone(),
            clock: self.clock.clone(),
            block_size: self.block_size,
            tokenizer: self.tokenizer.clone(),
            tokenise_timeout: self.tokenise_timeout,
        }
    }
}

impl<I: fmt::Debug + ?Sized> fmt::Debug for Router<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("index", &&*self.index)
            .field("policies", &self.policies)
            .field("block_size", &self.block_size)
            .field("tokenizer", &self.tokenizer)
            .finish_non_exhaustive()
    }
}

// === impl FailOpen ===

impl From<TokenizeError> for FailOpen {
    fn from(error: TokenizeError) -> Self {
        match error {
            TokenizeError::Unavailable => Self::UnknownModel,
            TokenizeError::UnsafeModelId => Self::UnsafeModelId,
            TokenizeError::Failed => Self::EncodeError,
        }
    }
}
