//! P13: storing into a full index, where every block drives another out.

use crate::measure::{Effort, Spread, store};
use crate::report::{Figure, Outcome, Target};
use crate::subjects::capped;
use crate::workload::Workload;

pub(super) fn at_the_cap(effort: Effort) -> Vec<Outcome> {
    let filling = Workload::of(effort.blocks, 64, 64);
    let more = Workload::from(1 << 24, effort.blocks / 5, 64, 64);
    let (fill, ops) = (filling.stores(1, 32), more.stores(1, 32));
    let cost = |cap: u64| {
        let mut subject = capped(64, cap);
        store(&mut *subject, &filling, &fill);
        store(&mut *subject, &more, &ops)
    };
    let ratios = (0..effort.rounds).map(|_| {
        let (below, at) = (cost(effort.blocks as u64 * 2), cost(effort.blocks as u64));
        at / below
    });
    let figure = Figure::new("ours, single", Spread::of(ratios.collect()));
    let workload = "store, new blocks, at the entry cap over below it";
    vec![Outcome::judge("P13", workload, "×", vec![figure], Target::Absolute(2.0))]
}
