//! Rules of CacheTenant.

use inferencecache_core::RESERVED_TENANT;

use crate::api::CacheTenant;
use crate::webhook::field::FieldError;

const PATH: &str = "spec.tenantID";

/// T1: the identity of the self-test is nobody else's.
#[must_use]
pub fn validate(tenant: &CacheTenant) -> Vec<FieldError> {
    if tenant.spec.tenant_id != RESERVED_TENANT {
        return Vec::new();
    }
    let detail = "is reserved for the server's self-test; traffic that carries it is dropped, so choose another";
    vec![FieldError::invalid(PATH, RESERVED_TENANT, detail)]
}

/// T2: one object per identity in a namespace. `others` are the names and identities that are stored in it.
#[must_use]
pub fn only_one<'a>(
    namespace: &str,
    own: &str,
    id: &str,
    others: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<FieldError> {
    let owner = others.filter(|(name, held)| *name != own && *held == id).map(|(name, _)| name).min()?;
    let detail = format!(
        "is already held by CacheTenant {owner:?} in namespace {namespace:?}; an identity has one owner in a namespace"
    );
    Some(FieldError::invalid(PATH, id, detail))
}
