//! Metrics of the shared tier, one pair of series for each backend that uses it.

use std::collections::{BTreeSet, HashMap};

use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};

use super::participation::{Key, Sums};

/// The series, and what was counted last. Bounded by the number of backends.
#[derive(Debug)]
pub struct T2 {
    ratio: GaugeVec,
    queries: IntCounterVec,
    last: HashMap<Key, i64>,
}

impl T2 {
    /// Registered with `registry`.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let ratio = GaugeVec::new(
            Opts::new("inferencecache_backend_t2_hit_rate", "Hits of the shared tier by its queries, 0 to 1."),
            &["backend"],
        )?;
        let queries = IntCounterVec::new(
            Opts::new("inferencecache_backend_t2_query_tokens_total", "Tokens that the shared tier was asked for."),
            &["backend"],
        )?;
        registry.register(Box::new(ratio.clone()))?;
        registry.register(Box::new(queries.clone()))?;
        Ok(Self { ratio, queries, last: HashMap::new() })
    }

    /// Takes the sums of a tick. Series of backends that did not use the tier go, except in tainted namespaces as long as the
    /// backend exists.
    pub fn update(&mut self, sums: &HashMap<Key, Sums>, tainted: &BTreeSet<String>, existing: &BTreeSet<Key>) {
        for (key, sums) in sums {
            let Some(ratio) = sums.ratio().filter(|_| !tainted.contains(&key.0)) else { continue };
            let label = label(key);
            self.ratio.with_label_values(&[&label]).set(ratio);
            let queries = self.queries.with_label_values(&[&label]);
            // The first observation is where counting starts: what was before belongs to nobody's interval.
            if let Some(last) = self.last.insert(key.clone(), sums.queries) {
                queries.inc_by(u64::try_from(sums.queries.saturating_sub(last)).unwrap_or(0));
            }
        }
        let stale: Vec<Key> = self
            .last
            .keys()
            .filter(|key| {
                let used = sums.get(*key).is_some_and(|sums| sums.queries > 0);
                !existing.contains(*key) || !(used || tainted.contains(&key.0))
            })
            .cloned()
            .collect();
        for key in stale {
            self.last.remove(&key);
            let label = label(&key);
            let _ = self.ratio.remove_label_values(&[&label]);
            let _ = self.queries.remove_label_values(&[&label]);
        }
    }
}

fn label((namespace, name): &Key) -> String {
    format!("{namespace}/{name}")
}
