//! field:36: the header that everybody holds says nothing about where to go, so the rest of the prompt spreads it.

use std::sync::Arc;

use inferencecache_core::policy::PolicyStore;
use inferencecache_core::query::HashList;
use inferencecache_core::{Answer, Clock, Entry, IndexOptions, ManualClock, Question, ReasonCode, Router, Update};

use crate::play::{Factory, START};

pub(crate) fn check(factory: &Factory) {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(START));
    let index = factory(IndexOptions { clock: clock.clone(), ..IndexOptions::default() });
    let header = [0xaa; 8];
    for replica in ["r-1", "r-2", "r-3"] {
        let entries = [Entry { prefix_hash: &header, token_count: 64, ..Entry::default() }];
        let identity = Update { replica, tenant: "t", model: "m", scheme: "vllm", ..Update::default() };
        index.ingest(&Update { entries: &entries, ..identity });
    }
    let router = Router { clock, ..Router::new(index, Arc::new(PolicyStore::new())) };
    let mut answer = Answer::default();
    let picks: Vec<String> = (0..300_u64)
        .map(|i| {
            let chain = [header, i.to_be_bytes()];
            let question = Question {
                tenant: "t",
                model: "m",
                scheme: "vllm",
                block_hashes: HashList::Words(&chain),
                block_token_counts: &[64, 16],
                ..Question::default()
            };
            router.route(&question, None, &mut answer);
            assert_eq!((answer.reason, answer.rows().len()), (ReasonCode::AffinityHint, 1), "field:36, {i}");
            answer.rows()[0].replica.to_string()
        })
        .collect();
    assert_eq!(picks[..6], ["r-2", "r-1", "r-2", "r-1", "r-3", "r-3"], "field:36");
    let of = |replica| picks.iter().filter(|pick| *pick == replica).count();
    assert_eq!(["r-1", "r-2", "r-3"].map(of), [89, 98, 113], "field:36");
}
