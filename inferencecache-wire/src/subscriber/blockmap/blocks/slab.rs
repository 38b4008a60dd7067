//! Values that are too large to stay inline.

/// Values in reusable slots.
#[derive(Debug)]
pub(super) struct Slab<T> {
    pub(super) values: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.values[slot as usize] = value;
            return Some(slot);
        }
        let slot = u32::try_from(self.values.len()).ok()?;
        self.values.push(value);
        Some(slot)
    }

    pub(super) fn remove(&mut self, key: u64) {
        self.free.extend(u32::try_from(key));
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.free.clear();
    }
}

pub(super) fn index(key: u64) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}
