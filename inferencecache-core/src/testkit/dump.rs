//! The whole state of an index as plain sorted lists, so that two indexes can be compared and survivors named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::time::Micros;
use crate::update::Stats;

/// An index that can show everything it holds.
pub trait Inspect {
    /// Every storage entry and every stats row, sorted.
    fn dump(&self) -> Dump;
}

/// Everything an index holds. Sorted on construction, so equality means equal state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dump {
    /// Storage entries by (tenant, model, scheme, adapter, hash, replica).
    pub entries: Vec<DumpEntry>,
    /// Stats rows by (tenant, model, replica).
    pub stats: Vec<DumpStats>,
}

/// One storage entry: `replica` holds `hash`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DumpEntry {
    /// Tenant.
    pub tenant: Arc<str>,
    /// Model.
    pub model: Arc<str>,
    /// Engine compatibility tag.
    pub scheme: Arc<str>,
    /// Partition.
    pub adapter: Arc<str>,
    /// Opaque key.
    pub hash: Vec<u8>,
    /// Holder.
    pub replica: Arc<str>,
    /// Tokens up to and including this block.
    pub token_count: i32,
    /// Stamp of the last report.
    pub last_seen: Micros,
    /// Stored tier.
    pub tier: i32,
    /// Credited hits.
    pub access_count: u64,
}

/// One stats row.
#[derive(Debug, Clone, PartialEq)]
pub struct DumpStats {
    /// Tenant.
    pub tenant: Arc<str>,
    /// Model.
    pub model: Arc<str>,
    /// Replica.
    pub replica: Arc<str>,
    /// Load figures as stored.
    pub stats: Stats,
    /// Liveness.
    pub last_seen: Micros,
    /// When the figures were reported.
    pub stats_reported: Micros,
}

/// The identity of a distinct prefix: (tenant, model, scheme, adapter, hash).
pub type PrefixKey<'a> = (&'a str, &'a str, &'a str, &'a str, &'a [u8]);

impl DumpEntry {
    /// The distinct prefix this entry holds.
    #[must_use]
    pub fn key(&self) -> PrefixKey<'_> {
        (&self.tenant, &self.model, &self.scheme, &self.adapter, &self.hash)
    }
}

impl Dump {
    /// Sorts both lists.
    #[must_use]
    pub fn new(mut entries: Vec<DumpEntry>, mut stats: Vec<DumpStats>) -> Self {
        entries.sort_unstable();
        stats.sort_by(|a, b| (&a.tenant, &a.model, &a.replica).cmp(&(&b.tenant, &b.model, &b.replica)));
        Self { entries, stats }
    }

    /// The distinct prefixes.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<PrefixKey<'_>> {
        self.entries.iter().map(DumpEntry::key).collect()
    }

    /// For each (tenant, model, scheme): how many distinct prefixes each replica holds there, over all adapters.
    #[must_use]
    pub fn serving(&self) -> BTreeMap<(&str, &str, &str), BTreeMap<&str, u64>> {
        let mut serving: BTreeMap<_, BTreeMap<&str, u64>> = BTreeMap::new();
        for entry in &self.entries {
            let scope = (&*entry.tenant, &*entry.model, &*entry.scheme);
            *serving.entry(scope).or_default().entry(&entry.replica).or_default() += 1;
        }
        serving
    }

    /// Distinct prefixes by model, over the tenants that `counts` accepts.
    #[must_use]
    pub fn keys_by_model(&self, counts: impl Fn(&str) -> bool) -> BTreeMap<&str, u64> {
        let mut by_model = BTreeMap::new();
        for (_, model, ..) in self.keys().into_iter().filter(|key| counts(key.0)) {
            *by_model.entry(model).or_default() += 1;
        }
        by_model
    }

    /// What `other` has differently, as text: lines with `-` are only here, lines with `+` only there. Empty when equal.
    #[must_use]
    pub fn diff(&self, other: &Self) -> String {
        let mut lines = String::new();
        for (sign, these, those) in [('-', self, other), ('+', other, self)] {
            for entry in these.entries.iter().filter(|entry| !those.entries.contains(entry)) {
                lines += &format!("{sign} {entry:?}\n");
            }
            for row in these.stats.iter().filter(|row| !those.stats.contains(row)) {
                lines += &format!("{sign} {row:?}\n");
            }
        }
        lines
    }
}
