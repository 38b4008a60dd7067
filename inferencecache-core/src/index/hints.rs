//! Where the writer last found a replica's slot. A hint may be wrong: whoever takes one looks whether it holds.

const HINTS: usize = 1024;

/// One place for each of so many residues of names: partition and slot.
#[derive(Debug)]
pub(super) struct Hints(Box<[(u32, u32); HINTS]>);

impl Default for Hints {
    fn default() -> Self {
        Self(Box::new([(u32::MAX, u32::MAX); HINTS]))
    }
}

type Names<'a> = (&'a str, &'a str, &'a str, &'a str);

impl Hints {
    pub(super) fn get(&self, names: Names<'_>, replica: &str) -> (u32, u32) {
        self.0[residue(names, replica)]
    }

    pub(super) fn set(&mut self, names: Names<'_>, replica: &str, place: (u32, u32)) {
        self.0[residue(names, replica)] = place;
    }
}

/// Cheap rather than good: ends of names differ more than beginnings.
fn residue((tenant, model, scheme, adapter): Names<'_>, replica: &str) -> usize {
    let mix = |hash: u64, name: &str| {
        let end = name.as_bytes().last_chunk::<8>().map_or_else(
            || name.bytes().fold(0, |end, byte| end << 8 | u64::from(byte)),
            |end| u64::from_be_bytes(*end),
        );
        (hash ^ end ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let hash = [replica, tenant, model, scheme, adapter].into_iter().fold(0u64, mix);
    (hash >> 54) as usize & (HINTS - 1)
}
