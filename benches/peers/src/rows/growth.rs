//! P19: does a lookup get slower as the index grows?

use crate::measure::{Effort, Spread, ask, check, percentile, queries, store};
use crate::report::{Figure, Outcome, Target};
use crate::subjects::make;
use crate::workload::Workload;

pub(super) fn growth(effort: Effort) -> Vec<Outcome> {
    let mut readers = Vec::new();
    let mut size = 10_000;
    while size <= effort.largest {
        let mut subject = make("ours, single", 64);
        let mut asked = Vec::new();
        // In pieces, so that what is prepared never takes more memory than the index itself.
        const PIECE: usize = 500_000;
        let mut first = 0;
        while first < size {
            let blocks = PIECE.min(size - first);
            let piece = Workload::from(first as u64 / 64, blocks, 64, 64);
            store(&mut *subject, &piece, &piece.stores(1, 32));
            asked.extend(queries(&piece, 2000 * blocks / size + 1).into_iter().map(<[u64]>::to_vec));
            first += blocks;
        }
        let asked: Vec<&[u64]> = asked.iter().map(Vec::as_slice).collect();
        let mut reader = subject.reader();
        check("ours", &mut *reader, &asked, 1);
        let rounds = (0..effort.rounds).map(|_| {
            let (mut times, _) = ask(&mut *reader, asked.len(), effort.lookups, 16);
            percentile(&mut times, 50.0) as f64
        });
        readers.push((size, Spread::of(rounds.collect())));
        size *= 10;
    }
    let figure = |(size, spread): &(usize, Spread)| Figure::new(&format!("ours, {size} blocks"), *spread);
    let mut figures: Vec<Figure> = readers.iter().map(figure).collect();
    let (least, most) = (figures[0].value, figures.iter().map(|figure| figure.value).fold(0.0, f64::max));
    figures.insert(0, Figure::new("ours, worst over smallest", Spread::of(vec![most / least])));
    let workload = format!("lookup p50, 64 blocks, from 10000 to {} blocks", effort.largest);
    let mut outcome = Outcome::judge("P19", workload, "ns; ×", figures, Target::Absolute(2.5));
    (outcome.ours, outcome.ratio) = (most / least, most / least);
    outcome.met = outcome.ratio <= outcome.limit;
    vec![outcome]
}
