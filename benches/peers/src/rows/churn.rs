//! P14: a reader while one writer stores and removes at full speed on the other core.

use std::sync::atomic::{AtomicBool, Ordering};

use super::subjects;
use crate::measure::{Effort, Spread, ask, percentile, queries, store};
use crate::report::{Figure, Outcome, Target};
use crate::subjects::make;
use crate::workload::Workload;

pub(super) fn reading_while_writing(effort: Effort) -> Vec<Outcome> {
    const LEN: usize = 512;
    let names = subjects(&["kv-index", "crtc"]);
    let still = Workload::of(effort.blocks / 2, 64, LEN);
    let moving = Workload::from(1 << 24, effort.blocks / 2, 64, LEN);
    let asked = queries(&still, 1000);
    let (mut tails, mut rates) = (vec![Vec::new(); names.len()], vec![Vec::new(); names.len()]);
    for _ in 0..effort.rounds {
        for (i, name) in names.iter().enumerate() {
            let mut subject = make(name, 64);
            store(&mut *subject, &still, &still.stores(1, 32));
            let mut reader = subject.reader();
            reader.prepare(&asked);
            let done = AtomicBool::new(false);
            let ops: Vec<_> = [moving.stores(1, 32), moving.removes(1, 32)].concat();
            subject.prepare(&moving, &ops);
            let (times, took) = std::thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    let mut times = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let (some, depths) = ask(&mut *reader, asked.len(), 500, 1);
                        assert_eq!(depths, 550 * LEN as u64, "{name}: a wrong answer beside a writer");
                        times.extend(some);
                    }
                    times
                });
                let took = subject.run();
                done.store(true, Ordering::Relaxed);
                (reading.join().expect("the reader ends"), took)
            });
            let mut times = times;
            tails[i].push(percentile(&mut times, 99.0) as f64);
            // Millions of blocks a second, inverted so that less is better, as everywhere.
            rates[i].push(took as f64 / Workload::blocks(&ops) as f64);
        }
    }
    let figures = |of: Vec<Vec<f64>>| -> Vec<Figure> {
        names.iter().zip(of).map(|(name, times)| Figure::new(name, Spread::of(times))).collect()
    };
    let workload = "reader p99, 512 blocks, beside a writer at full speed";
    let tail = Outcome::judge("P14", workload, "ns", figures(tails), Target::Peers(0.65, &["kv-index"]));
    let workload = "that writer, stores and removes";
    let rate = Outcome::judge("P14", workload, "ns/block", figures(rates), Target::Peers(1.0 / 1.2, &["crtc"]));
    vec![tail, rate]
}
