//! P4 to P6: a chain of one holder, all of it there. P8: a chain whose first block nobody holds.

use super::{EXACT_PEERS, subjects};
use crate::measure::{Effort, Spread, ask, check, percentile, queries, store};
use crate::report::{Figure, Outcome, Target};
use crate::subjects::{Reader, make};
use crate::workload::{Workload, hash};

pub(super) fn middle(effort: Effort) -> Vec<Outcome> {
    hits("P4", effort, 512, 0.8)
}

pub(super) fn short(effort: Effort) -> Vec<Outcome> {
    hits("P5", effort, 64, 0.7)
}

pub(super) fn long(effort: Effort) -> Vec<Outcome> {
    hits("P6", effort, 4096, 0.85)
}

fn hits(row: &str, effort: Effort, len: usize, limit: f64) -> Vec<Outcome> {
    let sizes = [64, 1024].into_iter();
    let each = sizes.map(|replicas| {
        let workload = Workload::of(effort.blocks, replicas, len);
        let asked = queries(&workload, 2000);
        let ops = workload.stores(1, 32);
        // All of them live at once and take turns, so that a disturbance of the machine hits all alike.
        let mut kept = Vec::new();
        let mut readers: Vec<(&str, Box<dyn Reader>, Vec<f64>)> = Vec::new();
        for name in subjects(&EXACT_PEERS) {
            let mut subject = make(name, replicas);
            store(&mut *subject, &workload, &ops);
            let mut reader = subject.reader();
            check(name, &mut *reader, &asked, 1);
            readers.push((name, reader, Vec::new()));
            kept.push(subject);
        }
        for _ in 0..effort.rounds {
            for (_, reader, figures) in &mut readers {
                let (mut times, _) = ask(&mut **reader, asked.len(), effort.lookups * 64 / len, (1024 / len).max(1));
                figures.push(percentile(&mut times, 50.0) as f64);
            }
        }
        let figures = readers.into_iter().map(|(name, _, times)| Figure::new(name, Spread::of(times))).collect();
        let workload = format!("lookup p50, {len} blocks, one holder, {replicas} replicas");
        Outcome::judge(row, workload, "ns", figures, Target::Peers(limit, &["kv-index"]))
    });
    each.collect()
}

pub(super) fn miss(effort: Effort) -> Vec<Outcome> {
    let roots = [1usize, 100, 10_000, effort.blocks / 10];
    let absent: Vec<Vec<u64>> = (0..1000).map(|id| (0..64).map(|i| hash(1 << 40 | id, i)).collect()).collect();
    let absent: Vec<&[u64]> = absent.iter().map(Vec::as_slice).collect();
    let figures = subjects(&EXACT_PEERS).into_iter().map(|name| {
        let worst = roots.iter().map(|&roots| {
            let workload = Workload::of(roots * 2, 64, 2);
            let mut subject = make(name, 64);
            store(&mut *subject, &workload, &workload.stores(1, 32));
            let mut reader = subject.reader();
            reader.prepare(&absent);
            let rounds = (0..effort.rounds).map(|_| {
                let (mut times, depths) = ask(&mut *reader, absent.len(), effort.lookups, 16);
                assert_eq!(depths, 0, "{name}: a hit where nobody holds anything");
                percentile(&mut times, 50.0) as f64
            });
            Spread::of(rounds.collect())
        });
        let worst = worst.max_by(|a, b| a.median.total_cmp(&b.median)).expect("there are sizes");
        Figure::new(name, worst)
    });
    let workload = format!("first-block miss, worst p50 over 1 to {} root chains", roots[3]);
    vec![Outcome::judge("P8", workload, "ns", figures.collect(), Target::Peers(1.3, &["smg-radix-tree"]))]
}
