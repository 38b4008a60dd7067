//! Label values that callers choose, bounded.

use std::collections::HashMap;

use parking_lot::RwLock;

/// The label value that stands for all that got none of their own.
pub const OVERFLOW: &str = "other";

/// How many values one label may take. The first come get one; what comes later is counted under [`OVERFLOW`].
#[derive(Debug, Clone, Copy)]
pub struct LabelLimits {
    /// Most distinct values, [`OVERFLOW`] included. Default 1000.
    pub values: usize,
    /// Most of them that only callers named, so that junk leaves room for what the index holds. Default 250.
    pub unknown: usize,
    /// Most bytes that those may have together. Default 32 KiB.
    pub unknown_bytes: usize,
}

/// Who named the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The index: it holds, or held, something under it.
    Index,
    /// A request, which may name anything.
    Caller,
}

/// A value for each label value in use.
pub(super) struct Labels<T> {
    limits: LabelLimits,
    overflow: T,
    known: RwLock<State<T>>,
}

struct State<T> {
    slots: HashMap<Box<str>, Slot<T>>,
    unknown: usize,
    unknown_bytes: usize,
}

struct Slot<T> {
    origin: Origin,
    value: T,
}

impl Default for LabelLimits {
    fn default() -> Self {
        Self { values: 1000, unknown: 250, unknown_bytes: 32 * 1024 }
    }
}

impl<T: Default> Labels<T> {
    pub(super) fn new(limits: LabelLimits) -> Self {
        let known = RwLock::new(State { slots: HashMap::new(), unknown: 0, unknown_bytes: 0 });
        Self { limits, overflow: T::default(), known }
    }

    /// Hands `work` the label under which `value` is counted, and what belongs to it.
    pub(super) fn with<R>(&self, value: &str, origin: Origin, work: impl Fn(&str, &T) -> R) -> R {
        if let Some(slot) = self.known.read().slots.get(value)
            && (slot.origin == Origin::Index || origin == Origin::Caller)
        {
            return work(value, &slot.value);
        }
        if self.admit(value, origin)
            && let Some(slot) = self.known.read().slots.get(value)
        {
            return work(value, &slot.value);
        }
        work(OVERFLOW, &self.overflow)
    }

    /// Makes room for `value` if the limits allow; says whether it has a slot now.
    fn admit(&self, value: &str, origin: Origin) -> bool {
        if value == OVERFLOW {
            return false;
        }
        let fits_unknown = |state: &State<T>| {
            state.unknown < self.limits.unknown && state.unknown_bytes + value.len() <= self.limits.unknown_bytes
        };
        {
            let state = self.known.read();
            let full = state.slots.len() + 1 >= self.limits.values;
            if !state.slots.contains_key(value) && (full || (origin == Origin::Caller && !fits_unknown(&state))) {
                return false; // the common case of a flood, without the exclusive lock
            }
        }
        let mut guard = self.known.write();
        let state = &mut *guard;
        if let Some(slot) = state.slots.get_mut(value) {
            if slot.origin == Origin::Caller && origin == Origin::Index {
                slot.origin = Origin::Index;
                state.unknown -= 1;
                state.unknown_bytes -= value.len();
            }
            return true;
        }
        if state.slots.len() + 1 >= self.limits.values || (origin == Origin::Caller && !fits_unknown(state)) {
            return false;
        }
        if origin == Origin::Caller {
            state.unknown += 1;
            state.unknown_bytes += value.len();
        }
        state.slots.insert(value.into(), Slot { origin, value: T::default() });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(labels: &Labels<()>, value: &str, origin: Origin) -> String {
        labels.with(value, origin, |label, ()| label.to_owned())
    }

    #[test]
    fn the_first_come_get_a_label_and_the_rest_share_one() {
        let labels = Labels::<()>::new(LabelLimits { values: 4, unknown: 2, unknown_bytes: 10 });
        assert_eq!(label(&labels, "a", Origin::Caller), "a");
        assert_eq!(label(&labels, "b", Origin::Caller), "b");
        assert_eq!(label(&labels, "c", Origin::Caller), OVERFLOW);
        assert_eq!(label(&labels, "a", Origin::Caller), "a");
        // The index finds room that junk cannot take, and frees what junk had taken before.
        assert_eq!(label(&labels, "a", Origin::Index), "a");
        assert_eq!(label(&labels, "c", Origin::Caller), "c");
        assert_eq!(label(&labels, "d", Origin::Index), OVERFLOW);
        assert_eq!(label(&labels, OVERFLOW, Origin::Index), OVERFLOW);
    }

    #[test]
    fn long_values_use_up_the_bytes() {
        let labels = Labels::<()>::new(LabelLimits { values: 100, unknown: 50, unknown_bytes: 10 });
        assert_eq!(label(&labels, "0123456789x", Origin::Caller), OVERFLOW);
        assert_eq!(label(&labels, "01234567", Origin::Caller), "01234567");
        assert_eq!(label(&labels, "012", Origin::Caller), OVERFLOW);
        assert_eq!(label(&labels, "01", Origin::Caller), "01");
    }
}
