//! Pods that are left alone: on their own wish, or because they are only the picture of one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::names::{MIRROR, SKIP_INJECT};

/// Whether the Pod asks to be left alone.
///
/// The annotation is a switch that people turn in a hurry, so only words that clearly mean "no" leave it off; what nobody
/// can read counts as the wish that it was probably meant to be. Blanks around a word make it unreadable.
#[must_use]
pub(super) fn wanted(meta: &ObjectMeta) -> bool {
    let Some(value) = meta.annotations.as_ref().and_then(|list| list.get(SKIP_INJECT)) else { return false };
    let inject = matches!(value.as_str(), "" | "0" | "f" | "F" | "false" | "FALSE" | "False")
        || ["no", "off", "disable", "disabled"].iter().any(|word| value.eq_ignore_ascii_case(word));
    !inject
}

/// Whether a kubelet shows a Pod that it already runs from a file of its own. Nothing that is written here would reach it.
#[must_use]
pub(super) fn is_mirror(meta: &ObjectMeta) -> bool {
    meta.annotations.as_ref().is_some_and(|list| list.contains_key(MIRROR))
}
