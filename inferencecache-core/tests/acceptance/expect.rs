//! The steps of a case that state what must be so.

use std::collections::BTreeMap;
use std::fmt::Debug;

use inferencecache_core::testkit::{Call, Dump, DumpEntry};
use inferencecache_core::{Clock, Row};

use crate::notation::{Body, ExpectedRow, Scope, duration, number};
use crate::play::{Outcome, World};

impl World {
    pub(crate) fn holds(&self, text: &str) -> Outcome {
        let dump = self.index.dump();
        let listed: Vec<_> = text.split(", ").filter(|&hold| hold != "nothing").map(|hold| self.hold(hold)).collect();
        for (scope, replica, body) in &listed {
            let Some(entry) = dump.entries.iter().find(|entry| is_hold(entry, scope, replica, body)) else {
                return Err(format!("{replica}:{} in {scope:?} is missing among {:#?}", body.key, dump.entries));
            };
            let age = self.clock.now() - entry.last_seen;
            let agrees = body.tokens.is_none_or(|tokens| tokens == entry.token_count)
                && body.age.is_none_or(|wanted| wanted == age)
                && body.tier.is_none_or(|tier| tier == entry.tier)
                && body.credits.is_none_or(|credits| credits == entry.access_count);
            if !agrees {
                return Err(format!("stored, {age} µs old: {entry:?}"));
            }
        }
        equal(&dump.entries.len(), &listed.len(), &dump.entries)
    }

    /// `r@20m^0`: liveness and report.
    pub(crate) fn stats_rows(&self, text: &str) -> Outcome {
        let dump = self.index.dump();
        let listed: Vec<&str> = text.split(", ").filter(|&row| row != "nothing").collect();
        for row in &listed {
            let (scope, rest) = self.scope.strip(row);
            let (rest, reported) = rest.split_once('^').map_or((rest, None), |(r, age)| (r, Some(duration(age))));
            let (replica, seen) = rest.split_once('@').map_or((rest, None), |(r, age)| (r, Some(duration(age))));
            let found = dump
                .stats
                .iter()
                .find(|row| *row.tenant == *scope.tenant && *row.model == *scope.model && *row.replica == *replica);
            let now = self.clock.now();
            let agrees = found.is_some_and(|row| {
                seen.is_none_or(|age| now - row.last_seen == age)
                    && reported.is_none_or(|age| now - row.stats_reported == age)
            });
            if !agrees {
                return Err(format!("at {now}: {:#?}", dump.stats));
            }
        }
        equal(&dump.stats.len(), &listed.len(), &dump.stats)
    }

    pub(crate) fn tally(&self, text: &str) -> Outcome {
        let totals = self.sink.totals();
        let mut got: BTreeMap<String, u64> = BTreeMap::new();
        got.extend(totals.evicted.iter().map(|((algorithm, cause), n)| (format!("{algorithm}/{cause}"), *n)));
        got.extend(totals.over_quota.iter().map(|(tenant, n)| (format!("over_entries[{tenant}]"), *n)));
        equal(&got, &counts(text, ", ", ' '), &())
    }

    pub(crate) fn gauges(&self, text: &str) -> Outcome {
        equal(&self.sink.totals().gauges, &counts(text, " ", '='), &())
    }

    pub(crate) fn calls(&self, text: &str) -> Outcome {
        let calls = self.sink.take_calls();
        let got: Vec<String> = calls.iter().map(|call: &Call| format!("{call:?}")).collect();
        let want: Vec<&str> = text.split("; ").filter(|&call| call != "nothing").collect();
        equal(&got, &want.into_iter().map(str::to_owned).collect(), &())
    }

    pub(crate) fn total(&self, text: &str) -> Outcome {
        let (total, reserved) = text.split_once(" reserved ").expect("total reserved");
        equal(&self.index.storage_entries(), &(number(total), number(reserved)), &())
    }

    pub(crate) fn keys(&self, text: &str) -> Outcome {
        let want: BTreeMap<String, u64> = counts(text, " ", '=').into_iter().filter(|&(_, count)| count > 0).collect();
        let got = self.index.aggregate().by_tenant;
        equal(&got.into_iter().map(|(tenant, count)| (tenant.to_string(), count)).collect(), &want, &())
    }

    pub(crate) fn serving(&self, text: &str) -> Outcome {
        let (scope, listed) = self.scope.strip(text);
        let dump: Dump = self.index.dump();
        let key = (&*scope.tenant, &*scope.model, &*scope.scheme);
        let got = dump.serving().remove(&key).unwrap_or_default();
        let got = got.into_iter().map(|(replica, count)| (replica.to_owned(), count)).collect();
        equal(&got, &counts(listed.trim().trim_start_matches("nobody"), " ", '='), &())
    }

    pub(crate) fn affinity(&self, text: &str) -> Outcome {
        let (seed, want) = text.split_once("=> ").expect("seed => replica");
        let digits = seed.trim().as_bytes().chunks(2);
        let seed: Vec<u8> =
            digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).expect("hex"), 16).expect("hex")).collect();
        let Scope { tenant, model, scheme } = &self.scope;
        let got = self.index.affinity_hint(tenant, model, scheme, &seed);
        equal(&got.as_deref().unwrap_or("nobody"), &want, &())
    }
}

fn is_hold(entry: &DumpEntry, scope: &Scope, replica: &str, body: &Body) -> bool {
    entry.key() == (&*scope.tenant, &*scope.model, &*scope.scheme, &*body.adapter, body.key.as_bytes())
        && *entry.replica == *replica
}

/// Reads `name 1, other 2` with these separators.
fn counts(text: &str, between: &str, inside: char) -> BTreeMap<String, u64> {
    let words = text.split(between).filter(|word| !word.is_empty() && *word != "nothing");
    words.map(|word| word.split_once(inside).expect("name and count")).map(|(n, c)| (n.to_owned(), number(c))).collect()
}

pub(crate) fn equal<T: PartialEq + Debug>(got: &T, want: &T, context: &impl Debug) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("got {got:?}, want {want:?} {context:?}")) }
}

pub(crate) fn compare_rows(got: &[Row], want: &[ExpectedRow]) -> Outcome {
    let agrees = |(row, want): (&Row, &ExpectedRow)| {
        *row.replica == *want.replica
            && same_figure(row.score, want.score)
            && want.details.is_none_or(|(matched, prob, tier)| {
                row.matched_tokens == matched && same_figure(row.hit_prob, prob) && row.tier == tier
            })
    };
    if got.len() == want.len() && got.iter().zip(want).all(agrees) { Ok(()) } else { Err(format!("rows {got:#?}")) }
}

/// Equal to four significant digits.
fn same_figure(got: f32, want: f64) -> bool {
    format!("{:.3e}", f64::from(got)) == format!("{want:.3e}")
}
