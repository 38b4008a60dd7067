//! A tiny gateway that embeds the index as a crate: no server, no network, no runtime.
//!
//! `cargo run -p inferencecache-examples --bin embed`
//!
//! Three replicas with small caches serve chats that grow turn by turn. The gateway asks the router for a hint and goes
//! round robin when there is none; each replica reports what it stored and what it had to drop. The same traffic is
//! played once without asking, so that the difference is the index's.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use inferencecache_core::fingerprint::chain;
use inferencecache_core::{
    Answer, Entry, Event, EventKind, HashList, Index, IndexApi, IndexOptions, PolicyStore, Question, ReasonCode,
    Resolvers, Router, Update,
};

const TENANT: &str = "team-a";
const MODEL: &str = "small-model";
const SCHEME: &str = "vllm";
const BLOCK: u32 = 16;
const REPLICAS: usize = 3;
/// Blocks that one replica's cache holds.
const CAPACITY: usize = 220;
const CHATS: u32 = 10;
const TURNS: u32 = 8;

/// An engine double: keeps the most recently used blocks.
struct Engine {
    name: String,
    blocks: VecDeque<[u8; 8]>,
}

impl Engine {
    /// Serves a prompt: how many of its blocks were cached, and which blocks had to go for it.
    fn serve(&mut self, prompt: &[[u8; 8]]) -> (usize, Vec<[u8; 8]>) {
        let cached = prompt.iter().take_while(|block| self.blocks.contains(block)).count();
        for block in prompt {
            self.blocks.retain(|known| known != block);
            self.blocks.push_back(*block);
        }
        let excess = self.blocks.len().saturating_sub(CAPACITY);
        (cached, self.blocks.drain(..excess).collect())
    }
}

/// What the chat says up to and including a turn: a system prompt that all share, then 48 tokens a turn.
fn prompt(chat: u32, turn: u32) -> Vec<u32> {
    let system = 0..64;
    let turns = (0..(turn + 1) * 48).map(|i| 1_000 + chat * 10_000 + i);
    system.chain(turns).collect()
}

/// Plays the traffic; the share of prompt blocks that were cached, and how often each reason was given.
fn play(ask: bool) -> (f64, Vec<(ReasonCode, u32)>) {
    let policies = Arc::new(PolicyStore::new());
    let index = Arc::new(Index::new(IndexOptions { resolvers: Resolvers::all(&policies), ..IndexOptions::default() }));
    let mut router = Router::new(index.clone(), policies);
    router.block_size = NonZeroU32::new(BLOCK).expect("not zero");
    let mut engines: Vec<Engine> =
        (0..REPLICAS).map(|i| Engine { name: format!("replica-{i}"), blocks: VecDeque::new() }).collect();
    let (mut answer, mut keys, mut counts) = (Answer::new(), Vec::new(), Vec::new());
    let (mut cached_blocks, mut all_blocks, mut turn_of_all) = (0, 0, 0);
    let mut reasons: Vec<(ReasonCode, u32)> = Vec::new();

    for turn in 0..TURNS {
        for chat in 0..CHATS {
            let tokens = prompt(chat, turn);
            // The hint, or round robin.
            let mut target = turn_of_all % REPLICAS;
            turn_of_all += 1;
            if ask {
                let question = Question {
                    tenant: TENANT,
                    model: MODEL,
                    scheme: SCHEME,
                    token_ids: &tokens,
                    ..Question::default()
                };
                router.route(&question, None, &mut answer);
                match reasons.iter_mut().find(|(reason, _)| *reason == answer.reason) {
                    Some((_, times)) => *times += 1,
                    None => reasons.push((answer.reason, 1)),
                }
                if let Some(best) = answer.rows().first() {
                    target = engines.iter().position(|engine| engine.name == *best.replica).unwrap_or(target);
                }
            }
            // The engine serves it and says what changed in its cache.
            keys.clear();
            counts.clear();
            chain(&tokens, router.block_size, &mut keys, &mut counts);
            let engine = &mut engines[target];
            let (cached, dropped) = engine.serve(&keys);
            cached_blocks += cached;
            all_blocks += keys.len();
            let stored =
                [Entry { block_hashes: HashList::Words(&keys), block_token_counts: &counts, ..Entry::default() }];
            index.ingest(&Update {
                replica: &engine.name,
                tenant: TENANT,
                model: MODEL,
                scheme: SCHEME,
                entries: &stored,
                ..Update::default()
            });
            for hash in &dropped {
                index.apply_event(&Event {
                    kind: EventKind::PrefixEvicted,
                    replica: &engine.name,
                    tenant: TENANT,
                    model: MODEL,
                    prefix_hash: hash,
                    ..Event::default()
                });
            }
        }
    }
    (f64::from(u32::try_from(cached_blocks).unwrap_or(0)) / f64::from(u32::try_from(all_blocks).unwrap_or(1)), reasons)
}

fn main() {
    let (without, _) = play(false);
    let (with, reasons) = play(true);
    println!("{CHATS} chats of {TURNS} turns over {REPLICAS} replicas of {CAPACITY} blocks each\n");
    println!("  round robin      {:>5.1} % of prompt blocks were cached", without * 100.0);
    println!("  asking the index {:>5.1} %\n", with * 100.0);
    for (reason, times) in reasons {
        println!("  {:<16} {times} times", reason.as_str());
    }
}
