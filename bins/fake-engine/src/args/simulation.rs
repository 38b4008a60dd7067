//! The flags of the two simulations.

use std::num::NonZeroU32;
use std::time::Duration;

use bins_common::flags::{Flags, Values};
use bins_common::{Exit, duration};
use inferencecache_wire::testkit::churn::ChurnOptions;
use inferencecache_wire::testkit::script::Shape;

/// Prompts per second, at most: the timer is no finer.
const MAX_RATE: i64 = 1000;
/// Blocks that a simulated world may have.
const MAX_BLOCKS: i64 = 1_000_000;
/// Data-parallel ranks.
const MAX_RANKS: i64 = 64;

pub(super) fn flags(flags: Flags) -> Flags {
    flags
        .group("Simulated cache (with -churn-seed)")
        .integer("churn-seed", 0, "Run random prompts through a simulated cache. The seed chooses which prompts exist.")
        .integer("churn-run", 0, "Order in which they come: give every restart another one.")
        .integer("churn-rate", 50, "Prompts per second, 1 to 1000.")
        .integer("churn-blocks", 600, "Blocks that exist, over all prompts.")
        .integer("churn-capacity", 200, "Blocks that fit into the device memory of one rank.")
        .integer("churn-host-capacity", 0, "Blocks that fit into its host memory. 0: no such tier.")
        .text("churn-adapters", "", "Adapters that prompts use beside the base model: name,...")
        .integer("churn-twice-every", 0, "One of so many prompts stores its blocks in two copies. 0: none.")
        .integer("churn-clear-every", 0, "One of so many prompts is a reset of the cache. 0: none.")
        .integer("ranks", 1, "Data-parallel ranks; rank r uses the ports of -bind and -replay plus r.")
        .text("control", "", "host:port of GET /truth, /metrics and POST /pause, /resume, /sleep, /wake. Empty: none.")
        .group("Flood (with -flood-blocks)")
        .integer("flood-blocks", 0, "New blocks stored per second. 0: no flood.")
        .integer("flood-evictions", 0, "Stored blocks removed per second.")
        .duration("flood-for", "0s", "How long. 0: for ever.")
        .group("Clock")
        .text("clock-offset", "0s", "How far the engine's clock is ahead of the system's. Negative: behind.")
}

/// A simulated cache.
#[derive(Debug, Clone)]
pub(crate) struct Churning {
    pub(crate) options: ChurnOptions,
    /// Time between prompts.
    pub(crate) interval: Duration,
    /// Where it can be asked and told; empty for nowhere.
    pub(crate) control: String,
}

/// A flood.
#[derive(Debug, Clone)]
pub(crate) struct Flooding {
    pub(crate) seed: u64,
    pub(crate) block_size: NonZeroU32,
    pub(crate) shape: Shape,
    /// Blocks stored in a second.
    pub(crate) blocks: usize,
    /// Blocks removed in a second.
    pub(crate) evictions: usize,
    /// Zero: for ever.
    pub(crate) lasts: Duration,
}

/// How far the engine's clock is ahead, in seconds.
pub(super) fn clock_offset(values: &Values) -> Result<f64, Exit> {
    let text = values.text("clock-offset");
    let (sign, size) = text.strip_prefix('-').map_or((1.0, text), |size| (-1.0, size));
    let size = duration::parse(size).map_err(|why| Exit::failure(format!("-clock-offset: {why}")))?;
    Ok(sign * size.as_secs_f64())
}

/// `None` when it is not asked for.
pub(super) fn churning(values: &Values, shape: Shape) -> Result<Option<Churning>, Exit> {
    if !values.is_given("churn-seed") || values.integer("flood-blocks") != 0 {
        return Ok(None);
    }
    let names = values.text("churn-adapters").split(',').map(str::trim).filter(|name| !name.is_empty());
    let every = |flag| within(values, flag, 0, i64::from(u32::MAX)).map(|every| u32::try_from(every).unwrap_or(0));
    let options = ChurnOptions {
        seed: values.integer("churn-seed").cast_unsigned(),
        run: values.integer("churn-run").cast_unsigned(),
        block_size: block_size(values)?,
        blocks: within(values, "churn-blocks", 1, MAX_BLOCKS)?,
        capacity: within(values, "churn-capacity", 2, MAX_BLOCKS)?,
        host_capacity: within(values, "churn-host-capacity", 0, MAX_BLOCKS)?,
        ranks: within(values, "ranks", 1, MAX_RANKS)?,
        adapters: names.map(str::to_owned).collect(),
        twice_every: every("churn-twice-every")?,
        clear_every: every("churn-clear-every")?,
        shape,
    };
    let rate = u32::try_from(within(values, "churn-rate", 1, MAX_RATE)?).unwrap_or(1);
    let control = values.text("control").to_owned();
    Ok(Some(Churning { options, interval: Duration::from_secs(1) / rate, control }))
}

/// `None` when it is not asked for.
pub(super) fn flooding(values: &Values, shape: Shape) -> Result<Option<Flooding>, Exit> {
    let blocks = within(values, "flood-blocks", 0, MAX_BLOCKS)?;
    if blocks == 0 {
        return Ok(None);
    }
    Ok(Some(Flooding {
        seed: values.integer("churn-seed").cast_unsigned(),
        block_size: block_size(values)?,
        shape,
        blocks,
        evictions: within(values, "flood-evictions", 0, MAX_BLOCKS)?,
        lasts: values.duration("flood-for"),
    }))
}

fn block_size(values: &Values) -> Result<NonZeroU32, Exit> {
    let size = u32::try_from(values.integer("block-size")).ok().filter(|&size| size <= 4096).and_then(NonZeroU32::new);
    size.ok_or_else(|| Exit::failure("-block-size of a simulation must lie between 1 and 4096"))
}

fn within(values: &Values, flag: &str, low: i64, high: i64) -> Result<usize, Exit> {
    let value = values.integer(flag);
    let inside = usize::try_from(value).ok().filter(|_| (low..=high).contains(&value));
    inside.ok_or_else(|| Exit::failure(format!("-{flag} must lie between {low} and {high}")))
}
