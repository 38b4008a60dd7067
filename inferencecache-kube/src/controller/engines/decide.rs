//! What is told of an engine Pod: that it was wired, or that it was left alone on its own wish.

use std::collections::BTreeMap;

use crate::api::names;
use crate::dns::{is_dns_label, is_dns_subdomain};

/// Value of [`names::INJECT_SKIPPED`] of a Pod that opted out.
pub(super) const SKIP_MARK: &str = "skip-inject-annotation";

/// What a Pod's annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing, or nothing that makes sense.
    Nothing,
    /// It was left alone.
    Skipped,
    /// It was wired by that backend, with that uid.
    Injected {
        /// Namespace of the backend.
        namespace: String,
        /// Name of the backend.
        name: String,
        /// Its uid at that time.
        uid: String,
    },
}

/// Whether a Pod is worth a look.
#[must_use]
pub fn is_candidate(annotations: Option<&BTreeMap<String, String>>) -> bool {
    let get = |key: &str| annotations.and_then(|all| all.get(key)).map_or("", String::as_str);
    !get(names::INJECTED_BY).is_empty()
        || (opts_out(get(names::SKIP_INJECT)) && get(names::INJECT_SKIPPED) == SKIP_MARK)
}

/// Reads the annotations of a Pod.
#[must_use]
pub fn claim(annotations: Option<&BTreeMap<String, String>>) -> Claim {
    let get = |key: &str| annotations.and_then(|all| all.get(key)).map_or("", String::as_str);
    let by = get(names::INJECTED_BY);
    if by.is_empty() {
        let skipped = opts_out(get(names::SKIP_INJECT)) && get(names::INJECT_SKIPPED) == SKIP_MARK;
        return if skipped { Claim::Skipped } else { Claim::Nothing };
    }
    let uid = get(names::INJECTED_BY_UID);
    match by.split_once('/') {
        Some((namespace, name)) if is_dns_label(namespace) && is_dns_subdomain(name) && !uid.is_empty() => {
            Claim::Injected { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() }
        }
        _ => Claim::Nothing,
    }
}

/// Whether a value of [`names::SKIP_INJECT`] asks to be left alone: everything that is not empty and no form of "no".
fn opts_out(value: &str) -> bool {
    match value {
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
        other => !["no", "off", "disable", "disabled"].iter().any(|no| other.eq_ignore_ascii_case(no)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// controller:154 controller:153
    #[test]
    fn what_is_no_name_of_a_backend_says_nothing() {
        for by in ["x", "/p", "e/", "e/p/q", "E/p", "e/P", "bad_ns/cb", "e/-cb", "a.b/cb"] {
            let pod = annotations(&[(names::INJECTED_BY, by), (names::INJECTED_BY_UID, "u")]);
            assert_eq!(claim(Some(&pod)), Claim::Nothing, "{by}");
        }
        assert_eq!(claim(Some(&annotations(&[(names::INJECTED_BY, "e/p")]))), Claim::Nothing, "no uid");
        let pod = annotations(&[(names::INJECTED_BY, "e/p.q"), (names::INJECTED_BY_UID, "u")]);
        let wired = Claim::Injected { namespace: "e".to_owned(), name: "p.q".to_owned(), uid: "u".to_owned() };
        assert_eq!(claim(Some(&pod)), wired);
    }

    /// controller:155
    #[test]
    fn a_pod_is_skipped_if_it_asked_for_it_and_was() {
        let marked = |value: &str| annotations(&[(names::SKIP_INJECT, value), (names::INJECT_SKIPPED, SKIP_MARK)]);
        for yes in ["1", "t", "T", "TRUE", "true", "True", "yes", "maybe", " "] {
            assert_eq!(claim(Some(&marked(yes))), Claim::Skipped, "{yes:?}");
        }
        for no in ["", "0", "f", "F", "FALSE", "false", "False", "no", "Off", "DISABLE", "disabled"] {
            assert_eq!(claim(Some(&marked(no))), Claim::Nothing, "{no:?}");
        }
        for pairs in [[(names::SKIP_INJECT, "true")], [(names::INJECT_SKIPPED, SKIP_MARK)]] {
            let pod = annotations(&pairs);
            assert_eq!((claim(Some(&pod)), is_candidate(Some(&pod))), (Claim::Nothing, false));
        }
        assert!(is_candidate(Some(&marked("true"))));
    }
}
