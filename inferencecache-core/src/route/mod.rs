//! One whole LookupRoute question in, one whole answer out, with policies applied.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::index::IndexApi;
use crate::policy::PolicyStore;
use crate::query::{HashList, Lookup, Row};
use crate::time::Clock;

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
    /// Text, tokenised by the caller of this crate's [`Tokenizer`](crate::tokenizer::Tokenizer).
    pub prompt_text: &'a str,
    /// Time-to-first-token target in milliseconds; 0 when none.
    pub ttft_ms: i32,
}

/// Why the answer is what it is. The only spelling of the published codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum ReasonCode {
    /// Ranked replicas that hold the prefix.
    PrefixMatch,
    /// Ranked replicas that are warm for the tenant.
    TenantHot,
    /// One replica, picked by hash.
    AffinityHint,
    /// Nothing to say.
    #[default]
    NoHint,
    /// The tenant holds no key.
    UnknownTenant,
    /// The tenant holds no key of this model.
    UnknownModel,
    /// The model holds no key in this scheme.
    UnknownHashScheme,
    /// Policy demands a chain.
    PolicyRequiresChain,
    /// The deadline passed.
    Timeout,
}

impl ReasonCode {
    /// Every code.
    pub const ALL: [Self; 9] = [
        Self::PrefixMatch,
        Self::TenantHot,
        Self::AffinityHint,
        Self::NoHint,
        Self::UnknownTenant,
        Self::UnknownModel,
        Self::UnknownHashScheme,
        Self::PolicyRequiresChain,
        Self::Timeout,
    ];

    /// The published spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PrefixMatch => "PREFIX_MATCH",
            Self::TenantHot => "TENANT_HOT",
            Self::AffinityHint => "AFFINITY_HINT",
            Self::NoHint => "NO_HINT",
            Self::UnknownTenant => "UNKNOWN_TENANT",
            Self::UnknownModel => "UNKNOWN_MODEL",
            Self::UnknownHashScheme => "UNKNOWN_HASH_SCHEME",
            Self::PolicyRequiresChain => "POLICY_REQUIRES_CHAIN",
            Self::Timeout => "TIMEOUT",
        }
    }
}

/// The answer to one question. Reuse it: a warm one makes routing allocation-free.
#[derive(Debug, Default)]
pub struct Answer {
    /// Why.
    pub reason: ReasonCode,
    /// Ranked replicas, best first; empty unless the reason is a hint.
    pub lookup: Lookup,
    /// Whether the index's partition was consulted, so that the adapter is echoed.
    pub consulted: bool,
    /// Tokens the server itself produced from `prompt_text`, to be echoed.
    pub tokens: Vec<u32>,
}

impl Answer {
    /// Ranked replicas, best first.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.lookup.rows
    }
}

/// Answers questions from an index under policies. Cheap to clone.
#[derive(Debug)]
pub struct Router<I: ?Sized> {
    /// The index asked.
    pub index: Arc<I>,
    /// The policies applied.
    pub policies: Arc<PolicyStore>,
    /// Time, for deadlines.
    pub clock: Arc<dyn Clock>,
    /// Tokens per block when the server fingerprints `token_ids` itself.
    pub block_size: NonZeroU32,
}

impl<I: IndexApi + ?Sized> Router<I> {
    /// Answers `question` into `answer`. `deadline` is the caller's, on [`Clock::monotonic`]; `None` when it has none.
    pub fn route(&self, question: &Question<'_>, deadline: Option<u64>, answer: &mut Answer) {
        let _ = (question, deadline);
        answer.reason = ReasonCode::NoHint;
    }
}
