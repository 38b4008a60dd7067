//! Which violations an update may keep.
//!
//! Rules get stricter while the API is alpha. An object that was stored under looser rules must stay editable, so an update
//! is refused for what it adds, not for what was there. A bad value that becomes differently bad was not there.

use super::field::FieldError;

/// Violations of the new object that the old one does not have.
#[must_use]
pub fn introduced(old: &[FieldError], new: Vec<FieldError>) -> Vec<FieldError> {
    new.into_iter().filter(|error| !old.contains(error)).collect()
}

/// Adds violations that are enforced on every update, unless they are named already.
pub fn enforce(into: &mut Vec<FieldError>, always: Vec<FieldError>) {
    for error in always {
        if !into.contains(&error) {
            into.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_violation_stays_and_a_different_one_is_new() {
        let old = [FieldError::invalid("spec.a", "x", "no"), FieldError::required("spec.b", "give one")];
        let new = vec![
            FieldError::invalid("spec.a", "x", "no"),
            FieldError::invalid("spec.a", "y", "no"),
            FieldError::invalid("spec.b", "", "give one"),
        ];
        assert_eq!(introduced(&old, new.clone()), new[1..]);
        assert_eq!(introduced(&[], new.clone()), new);
    }

    #[test]
    fn enforced_violations_are_named_once() {
        let error = FieldError::forbidden("spec.c", "taken");
        let mut all = vec![error.clone()];
        enforce(&mut all, vec![error, FieldError::forbidden("spec.d", "taken")]);
        assert_eq!(all.len(), 2);
    }
}
