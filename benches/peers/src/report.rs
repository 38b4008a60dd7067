//! Rows, verdicts, and how they are printed.

use std::fmt::Write as _;

use serde::Serialize;

use crate::measure::Spread;

/// A figure of one subject.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Whose.
    pub subject: String,
    /// Median.
    pub value: f64,
    /// Least and most of the runs.
    pub spread: [f64; 2],
}

impl Figure {
    /// Of several runs.
    #[must_use]
    pub fn new(subject: &str, spread: Spread) -> Self {
        Self { subject: subject.to_owned(), value: spread.median, spread: [spread.low, spread.high] }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Number of the target.
    pub row: String,
    /// What was done.
    pub workload: String,
    /// Unit of all figures.
    pub unit: String,
    /// All figures; ours come first.
    pub figures: Vec<Figure>,
    /// The worst figure of ours.
    pub ours: f64,
    /// What it is held against: a peer's figure, or 1 for an absolute target.
    pub against: f64,
    /// Name of that.
    pub against_name: String,
    /// `ours / against`.
    pub ratio: f64,
    /// The most that the ratio may be.
    pub limit: f64,
    /// Whether it is no more.
    pub met: bool,
}

/// What a row is held against.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// No more than this many times the best of these peers.
    Peers(f64, &'a [&'a str]),
    /// No more than this.
    Absolute(f64),
}

impl Outcome {
    /// Judges figures. The worst of ours counts, and the best of the named peers.
    ///
    /// # Panics
    /// When a named subject is missing.
    #[must_use]
    pub fn judge(row: &str, workload: impl Into<String>, unit: &str, figures: Vec<Figure>, target: Target<'_>) -> Self {
        let ours = figures.iter().filter(|figure| figure.subject.starts_with("ours")).map(|figure| figure.value);
        let ours = ours.reduce(f64::max).expect("ours is among the figures");
        let (limit, against, against_name) = match target {
            Target::Absolute(limit) => (limit, 1.0, "absolute".to_owned()),
            Target::Peers(limit, names) => {
                let peers = figures.iter().filter(|figure| names.contains(&figure.subject.as_str()));
                let best = peers.min_by(|a, b| a.value.total_cmp(&b.value)).expect("the peer is among the figures");
                (limit, best.value, best.subject.clone())
            }
        };
        let ratio = ours / against;
        Self {
            row: row.to_owned(),
            workload: workload.into(),
            unit: unit.to_owned(),
            ours,
            against,
            against_name,
            ratio,
            limit,
            met: ratio <= limit,
            figures,
        }
    }
}

/// The Markdown table of all rows.
#[must_use]
pub fn markdown(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| row | workload | unit | ours | peers | against | ratio | target | |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let list = |ours: bool| {
            let figures = outcome.figures.iter().filter(|figure| figure.subject.starts_with("ours") == ours);
            let cell = |figure: &Figure| {
                let name = figure.subject.trim_start_matches("ours").trim_start_matches(", ");
                let [low, high] = figure.spread;
                let spread = if high > low { format!(" ({}–{})", short(low), short(high)) } else { String::new() };
                format!("{name} {}{spread}", short(figure.value)).trim().to_owned()
            };
            figures.map(cell).collect::<Vec<_>>().join("<br>")
        };
        let verdict = if outcome.met { "MET" } else { "**MISSED**" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {:.2} | ≤ {} | {verdict} |",
            outcome.row,
            outcome.workload,
            outcome.unit,
            list(true),
            list(false),
            outcome.against_name,
            outcome.ratio,
            outcome.limit,
        );
    }
    text
}

fn short(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}
