//! P7: one chain that most of 1,024 replicas hold.

use super::{EXACT_PEERS, subjects};
use crate::measure::{Effort, Spread, ask, check, percentile, store};
use crate::report::{Figure, Outcome, Target};
use crate::subjects::make;
use crate::workload::Workload;

pub(super) fn wide(effort: Effort) -> Vec<Outcome> {
    const SCORED: u32 = 630;
    let (workload, ops) = Workload::wide(1024, SCORED, 64);
    let background = Workload::of(effort.blocks / 10, 1024, 64);
    let query = [workload.chains[0].as_slice()];
    let mut readers = Vec::new();
    let mut kept = Vec::new();
    for name in subjects(&EXACT_PEERS) {
        let mut subject = make(name, 1024);
        store(&mut *subject, &background, &background.stores(1, 32));
        store(&mut *subject, &workload, &ops);
        let mut reader = subject.reader();
        check(name, &mut *reader, &query, SCORED);
        readers.push((name, reader, Vec::new()));
        kept.push(subject);
    }
    for _ in 0..effort.rounds {
        for (_, reader, figures) in &mut readers {
            let (mut times, _) = ask(&mut **reader, 1, effort.lookups / 4, 1);
            figures.push(percentile(&mut times, 50.0) as f64);
        }
    }
    let figures = readers.into_iter().map(|(name, _, times)| Figure::new(name, Spread::of(times))).collect();
    let workload = "wide lookup, 1024 replicas, 630 scored, 64 blocks; ours ranked, peers unranked";
    vec![Outcome::judge("P7", workload, "ns", figures, Target::Peers(0.6, &["crtc"]))]
}
