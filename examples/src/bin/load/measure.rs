//! What the server costs, read from `/proc`, and what its callers see, second by second.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// One second of a run.
#[derive(Debug, Clone)]
pub(crate) struct Second {
    pub(crate) lookups: u64,
    pub(crate) blocks: u64,
    /// Latency in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// CPU seconds of the server.
    pub(crate) cpu: f64,
    /// Resident bytes of the server.
    pub(crate) rss: u64,
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) seconds: Vec<Second>,
    /// Nanoseconds of all lookups.
    pub(crate) latency: Histogram<u64>,
    /// Answers that were no prefix match of the whole chain, and calls that failed.
    pub(crate) wrong: u64,
    /// Wall time.
    pub(crate) took: Duration,
}

/// Reads what a process has used so far.
#[derive(Debug)]
pub(crate) struct Watch {
    stat: String,
    status: String,
}

/// Clock ticks a second in `/proc`; the same on every Linux that we know.
const TICKS: f64 = 100.0;

impl Watch {
    pub(crate) fn new(process: u32) -> Result<Self> {
        let watch = Self { stat: format!("/proc/{process}/stat"), status: format!("/proc/{process}/status") };
        watch.cpu().context("reading the server's CPU time; this needs Linux")?;
        Ok(watch)
    }

    /// CPU seconds, user and system.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let text = fs::read_to_string(&self.stat)?;
        // Fields count from behind the name, which may hold blanks.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((ticks(11) + ticks(12)) / TICKS)
    }

    /// Resident bytes.
    pub(crate) fn rss(&self) -> Result<u64> {
        let text = fs::read_to_string(&self.status)?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib: u64 = line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Ok(kib * 1024)
    }
}

/// An empty histogram of nanoseconds up to a minute, good to three digits.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("a histogram")
}
