//! The answer to one question, and the only spelling of its codes.

use crate::query::{HashList, Lookup, Query, Row, Strategy};

use super::{Question, input::Input};

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

/// What about the input made the router answer `NO_HINT` before it asked the index. For counting; callers see the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailOpen {
    /// The two chain arrays differ in length.
    UnbalancedChain,
    /// The request carries nothing but a chain, and policy ignores chains.
    IgnoredChain,
    /// Too many blocks, or a hash or a key that is too long.
    OversizedRequest,
    /// More token ids than are accepted, from the request or from the tokenizer.
    OversizedTokens,
    /// More prompt text than is accepted.
    OversizedText,
    /// Fewer tokens than one block.
    SubBlock,
    /// There is no tokenizer.
    Disabled,
    /// The tokenizer does not know the model.
    UnknownModel,
    /// The model id can be no model's.
    UnsafeModelId,
    /// As many prompts as allowed are being tokenised.
    Saturated,
    /// The tokenizer or its template failed, or made no tokens.
    EncodeError,
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
    /// What kept the index from being asked, if the input did.
    pub fail_open: Option<FailOpen>,
    pub(super) derived: Derived,
    pub(super) seed: Vec<u8>,
}

/// The chain fingerprinted from tokens.
#[derive(Debug, Default)]
pub(super) struct Derived {
    pub(super) keys: Vec<[u8; 8]>,
    pub(super) counts: Vec<i32>,
}

// === impl ReasonCode ===

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

impl From<Strategy> for ReasonCode {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::None => Self::NoHint,
            Strategy::PrefixMatch => Self::PrefixMatch,
            Strategy::TenantHot => Self::TenantHot,
            Strategy::UnknownTenant => Self::UnknownTenant,
            Strategy::UnknownModel => Self::UnknownModel,
            Strategy::UnknownHashScheme => Self::UnknownHashScheme,
        }
    }
}

// === impl FailOpen ===

impl FailOpen {
    /// The label under which it is counted.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::UnbalancedChain => "unbalanced_chain",
            Self::IgnoredChain => "ignored_chain",
            Self::OversizedRequest => "oversized_request",
            Self::OversizedTokens => "oversized_tokens",
            Self::OversizedText => "oversized_text",
            Self::SubBlock => "sub_block",
            Self::Disabled => "disabled",
            Self::UnknownModel => "unknown_model",
            Self::UnsafeModelId => "unsafe_model_id",
            Self::Saturated => "saturated",
            Self::EncodeError => "encode_error",
        }
    }
}

// === impl Answer ===

impl Answer {
    /// An answer that says nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ranked replicas, best first.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.lookup.rows
    }

    /// Makes it `NO_HINT` without anything, and keeps the memory.
    pub fn clear(&mut self) {
        self.no_hint();
        self.tokens.clear();
        self.fail_open = None;
    }

    /// Makes it `TIMEOUT`: whatever the index said is discarded, tokens that were produced in time are kept.
    ///
    /// For a caller that stops waiting for a tokenizer or an index; the router itself notices a deadline that has passed.
    pub fn time_out(&mut self) {
        self.no_hint();
        self.reason = ReasonCode::Timeout;
    }

    fn no_hint(&mut self) {
        self.reason = ReasonCode::NoHint;
        self.lookup.clear();
        self.consulted = false;
    }
}

// === impl Derived ===

impl Derived {
    /// The question to the index.
    pub(super) fn query<'a>(&'a self, question: &Question<'a>, input: Input) -> Query<'a> {
        let mut query = question.as_query();
        if input.derived {
            query.prefix_hash = self.keys.last().map(<[u8; 8]>::as_slice).unwrap_or_default();
            query.block_hashes = HashList::Words(&self.keys);
            query.block_token_counts = &self.counts;
        }
        if !input.chain {
            query.block_hashes = HashList::default();
            query.block_token_counts = &[];
        }
        query
    }
}
