//! What a suite found.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::rules::Rule;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub rule: Rule,
    /// On which fixture.
    pub fixture: String,
    /// What was seen.
    pub message: String,
}

/// Everything that a suite found. Empty, the subject conforms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// What was found, in the order of the fixtures.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The rules that were broken.
    pub fn broken(&self) -> BTreeSet<Rule> {
        self.findings.iter().map(|finding| finding.rule).collect()
    }

    /// Panics with every finding, unless there is none.
    #[track_caller]
    pub fn assert_conforms(&self) {
        assert!(self.findings.is_empty(), "{self}");
    }

    pub(super) fn add(&mut self, rule: Rule, fixture: &str, message: impl Into<String>) {
        self.findings.push(Finding { rule, fixture: fixture.to_owned(), message: message.into() });
    }

    /// Adds a finding unless `holds`.
    pub(super) fn check(&mut self, holds: bool, rule: Rule, fixture: &str, message: impl FnOnce() -> String) {
        if !holds {
            self.add(rule, fixture, message());
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.is_empty() {
            return f.write_str("conforms");
        }
        writeln!(f, "{} findings:", self.findings.len())?;
        for finding in &self.findings {
            writeln!(f, "{:?} ({}) on {:?}: {}", finding.rule, finding.rule.text(), finding.fixture, finding.message)?;
        }
        Ok(())
    }
}

/// A value as reports show it.
pub(super) fn text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
