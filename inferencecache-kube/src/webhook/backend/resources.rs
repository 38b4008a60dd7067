//! What containers may ask for, whoever asks: MP servers (R3) and a managed Redis (R6–R12).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::api::Amount;
use crate::webhook::field::FieldError;
use crate::webhook::syntax::is_qualified_name;

const HUGEPAGES: &str = "hugepages-";

/// Kinds of resources, by what limits mean for them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// A limit is at least the request.
    Overcommittable,
    /// A limit equals the request; whole pages of that size.
    Hugepages(Amount),
    /// A limit equals the request; whole numbers.
    Extended,
}

/// Everything that is wrong with resources, whatever they are for. A name that is none hides what else is wrong with its
/// entry.
pub(super) fn check(path: &str, resources: &ResourceRequirements) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if resources.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        let detail = "claims are unsupported: the Pod has no resource claims to refer to";
        errors.push(FieldError::forbidden(format!("{path}.claims"), detail));
    }
    let empty = BTreeMap::new();
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    for (list, amounts) in [("requests", requests), ("limits", limits)] {
        for (name, quantity) in amounts {
            errors.extend(entry(&format!("{path}.{list}[{name}]"), name, quantity));
        }
    }
    for (name, quantity) in requests {
        let Ok(family) = family(name) else { continue };
        let request_path = format!("{path}.requests[{name}]");
        let limit_path = format!("{path}.limits[{name}]");
        let request = amount(quantity);
        match (limits.get(name), family) {
            (None, Family::Overcommittable) => {}
            (None, _) => {
                let detail = format!("needs an equal limit at {limit_path}");
                errors.push(FieldError::invalid(request_path, &quantity.0, detail));
            }
            (Some(limit), Family::Overcommittable) if amount(limit) < request => {
                let detail = format!("must be at least the request of {} at {request_path}", quantity.0);
                errors.push(FieldError::invalid(limit_path, &limit.0, detail));
            }
            (Some(limit), Family::Hugepages(_) | Family::Extended) if amount(limit) != request => {
                let detail = format!("must equal the request of {} at {request_path}", quantity.0);
                errors.push(FieldError::invalid(limit_path, &limit.0, detail));
            }
            (Some(_), _) => {}
        }
    }
    errors
}

fn entry(path: &str, name: &str, quantity: &Quantity) -> Option<FieldError> {
    let invalid = |detail: String| Some(FieldError::invalid(path, &quantity.0, detail));
    let family = match family(name) {
        Ok(family) => family,
        Err(why) => return Some(FieldError::invalid(path, name, why)),
    };
    let amount = amount(quantity);
    if amount.is_negative() {
        return invalid("must be a non-negative quantity".to_owned());
    }
    match family {
        Family::Extended if !amount.is_whole() => {
            invalid(format!("{name} is counted in whole numbers: give an integer"))
        }
        Family::Hugepages(page) if amount.is_positive() && !amount.is_multiple_of(page) => {
            invalid(format!("must be a whole multiple of the page size {page}"))
        }
        _ => None,
    }
}

/// What kind of resource a name means.
fn family(name: &str) -> Result<Family, &'static str> {
    const FAMILIES: &str = "is no resource name: use cpu, memory, ephemeral-storage, hugepages- and a page size, or a vendor's \
                            qualified name such as nvidia.com/gpu";
    if ["cpu", "memory", "ephemeral-storage"].contains(&name) {
        return Ok(Family::Overcommittable);
    }
    if let Some(size) = name.strip_prefix(HUGEPAGES) {
        let page = Amount::parse(size).ok().filter(|page| page.is_positive());
        return page
            .map(Family::Hugepages)
            .ok_or("is no resource name: hugepages- is followed by a page size such as 2Mi");
    }
    if name.starts_with("kubernetes.io/") || name.starts_with("requests.kubernetes.io/") {
        return Err("is no resource name: the prefixes kubernetes.io/ and requests.kubernetes.io/ are reserved");
    }
    if name.contains('/') && is_qualified_name(name) { Ok(Family::Extended) } else { Err(FAMILIES) }
}

/// The value; nothing where there is none. What cannot be parsed never gets here.
pub(super) fn amount(quantity: &Quantity) -> Amount {
    Amount::of(quantity).unwrap_or_default()
}
