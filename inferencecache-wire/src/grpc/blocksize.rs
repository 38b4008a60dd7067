//! Notices reports whose blocks cannot be those of `--engine-block-size`.
//!
//! A server that fingerprints token ids with blocks of 16 matches nothing of an engine whose blocks hold 32, and no error
//! says so. The token counts of reports give it away:
//!
//! ```text
//! chain entry   [32, 32, 32]        each count is a block size          != 16            -> mismatch
//! single entry  24                  a cumulative count is a multiple    24 % 16 != 0     -> mismatch
//! single entry  32, then 64, 96     three distinct, greatest divisor 32 = 2 x 16         -> mismatch
//! ```
//!
//! Each such report is counted; the first of a scope (tenant, model, scheme) is logged with the sizes. Only entries in
//! engine memory are looked at, since offload tiers keep chunks of their own size. Nothing stored or answered changes.
//!
//! The number of scopes that are remembered is bounded. Beyond it reports are judged alone: still counted, not logged.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use inferencecache_core::{Entry, Update};
use parking_lot::{Mutex, RwLock};

/// Most scopes remembered.
const MAX_SCOPES: usize = 10_000;

/// Distinct counts that it takes before their greatest common divisor means something.
const ENOUGH: usize = 3;

/// What was seen of all scopes.
#[derive(Debug)]
pub(super) struct BlockSizes {
    configured: u32,
    max_scopes: usize,
    scopes: RwLock<HashMap<ScopeKey, Arc<Scope>>>,
}

type ScopeKey = (Box<str>, Box<str>, Box<str>);

/// What was seen of one scope. A stream keeps the one of its last report, so that the next need not search.
#[derive(Debug)]
pub(super) struct Scope {
    key: ScopeKey,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    counts: Counts,
    warned: bool,
}

/// Token counts of entries in engine memory.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Greatest common divisor of the cumulative counts; 0 before the first.
    divisor: u32,
    /// The first distinct ones; 0 where there is none yet.
    distinct: [u32; ENOUGH],
    /// A block size that is not the configured one, from a chain; else 0.
    foreign: u32,
}

impl BlockSizes {
    pub(super) fn new(configured: NonZeroU32) -> Self {
        Self { configured: configured.get(), max_scopes: MAX_SCOPES, scopes: RwLock::default() }
    }

    /// Looks at one update; says whether it is to be counted. `last` is the stream's memory.
    pub(super) fn is_mismatch(&self, update: &Update<'_>, last: &mut Option<Arc<Scope>>) -> bool {
        if update.scheme.is_empty() || update.entries.is_empty() {
            return false;
        }
        let report = Counts::of(update.entries, self.configured);
        if report.foreign == 0 && report.divisor == 0 {
            return false;
        }
        let Some(scope) = self.scope(update, last) else {
            return report.mismatch(&report, self.configured).is_some();
        };
        let mut seen = scope.seen.lock();
        seen.counts.merge(report);
        let Some(size) = report.mismatch(&seen.counts, self.configured) else {
            return false;
        };
        if !std::mem::replace(&mut seen.warned, true) {
            drop(seen);
            let (tenant, model, hash_scheme) = &scope.key;
            tracing::warn!(%tenant, %model, %hash_scheme, configured = self.configured, seen = size, "block_size_mismatch");
        }
        true
    }

    /// The memory of the update's scope, `None` when there is no room for one more.
    fn scope(&self, update: &Update<'_>, last: &mut Option<Arc<Scope>>) -> Option<Arc<Scope>> {
        let named = |key: &ScopeKey| *key.0 == *update.tenant && *key.1 == *update.model && *key.2 == *update.scheme;
        if let Some(scope) = last.as_ref().filter(|scope| named(&scope.key)) {
            return Some(scope.clone());
        }
        let key: ScopeKey = (update.tenant.into(), update.model.into(), update.scheme.into());
        let known = self.scopes.read().get(&key).cloned();
        let scope = known.or_else(|| {
            let mut scopes = self.scopes.write();
            if scopes.len() >= self.max_scopes && !scopes.contains_key(&key) {
                return None;
            }
            let scope = || Arc::new(Scope { key: key.clone(), seen: Mutex::default() });
            Some(scopes.entry(key.clone()).or_insert_with(scope).clone())
        });
        last.clone_from(&scope);
        scope
    }
}

impl Counts {
    fn of(entries: &[Entry<'_>], configured: u32) -> Self {
        let mut counts = Self::default();
        for entry in entries.iter().filter(|entry| matches!(entry.tier, 0 | 1)) {
            // What the index refuses tells nothing.
            let chain = entry.block_token_counts;
            if chain.len() != entry.block_hashes.len() || chain.iter().any(|&count| count < 0) {
                continue;
            }
            if let Some(&foreign) = chain.iter().find(|&&count| count > 0 && count.cast_unsigned() != configured) {
                counts.foreign = foreign.cast_unsigned();
            }
            if !entry.prefix_hash.is_empty() && entry.token_count > 0 {
                counts.add(entry.token_count.cast_unsigned());
            }
        }
        counts
    }

    fn add(&mut self, count: u32) {
        self.divisor = greatest_common_divisor(self.divisor, count);
        self.remember(count);
    }

    fn remember(&mut self, count: u32) {
        if let Some(free) = self.distinct.iter_mut().find(|known| **known == 0 || **known == count) {
            *free = count;
        }
    }

    fn merge(&mut self, other: Self) {
        self.divisor = greatest_common_divisor(self.divisor, other.divisor);
        for count in other.distinct {
            if count != 0 {
                self.remember(count);
            }
        }
    }

    /// The block size that a report with these counts speaks of, if it is not `configured`. `scope` is all that was seen,
    /// this report included.
    fn mismatch(&self, scope: &Self, configured: u32) -> Option<u32> {
        if self.foreign != 0 {
            return Some(self.foreign);
        }
        if !self.divisor.is_multiple_of(configured) {
            return Some(self.divisor);
        }
        let enough = scope.distinct.iter().all(|&count| count != 0);
        let another = scope.divisor != configured && scope.divisor.is_multiple_of(configured);
        (self.divisor != 0 && enough && another).then_some(scope.divisor)
    }
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use inferencecache_core::HashList;

    const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();

    fn single(token_count: i32) -> Entry<'static> {
        Entry { prefix_hash: b"h", token_count, ..Entry::default() }
    }

    fn chain(counts: &'static [i32]) -> Entry<'static> {
        const HASHES: &[&[u8]] = &[b"1", b"2", b"3", b"4"];
        Entry {
            block_hashes: HashList::Slices(&HASHES[..counts.len()]),
            block_token_counts: counts,
            ..Entry::default()
        }
    }

    fn counted(sizes: &BlockSizes, tenant: &str, entries: &[Entry<'_>]) -> bool {
        let update = Update { tenant, model: "m", scheme: "vllm", replica: "r", entries, ..Update::default() };
        sizes.is_mismatch(&update, &mut None)
    }

    /// field:35
    #[test]
    fn another_block_size_is_noticed_in_both_forms() {
        let sizes = BlockSizes::new(SIXTEEN);
        assert!(counted(&sizes, "chain", &[chain(&[32, 32, 32])]));
        assert!(counted(&sizes, "single", &[single(32), single(64), single(96)]));
        assert!(!counted(&sizes, "later", &[single(32)]));
        assert!(!counted(&sizes, "later", &[single(64)]));
        assert!(!counted(&sizes, "later", &[single(64)]), "two distinct counts are not enough");
        assert!(counted(&sizes, "later", &[single(96)]));
        assert!(counted(&sizes, "odd", &[single(24)]));
    }

    /// field:35
    #[test]
    fn the_configured_block_size_is_not() {
        let sizes = BlockSizes::new(SIXTEEN);
        for entries in [
            &[chain(&[16, 16, 16])][..],
            &[single(16), single(32), single(48)],
            &[single(32), single(64), single(96), single(112)],
            &[single(0)],
            &[],
        ] {
            assert!(!counted(&sizes, "t", entries), "{entries:?}");
        }
    }

    /// field:14
    #[test]
    fn only_engine_memory_is_looked_at() {
        let sizes = BlockSizes::new(SIXTEEN);
        let host = |tier| Entry { tier, ..single(250) };
        assert!(!counted(&sizes, "t", &[host(2), host(3), host(4), host(-1)]));
        assert!(counted(&sizes, "t", &[host(1)]));
    }

    #[test]
    fn what_the_index_refuses_tells_nothing() {
        let sizes = BlockSizes::new(SIXTEEN);
        let unbalanced = Entry { block_token_counts: &[32, 32], ..single(16) };
        assert!(!counted(&sizes, "t", &[unbalanced, chain(&[-32]), single(-5)]));
    }

    #[test]
    fn scopes_are_bounded_and_the_rest_is_judged_alone() {
        let sizes = BlockSizes { max_scopes: 1, ..BlockSizes::new(SIXTEEN) };
        assert!(!counted(&sizes, "a", &[single(16)]));
        assert!(counted(&sizes, "b", &[chain(&[32])]));
        assert_eq!(sizes.scopes.read().len(), 1);
    }
}
