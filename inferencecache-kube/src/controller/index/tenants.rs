//! CacheTenant status: who owns a tenant's budget, and whether it is used up.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::jiff::Timestamp;

use super::snapshot::TenantRow;
use crate::api::{CacheTenant, CacheTenantStatus};
use crate::controller::condition::{self, Verdict, types};

/// Reasons of conditions of CacheTenants.
pub mod reasons {
    /// The server's numbers are shown.
    pub const OBSERVED: &str = "Observed";
    /// Another object declares the budget of this tenant.
    pub const DUPLICATE: &str = "DuplicateTenantID";
    /// The object declares no budget.
    pub const NO_QUOTA: &str = "NoQuota";
    /// The budget is not used up.
    pub const WITHIN: &str = "WithinBudget";
    /// More is held than the budget allows.
    pub const OVER: &str = "OverEntryBudget";
    /// The budget of this object is not the one that counts.
    pub const NOT_EFFECTIVE: &str = "NotEffective";
}

/// Namespace and name.
type Key<'a> = (&'a str, &'a str);

fn key(tenant: &CacheTenant) -> Key<'_> {
    super::participation::names_of(&tenant.metadata)
}

/// The budget of an object, if it declares one.
#[must_use]
pub fn budget(tenant: &CacheTenant) -> Option<i64> {
    tenant.spec.quota.as_ref()?.max_index_entries
}

/// For each tenant the object whose budget counts: among those that declare one, the first by namespace and name. In their
/// order. The pusher sends these, and status names these.
#[must_use]
pub fn owners(tenants: &[CacheTenant]) -> Vec<&CacheTenant> {
    let mut declaring: Vec<&CacheTenant> =
        tenants.iter().filter(|tenant| !tenant.spec.tenant_id.is_empty() && budget(tenant).is_some()).collect();
    declaring.sort_by_key(|tenant| key(tenant));
    let mut taken = std::collections::HashSet::new();
    declaring.retain(|tenant| taken.insert(tenant.spec.tenant_id.as_str()));
    declaring
}

/// The statuses that change, by their place among `tenants`.
#[must_use]
pub fn changed(tenants: &[CacheTenant], rows: &[TenantRow], now: Timestamp) -> BTreeMap<usize, CacheTenantStatus> {
    let entries: HashMap<&str, i64> = rows.iter().map(|row| (row.tenant_id.as_str(), row.index_entries)).collect();
    let owners: HashMap<&str, Key<'_>> =
        owners(tenants).into_iter().map(|tenant| (tenant.spec.tenant_id.as_str(), key(tenant))).collect();
    let statuses = tenants.iter().enumerate().map(|(place, tenant)| {
        let entries = entries.get(tenant.spec.tenant_id.as_str()).copied().unwrap_or(0);
        (place, status(tenant, entries, owners.get(tenant.spec.tenant_id.as_str()).copied(), now))
    });
    statuses
        .filter(|(place, status)| tenants.get(*place).and_then(|tenant| tenant.status.as_ref()) != Some(status))
        .collect()
}

fn status(tenant: &CacheTenant, entries: i64, owner: Option<Key<'_>>, now: Timestamp) -> CacheTenantStatus {
    let generation = tenant.metadata.generation.unwrap_or(0);
    let mut status = tenant.status.clone().unwrap_or_default();
    let (ready, quota) = verdicts(tenant, entries, owner);
    condition::set(&mut status.conditions, types::READY, ready, generation, now);
    condition::set(&mut status.conditions, types::QUOTA_EXCEEDED, quota, generation, now);
    status.index_entries = Some(entries);
    status.observed_generation = Some(generation).filter(|generation| *generation != 0);
    status
}

/// Ready and QuotaExceeded.
fn verdicts(tenant: &CacheTenant, entries: i64, owner: Option<Key<'_>>) -> (Verdict, Verdict) {
    if let Some(owner) = owner.filter(|owner| *owner != key(tenant)) {
        let name = format!("{}/{}", owner.0, owner.1);
        return (
            Verdict::new(false, reasons::DUPLICATE, format!("CacheTenant {name} declares the budget of this tenantID")),
            Verdict::new(false, reasons::NOT_EFFECTIVE, format!("the budget of {name} counts")),
        );
    }
    let quota = match budget(tenant) {
        None => Verdict::new(false, reasons::NO_QUOTA, "no budget is declared"),
        Some(budget) if entries > budget => {
            Verdict::new(true, reasons::OVER, format!("{entries} index entries, {budget} allowed"))
        }
        Some(budget) => Verdict::new(false, reasons::WITHIN, format!("at most {budget} index entries are allowed")),
    };
    (Verdict::new(true, reasons::OBSERVED, "the index entries are those of the server"), quota)
}
