//! Adapter names as small numbers. Interned once, kept for the life of the process, bounded.

use std::collections::HashMap;
use std::sync::Arc;

/// An interned adapter name. The default one is the base model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AdapterId(u16);

impl AdapterId {
    /// The base model: no adapter.
    pub const BASE: Self = Self(0);
}

/// Most names; the base model needs none.
pub const MAX_ADAPTERS: usize = 4096;
/// Longest name, in bytes.
pub const MAX_ADAPTER_NAME: usize = 256;

/// All adapter names seen so far.
#[derive(Debug)]
pub struct Adapters {
    names: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, AdapterId>,
}

impl Default for Adapters {
    fn default() -> Self {
        let base: Arc<str> = Arc::from("");
        Self { names: vec![Arc::clone(&base)], ids: HashMap::from([(base, AdapterId::BASE)]) }
    }
}

impl Adapters {
    /// The number of `name`; `None` when the name is too long or there are too many.
    pub(super) fn intern(&mut self, name: &str) -> Option<AdapterId> {
        if let Some(&id) = self.ids.get(name) {
            return Some(id);
        }
        if name.len() > MAX_ADAPTER_NAME || self.names.len() > MAX_ADAPTERS {
            return None;
        }
        let id = AdapterId(u16::try_from(self.names.len()).ok()?);
        let name: Arc<str> = Arc::from(name);
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        Some(id)
    }

    /// The name of an adapter; empty for the base model.
    #[must_use]
    pub fn name(&self, id: AdapterId) -> &Arc<str> {
        // Ids come from `intern` alone; the base model stands in for one from another table.
        self.names.get(usize::from(id.0)).unwrap_or(&self.names[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_in_number_and_length() {
        let mut adapters = Adapters::default();
        assert_eq!(adapters.intern(""), Some(AdapterId::BASE));
        assert_eq!(adapters.intern(&"x".repeat(257)), None);
        let long = adapters.intern(&"x".repeat(256)).unwrap();
        assert_eq!(adapters.name(long).len(), 256);
        let accepted = (0..5000).filter(|i| adapters.intern(&format!("a{i}")).is_some()).count();
        // One was the long name.
        assert_eq!(accepted, MAX_ADAPTERS - 1);
        assert_eq!(adapters.intern("a0").map(|id| adapters.name(id).to_string()), Some("a0".to_owned()));
    }
}
