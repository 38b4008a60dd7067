//! The table.

use std::fmt::Write as _;

use crate::Settings;
use crate::measure::Run;

/// A run as Markdown.
pub(crate) fn table(settings: &Settings, run: &Run) -> String {
    let (lookups, blocks): (u64, u64) = run.seconds.iter().fold((0, 0), |(a, b), s| (a + s.lookups, b + s.blocks));
    let cpu: f64 = run.seconds.iter().map(|second| second.cpu).sum();
    let long = run.seconds.len().max(1) as f64;
    let rss = |second: Option<&crate::measure::Second>| second.map_or(0.0, |second| second.rss as f64 / 1e6);
    let at = |quantile: f64| run.latency.value_at_quantile(quantile) as f64 / 1000.0;
    let mut text = String::from("# A server under load\n\n");
    let _ = writeln!(
        text,
        "One `inferencecache-server` and its callers on one machine over loopback, {} s: {} connections that ask one question of \
         {} hashes at a time, one stream that reports {} new blocks a second, {} blocks of {} replicas in the index, at its cap. \
         Made by `make load`; figures of another machine differ.\n",
        run.seconds.len(),
        settings.connections,
        settings.hashes,
        if settings.ingest == 0 { "as many as it can of".to_owned() } else { settings.ingest.to_string() },
        settings.blocks,
        settings.replicas,
    );
    let rows: [(&str, String); 10] = [
        ("LookupRoute a second", format!("{:.0}", lookups as f64 / long)),
        ("latency p50", format!("{:.0} µs", at(0.5))),
        ("latency p99", format!("{:.0} µs", at(0.99))),
        ("latency p99.9", format!("{:.0} µs", at(0.999))),
        ("blocks stored a second", format!("{:.0}", blocks as f64 / long)),
        ("CPU of the server, both together", format!("{:.2} cores", cpu / long)),
        ("CPU of the server a lookup, stores included", format!("{:.1} µs", cpu * 1e6 / lookups.max(1) as f64)),
        ("resident memory, first second", format!("{:.0} MB", rss(run.seconds.first()))),
        ("resident memory, last second", format!("{:.0} MB", rss(run.seconds.last()))),
        ("answers that were not the whole chain", run.wrong.to_string()),
    ];
    text.push_str("| figure | value |\n|---|---|\n");
    for (name, value) in rows {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    let _ = writeln!(text, "\n![lookups, latency and memory over time](load.svg)");
    let _ = run.took;
    text
}
