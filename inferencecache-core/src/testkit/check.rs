//! The structural invariants P1 to P7, asked through the public reads and compared with a plain count over the dump.
//!
//! Valid at quiescence: with a write in flight the reads may lag.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::affinity;
use crate::index::IndexApi;
use crate::testkit::dump::{Dump, Inspect};

/// Says which invariant `index` violates, if any. `reserved` are the tenants it was told to hide.
pub fn structure<I: IndexApi + Inspect + ?Sized>(index: &I, reserved: &[String]) -> Result<(), String> {
    let dump = index.dump();
    let visible = |tenant: &str| !reserved.iter().any(|hidden| hidden == tenant) || tenant.is_empty();
    no_duplicates(&dump)?;
    totals(index, &dump, &visible)?;
    presence(index, &dump)?;
    serving(index, &dump)?;
    states(index, &dump)?;
    snapshot(index, &dump, &visible)
}

fn same<T: PartialEq + Debug>(rule: &str, what: impl Debug, got: &T, want: &T) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{rule}: {what:?} is {got:?}, but the entries say {want:?}")) }
}

/// P1, as far as a list can show it: nothing is held twice.
fn no_duplicates(dump: &Dump) -> Result<(), String> {
    let holds: BTreeSet<_> = dump.entries.iter().map(|entry| (entry.key(), &entry.replica)).collect();
    let rows: BTreeSet<_> = dump.stats.iter().map(|row| (&row.tenant, &row.model, &row.replica)).collect();
    same("P1", "number of holds", &holds.len(), &dump.entries.len())?;
    same("P1", "number of stats rows", &rows.len(), &dump.stats.len())
}

/// P2, P3 and P6: totals.
fn totals<I: IndexApi + ?Sized>(index: &I, dump: &Dump, visible: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let hidden = dump.entries.iter().filter(|entry| !visible(&entry.tenant)).count() as u64;
    same("P2", "storage entries", &index.storage_entries(), &(dump.entries.len() as u64, hidden))?;

    let mut by_tenant: BTreeMap<&str, u64> = BTreeMap::new();
    for (tenant, ..) in dump.keys().into_iter().filter(|key| visible(key.0)) {
        *by_tenant.entry(tenant).or_default() += 1;
    }
    let aggregate = index.aggregate();
    let got: BTreeMap<&str, u64> = aggregate.by_tenant.iter().map(|(tenant, count)| (&**tenant, *count)).collect();
    same("P3", "keys by tenant", &got, &by_tenant)?;
    same("P6", "aggregate total", &aggregate.total, &by_tenant.values().sum())?;

    let counts = index.entry_counts_by_model();
    let got: BTreeMap<&str, u64> = counts.iter().map(|(model, count)| (&**model, *count)).collect();
    same("P6", "keys by model", &got, &dump.keys_by_model(visible))
}

/// P3: a key is known exactly at the levels where one is stored.
fn presence<I: IndexApi + ?Sized>(index: &I, dump: &Dump) -> Result<(), String> {
    let stored: BTreeSet<(&str, &str, &str)> =
        dump.entries.iter().map(|e| (&*e.tenant, &*e.model, &*e.scheme)).collect();
    let named = |pick: fn(&(&str, &str, &str)) -> String| -> BTreeSet<String> {
        stored.iter().map(pick).chain(["nobody".to_owned()]).collect()
    };
    let (tenants, models, schemes) = (named(|s| s.0.to_owned()), named(|s| s.1.to_owned()), named(|s| s.2.to_owned()));
    for tenant in &tenants {
        let want = stored.iter().any(|s| s.0 == tenant);
        same("P3", ("has tenant", tenant), &index.has_any_tenant(tenant), &want)?;
        for model in &models {
            let want = stored.iter().any(|s| s.0 == tenant && s.1 == model);
            same("P3", ("has model", tenant, model), &index.has_any_tenant_model(tenant, model), &want)?;
            for scheme in &schemes {
                let got = index.has_any_tenant_model_scheme(tenant, model, scheme);
                let want = stored.contains(&(&**tenant, &**model, &**scheme));
                same("P3", ("has scheme", tenant, model, scheme), &got, &want)?;
            }
        }
    }
    Ok(())
}

/// P4, through the affinity pick: it names a member of the serving set whose number depends on the set's size.
fn serving<I: IndexApi + ?Sized>(index: &I, dump: &Dump) -> Result<(), String> {
    for ((tenant, model, scheme), holders) in dump.serving() {
        if scheme.is_empty() {
            continue;
        }
        let set: Vec<&str> = holders.into_keys().collect();
        for seed in [&b"a"[..], b"b", b"c"] {
            let got = index.affinity_hint(tenant, model, scheme, seed);
            let want = affinity::pick(seed, &set).copied();
            same("P4", ("affinity", tenant, model, scheme, &set), &got.as_deref(), &want)?;
        }
    }
    Ok(())
}

/// P5 and P3 by (tenant, model).
fn states<I: IndexApi + ?Sized>(index: &I, dump: &Dump) -> Result<(), String> {
    let mut scopes: BTreeSet<(&str, &str)> = dump.entries.iter().map(|e| (&*e.tenant, &*e.model)).collect();
    scopes.extend(dump.stats.iter().map(|row| (&*row.tenant, &*row.model)));
    for (tenant, model) in scopes {
        let state = index.cache_state(tenant, model);
        let keys = dump.keys().iter().filter(|key| key.0 == tenant && key.1 == model).count() as u64;
        same("P3", ("keys of", tenant, model), &state.total_prefixes, &keys)?;
        let own = dump.stats.iter().filter(|row| &*row.tenant == tenant && &*row.model == model);
        let rows: Vec<_> = own.map(|row| (row.replica.clone(), row.stats)).collect();
        same("P5", ("stats of", tenant, model), &state.replicas, &rows)?;
    }
    Ok(())
}

/// P6 and P7 in the snapshot.
fn snapshot<I: IndexApi + ?Sized>(index: &I, dump: &Dump, visible: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let snapshot = index.snapshot();
    let visible_keys = dump.keys().into_iter().filter(|key| visible(key.0)).count() as u64;
    same("P6", "snapshot total", &snapshot.total_prefixes, &visible_keys)?;
    let listed: u64 = snapshot.tenants.iter().map(|row| row.index_entries).sum();
    same("P6", "sum over tenant rows", &listed, &visible_keys)?;

    let visible_holds = dump.entries.iter().filter(|entry| visible(&entry.tenant));
    let held: u64 = snapshot.replicas.iter().map(|row| row.prefix_count).sum();
    same("P7", "sum over replica rows", &held, &(visible_holds.clone().count() as u64))?;
    for row in &snapshot.replicas {
        let own = visible_holds.clone().filter(|e| e.tenant == row.tenant && e.replica == row.replica);
        let what = (&row.tenant, &row.replica);
        same("P7", ("holds of", what), &row.prefix_count, &(own.clone().count() as u64))?;
        same("P7", ("newest of", what), &row.last_event_at, &own.map(|e| e.last_seen).max())?;
    }
    Ok(())
}
