//! What takes more than one question, or a clock, to show.

use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::policy::{Effective, Policy, PolicySet, RoutePolicy, TenantQuota};
use inferencecache_core::query::HashList;
use inferencecache_core::route::{MAX_BLOCKS, MAX_HASH_BYTES, MAX_ID_BYTES, MAX_TEXT_BYTES, MAX_TOKENS, Pending};
use inferencecache_core::tokenizer::TokenizeError;
use inferencecache_core::{Answer, Clock, FailOpen, Question, ReasonCode, Step};

use crate::world::{MakeIndex, Report, World, chain_of};

const MS: u64 = 1000;

/// Runs everything below.
pub(crate) fn run(make: MakeIndex) {
    slow_lookups_time_out_and_credit_nothing(make);
    text_is_tokenised_within_the_deadline(make);
    late_tokens_are_echoed_with_the_timeout(make);
    the_tokenizer_sees_model_and_text(make);
    the_caller_may_refuse_to_tokenise(make);
    what_is_too_large_is_not_looked_up(make);
    tokens_and_their_chain_score_alike(make);
    hits_save_an_entry_from_the_cap(make);
    dropped_rows_are_not_credited(make);
    a_question_keeps_the_policy_it_began_with(make);
    an_embedder_may_bring_its_own_policy(make);
    quotas_bite_at_the_next_report(make);
    the_cap_follows_the_algorithm_in_force(make);
}

fn question() -> Question<'static> {
    Question { tenant: "t", model: "m", scheme: "vllm", ..Question::default() }
}

fn key(hash: &[u8]) -> Question<'_> {
    Question { prefix_hash: hash, ..question() }
}

fn text(text: &str) -> Question<'_> {
    Question { prompt_text: text, ..question() }
}

fn policy() -> Policy {
    Policy { namespace: "t".to_owned(), ..Policy::default() }
}

fn lfu() -> Policy {
    Policy { eviction: "lfu".to_owned(), ..policy() }
}

fn holds(replica: &str, hash: &str, count: i32) -> Report {
    Report { replica: replica.to_owned(), prefix: Some((hash.into(), count)), ..Report::default() }
}

/// A world whose `r1` holds the prompt of these 64 tokens.
fn with_prompt(make: MakeIndex) -> (World, Vec<u32>) {
    let world = World::new(make);
    let tokens: Vec<u32> = (2_000_000..2_000_064).collect();
    world.report(&Report { chain: chain_of(&tokens, 16), ..Report::default() });
    (world, tokens)
}

#[track_caller]
fn must_tokenise(step: Step) -> Pending {
    match step {
        Step::Tokenise(pending) => pending,
        other => panic!("nothing to tokenise: {other:?}"),
    }
}

#[track_caller]
fn must_look_up(step: Step) -> Pending {
    match step {
        Step::Lookup(pending) => pending,
        other => panic!("nothing to look up: {other:?}"),
    }
}

// server:59 (a lookup that never returns at all, the row after it, is for the server to abandon)
fn slow_lookups_time_out_and_credit_nothing(make: MakeIndex) {
    let world = World::new(make);
    world.report(&holds("r1", "p", 128));
    world.policy(Policy { lookup_timeout_ms: 5, ..lfu() });
    assert_eq!(world.ask(&key(b"p")).reason, ReasonCode::PrefixMatch);
    let credited = world.credits();

    world.slow_down(Duration::from_millis(50));
    let answer = world.ask(&key(b"p"));
    assert_eq!((answer.reason, answer.rows().len(), answer.consulted), (ReasonCode::Timeout, 0, false));
    assert_eq!(world.credits(), credited);

    // The caller's deadline counts as well, and the earlier one wins.
    world.policy(Policy { lookup_timeout_ms: 1000, ..lfu() });
    let mut answer = Answer::new();
    world.router.route(&key(b"p"), Some(world.clock.monotonic() + 49 * MS), &mut answer);
    assert_eq!(answer.reason, ReasonCode::Timeout);
    world.router.route(&key(b"p"), Some(world.clock.monotonic() + 51 * MS), &mut answer);
    assert_eq!(answer.reason, ReasonCode::PrefixMatch);
}

// server:62-63, fingerprint:28-29: the router names the deadline, the server waits for it
fn text_is_tokenised_within_the_deadline(make: MakeIndex) {
    let mut world = World::new(make);
    world.tokenizer(Err(TokenizeError::Failed));
    let mut answer = Answer::new();
    let now = world.clock.monotonic();

    let pending = must_tokenise(world.router.begin(&text("hello"), None, &mut answer));
    assert_eq!(pending.deadline(), Some(now + 5000 * MS));
    world.router.tokenise_timeout = 20 * MS;
    let pending = must_tokenise(world.router.begin(&text("hello"), None, &mut answer));
    assert_eq!(pending.deadline(), Some(now + 20 * MS));
    let pending = must_tokenise(world.router.begin(&text("hello"), Some(now + 30 * MS), &mut answer));
    assert_eq!(pending.deadline(), Some(now + 30 * MS), "a caller with a deadline needs no default");
    world.policy(Policy { lookup_timeout_ms: 25, ..policy() });
    let pending = must_tokenise(world.router.begin(&text("hello"), Some(now + 30 * MS), &mut answer));
    assert_eq!(pending.deadline(), Some(now + 25 * MS));

    answer.time_out();
    assert_eq!((answer.reason, answer.tokens.len()), (ReasonCode::Timeout, 0));
    world.clock.advance(Duration::from_millis(25));
    assert!(matches!(world.router.tokenised(&pending, Err(FailOpen::EncodeError), &mut answer), Step::Done));
    assert_eq!((answer.reason, answer.tokens.len()), (ReasonCode::Timeout, 0), "also when it failed in the end");

    // What is not tokenised has no default deadline.
    world.policy(policy());
    let pending = must_look_up(world.router.begin(&Question { prompt_text: "x", ..key(b"p") }, None, &mut answer));
    assert_eq!(pending.deadline(), None);
}

fn late_tokens_are_echoed_with_the_timeout(make: MakeIndex) {
    let (mut world, tokens) = with_prompt(make);
    world.tokenizer(Ok(tokens.clone()));
    for tokens in [tokens, vec![1; 8]] {
        let mut answer = Answer::new();
        let pending = must_tokenise(world.router.begin(&text("hello"), None, &mut answer));
        world.clock.advance(Duration::from_secs(5));
        assert!(matches!(world.router.tokenised(&pending, Ok(tokens.clone()), &mut answer), Step::Done));
        assert_eq!((answer.reason, &answer.tokens), (ReasonCode::Timeout, &tokens));
    }
    world.slow_down(Duration::from_secs(6));
    let answer = world.ask(&text("hello"));
    assert_eq!((answer.reason, answer.tokens.len()), (ReasonCode::Timeout, 64), "late in the index");
    assert_eq!(world.ask(&text("hello")).fail_open, None);
}

// server:77, fingerprint:17 (role and generation prompt are what the tokenizer's one operation means)
fn the_tokenizer_sees_model_and_text(make: MakeIndex) {
    let (mut world, tokens) = with_prompt(make);
    let double = world.tokenizer(Ok(tokens.clone()));
    let answer = world.ask(&text("hello world"));
    assert_eq!((answer.reason, answer.tokens), (ReasonCode::PrefixMatch, tokens));
    assert_eq!(*double.seen.lock(), [("m".to_owned(), "hello world".to_owned())]);
    // Better inputs win, whether they are acceptable or not.
    world.ask(&Question { token_ids: &[1, 2], ..text("hello") });
    world.ask(&Question { prefix_hash: b"p", ..text("hello") });
    world.ask(&Question { block_token_counts: &[16], ..text("hello") });
    assert_eq!(double.seen.lock().len(), 1);
}

// server:75, fingerprint:27
fn the_caller_may_refuse_to_tokenise(make: MakeIndex) {
    let (mut world, tokens) = with_prompt(make);
    let double = world.tokenizer(Ok(tokens));
    let mut answer = Answer::new();
    let pending = must_tokenise(world.router.begin(&text("hello"), None, &mut answer));
    assert!(matches!(world.router.tokenised(&pending, Err(FailOpen::Saturated), &mut answer), Step::Done));
    assert_eq!((answer.reason, answer.tokens.len()), (ReasonCode::NoHint, 0));
    assert_eq!(answer.fail_open.map(FailOpen::label), Some("saturated"));
    assert_eq!((double.seen.lock().len(), world.asked()), (0, 0));
}

// server:66, server:72-73, server:108b, fingerprint:25-26
fn what_is_too_large_is_not_looked_up(make: MakeIndex) {
    #[track_caller]
    fn refused(world: &World, question: &Question<'_>, cause: FailOpen) {
        let asked = world.asked();
        let answer = world.ask(question);
        assert_eq!((answer.reason, answer.fail_open), (ReasonCode::NoHint, Some(cause)));
        assert_eq!((answer.rows().len(), answer.tokens.len(), answer.consulted), (0, 0, false));
        assert_eq!(world.asked(), asked, "the index is untouched");
    }
    #[track_caller]
    fn accepted(world: &World, question: &Question<'_>) {
        assert_eq!(world.ask(question).fail_open, None);
    }
    let (mut world, _) = with_prompt(make);

    let tokens = vec![7; MAX_TOKENS + 1];
    refused(&world, &Question { token_ids: &tokens, ..question() }, FailOpen::OversizedTokens);
    world.block_size(65_536);
    accepted(&world, &Question { token_ids: &tokens[1..], ..question() });

    let long = "x".repeat(MAX_TEXT_BYTES + 1);
    let double = world.tokenizer(Ok(vec![7; MAX_TOKENS + 1]));
    refused(&world, &text(&long), FailOpen::OversizedText);
    assert_eq!(double.seen.lock().len(), 0);
    refused(&world, &text(&long[1..]), FailOpen::OversizedTokens);
    assert_eq!(double.seen.lock().len(), 1);

    let (hashes, counts) = (vec![[1; 8]; MAX_BLOCKS + 1], vec![16; MAX_BLOCKS + 1]);
    let chain = |n: usize| Question {
        block_hashes: HashList::Words(&hashes[..n]),
        block_token_counts: &counts[..n],
        ..question()
    };
    let (long_hash, long_id) = ([1; MAX_HASH_BYTES + 1], "x".repeat(MAX_ID_BYTES + 1));
    for chain_matching in [true, false] {
        world.policy(Policy {
            strategy: Some(inferencecache_core::StrategyGates {
                enable_chain_matching: Some(chain_matching),
                ..Default::default()
            }),
            ..policy()
        });
        // A chain that policy ignores must fit, too.
        refused(&world, &Question { prefix_hash: b"p", ..chain(MAX_BLOCKS + 1) }, FailOpen::OversizedRequest);
        let counts_alone = Question { block_hashes: HashList::default(), ..chain(MAX_BLOCKS + 1) };
        refused(&world, &Question { prefix_hash: b"p", ..counts_alone }, FailOpen::OversizedRequest);
        accepted(&world, &Question { prefix_hash: b"p", ..chain(MAX_BLOCKS) });
        refused(&world, &key(&long_hash), FailOpen::OversizedRequest);
        accepted(&world, &key(&long_hash[1..]));
        let long_block = Question { block_hashes: HashList::Slices(&[&long_hash]), ..chain(1) };
        refused(&world, &Question { prefix_hash: b"p", ..long_block }, FailOpen::OversizedRequest);
        for question in [
            Question { tenant: &long_id, ..key(b"p") },
            Question { model: &long_id, ..key(b"p") },
            Question { scheme: &long_id, ..key(b"p") },
            Question { adapter: &long_id, ..key(b"p") },
        ] {
            refused(&world, &question, FailOpen::OversizedRequest);
        }
        accepted(&world, &Question { adapter: &long_id[1..], ..key(b"p") });
    }
}

// fingerprint:16
fn tokens_and_their_chain_score_alike(make: MakeIndex) {
    let (world, tokens) = with_prompt(make);
    world.report(&Report { replica: "r2".to_owned(), chain: chain_of(&tokens[..32], 16), ..Report::default() });
    let derived = world.ask(&Question { token_ids: &tokens, ..question() });
    let chain = chain_of(&tokens, 16);
    let explicit = Question { block_hashes: HashList::Vecs(&chain), block_token_counts: &[16; 4], ..question() };
    let explicit = world.ask(&explicit);
    assert_eq!((derived.reason, derived.rows()), (ReasonCode::PrefixMatch, explicit.rows()));
    assert_eq!(derived.tokens.len(), 0, "what the caller knows is not echoed");
}

// server:80-81 (server:83 cannot fail: nothing here logs)
fn hits_save_an_entry_from_the_cap(make: MakeIndex) {
    for (delivered, survivor) in [(true, "A"), (false, "B")] {
        let world = World::with_cap(make, 1);
        world.policy(Policy { lookup_timeout_ms: 5, ..lfu() });
        world.report(&Report { age: Duration::from_secs(60), ..holds("r1", "A", 128) });
        world.slow_down(Duration::from_millis(if delivered { 0 } else { 50 }));
        for _ in 0..3 {
            let want = if delivered { ReasonCode::PrefixMatch } else { ReasonCode::Timeout };
            assert_eq!(world.ask(&key(b"A")).reason, want);
        }
        world.report(&holds("r1", "B", 128));
        let left = world.index().dump();
        assert_eq!(left.entries.len(), 1);
        assert_eq!(left.entries[0].hash, survivor.as_bytes(), "delivered: {delivered}");
    }
}

// server:82
fn dropped_rows_are_not_credited(make: MakeIndex) {
    let world = World::new(make);
    world.policy(Policy { minimum_matched_tokens: 64, ..lfu() });
    world.report(&holds("long", "p", 100));
    world.report(&holds("short", "p", 50));
    world.report(&holds("other", "q", 1));
    for _ in 0..3 {
        assert_eq!(world.ask(&key(b"p")).rows().len(), 1);
    }
    assert_eq!(world.credits().into_iter().collect::<Vec<_>>(), [("long".to_owned(), 3)]);
}

// policy:105
fn a_question_keeps_the_policy_it_began_with(make: MakeIndex) {
    let world = World::new(make);
    world.report(&holds("r1", "p", 10));
    world.policy(policy());
    let mut answer = Answer::new();
    let pending = must_look_up(world.router.begin(&key(b"p"), None, &mut answer));
    world.policy(Policy { lookup_timeout_ms: 5, minimum_matched_tokens: 64, ..policy() });
    world.clock.advance(Duration::from_millis(50));
    world.router.finish(&key(b"p"), &pending, &mut answer);
    assert_eq!(answer.reason, ReasonCode::PrefixMatch);
    world.router.route(&key(b"p"), None, &mut answer);
    assert_eq!(answer.reason, ReasonCode::AffinityHint);
}

fn an_embedder_may_bring_its_own_policy(make: MakeIndex) {
    #[derive(Debug)]
    struct Lenient;
    impl RoutePolicy for Lenient {
        fn effective(&self, _tenant: &str) -> Effective {
            Effective { minimum_matched_tokens: 0, routing_floor_score: 0.0, ..Effective::DEFAULT }
        }
    }
    let mut world = World::new(make);
    world.report(&holds("r1", "p", 1));
    assert_eq!(world.ask(&key(b"p")).reason, ReasonCode::AffinityHint);
    world.router.policies = Arc::new(Lenient);
    assert_eq!(world.ask(&key(b"p")).reason, ReasonCode::PrefixMatch);
}

// policy:103
fn quotas_bite_at_the_next_report(make: MakeIndex) {
    let world = World::new(make);
    let keys = || world.index().aggregate().total;
    for (age, hash) in [(3, "a"), (2, "b"), (1, "c")] {
        world.report(&Report { age: Duration::from_secs(age), ..holds("r1", hash, 16) });
    }
    let quota = TenantQuota { tenant: "t".to_owned(), max_index_entries: 1, ..TenantQuota::default() };
    world.policies.replace(PolicySet::new([], [quota]));
    assert_eq!(keys(), 3);
    world.report(&holds("r1", "d", 16));
    assert_eq!(keys(), 1);
    world.policies.replace(PolicySet::default());
    world.report(&holds("r1", "e", 16));
    assert_eq!(keys(), 2, "what was evicted stays evicted");
}

// policy:104
fn the_cap_follows_the_algorithm_in_force(make: MakeIndex) {
    for (last, survivors) in [(lfu(), ["A", "C"]), (policy(), ["B", "C"])] {
        let world = World::with_cap(make, 2);
        world.policy(lfu());
        world.report(&Report { age: Duration::from_secs(60), ..holds("r1", "A", 128) });
        world.report(&Report { age: Duration::from_secs(30), ..holds("r1", "B", 128) });
        assert_eq!(world.ask(&key(b"A")).reason, ReasonCode::PrefixMatch);
        world.policy(last.clone());
        world.report(&holds("r1", "C", 128));
        let left: Vec<_> = world.index().dump().entries.into_iter().map(|entry| entry.hash).collect();
        assert_eq!(left, survivors.map(|hash| hash.as_bytes().to_vec()), "{}", last.eviction);
    }
}
