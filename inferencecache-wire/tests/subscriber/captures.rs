//! Recorded engines, replayed through decoder, map and window into a model of the server: what it then holds must predict
//! how many tokens of each prompt the engine reused.

use std::collections::HashSet;
use std::path::Path;

use inferencecache_core::fingerprint::prefix_digests;
use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use inferencecache_wire::subscriber::window::{Delivery, Outgoing};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Row {
    frame: Option<[String; 3]>,
    request: Option<Request>,
    #[serde(default)]
    reset: bool,
}

#[derive(Debug, Deserialize)]
struct Request {
    model: String,
    token_ids: Vec<u32>,
    cached_tokens: usize,
}

struct Capture {
    file: &'static str,
    block_size: u32,
    /// The engine computes the last token of a prompt again, even if it has it.
    recomputes_last: bool,
    /// Adapters that request rows name as their model.
    adapters: &'static [&'static str],
}

/// What a server holds after the calls so far.
#[derive(Default)]
struct Server(HashSet<(String, u64)>);

impl Server {
    fn take(&mut self, out: &mut Vec<Outgoing>, ingest: &mut Ingest<MsgpackDecoder>) {
        for Outgoing { delivery, .. } in out.drain(..) {
            let adapters = ingest.map().adapters();
            match delivery {
                Delivery::Report { entries, .. } => {
                    self.0.extend(entries.iter().map(|e| (adapters.name(e.adapter).to_string(), e.digest)));
                }
                Delivery::Evict { digest, adapter, .. } => {
                    let adapter = adapters.name(adapter);
                    self.0.retain(|held| held.1 != digest || !adapter.is_empty() && *held.0 != **adapter);
                }
                Delivery::Clear { .. } => self.0.clear(),
            }
        }
    }

    /// Tokens of the longest run of blocks from the start of the prompt.
    fn matched(&self, adapter: &str, tokens: &[u32], block_size: u32) -> usize {
        let mut digests = Vec::new();
        prefix_digests(tokens, block_size.try_into().expect("positive"), &mut digests);
        let run = digests.iter().take_while(|&&digest| self.0.contains(&(adapter.to_owned(), digest))).count();
        run * block_size as usize
    }
}

/// Returns how many requests were predicted, how many there are, and the rows that were not.
fn replay(capture: &Capture) -> (usize, usize, Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/captures").join(capture.file);
    let text = std::fs::read_to_string(path).expect("the capture");
    let mut ingest = Ingest::new(MsgpackDecoder::default(), Rules::default(), true, 100);
    let (mut server, mut out, mut notices) = (Server::default(), Vec::new(), Vec::new());
    let (mut right, mut total, mut wrong, mut after_reset) = (0, 0, Vec::new(), false);
    for (line, row) in text.lines().enumerate() {
        let row: Row = serde_json::from_str(row).expect("a row");
        after_reset |= row.reset;
        if let Some([_, sequence, payload]) = row.frame {
            let sequence = u64::from_str_radix(&sequence, 16).expect("a number");
            let message = Message { connection: 0, sequence: Some(sequence), payload: &unhex(&payload) };
            ingest.apply(message, 0, &mut out, &mut notices).expect("a batch");
        }
        if let Some(Request { model, token_ids, cached_tokens }) = row.request {
            ingest.flush(&mut out);
            server.take(&mut out, &mut ingest);
            let adapter = capture.adapters.iter().find(|&&name| name == model).copied().unwrap_or("");
            let mut matched = server.matched(adapter, &token_ids, capture.block_size);
            if capture.recomputes_last && matched == token_ids.len() {
                matched = matched.saturating_sub(capture.block_size as usize);
            }
            total += 1;
            if matched == cached_tokens {
                right += 1;
            } else {
                let note = if std::mem::take(&mut after_reset) { " (first after the reset)" } else { "" };
                wrong.push(format!("line {}: {matched} instead of {cached_tokens}{note}", line + 1));
            }
            after_reset = false;
        }
    }
    assert_eq!(notices, []);
    assert_eq!(ingest.tally().bad_batches + ingest.tally().bad_events, 0);
    (right, total, wrong)
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

#[test]
fn what_vllm_reused_is_predicted_but_for_the_unannounced_reset() {
    let capture =
        Capture { file: "vllm-0.32-cpu-a.jsonl", block_size: 32, recomputes_last: true, adapters: &["legal"] };
    let (right, total, wrong) = replay(&capture);
    assert_eq!((right, total), (78, 79), "{wrong:#?}");
    assert!(wrong[0].ends_with("(first after the reset)"), "{wrong:?}");
}

#[test]
fn what_sglang_reused_is_predicted() {
    let capture =
        Capture { file: "sglang-0.5.23-radix-a.jsonl", block_size: 16, recomputes_last: false, adapters: &[] };
    let (right, total, wrong) = replay(&capture);
    assert_eq!((right, total), (107, 107), "{wrong:#?}");
}
