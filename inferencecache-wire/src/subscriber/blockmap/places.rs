//! Where copies of a block can be, and how near that is.

use crate::kvevents::Locality;

/// Distance of a copy from the engine; smaller is warmer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Device memory.
    T1,
    /// Host memory, local disk, or a store on this host.
    T2,
    /// Shared or remote: tracked, never reported.
    Remote,
}

/// A (medium, locality) that a block can have copies in. An index into [`Places`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(pub(super) u8);

/// Device memory.
pub(super) const DEVICE: Place = Place(0);
/// Everything for which there was no room any more.
const OTHER: Place = Place(u8::MAX);

/// Longest spelling of a medium that is told apart from others, in bytes.
const MAX_MEDIUM: usize = 64;

#[derive(Debug)]
struct Known {
    /// In upper case.
    medium: Box<str>,
    locality: Option<Locality>,
    tier: Tier,
}

/// The media seen so far, at most 255; an engine knows about ten. Further ones share a place of tier T2.
#[derive(Debug)]
pub(super) struct Places {
    known: Vec<Known>,
}

/// A set of places.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlaceSet([u64; 4]);

impl PlaceSet {
    fn insert(&mut self, place: Place) {
        self.0[usize::from(place.0 >> 6)] |= 1 << (place.0 & 63);
    }

    pub(super) fn contains(self, place: Place) -> bool {
        self.0[usize::from(place.0 >> 6)] & (1 << (place.0 & 63)) != 0
    }
}

impl Default for Places {
    fn default() -> Self {
        Self { known: vec![Known { medium: "GPU".into(), locality: None, tier: Tier::T1 }] }
    }
}

impl Places {
    pub(super) fn tier(&self, place: Place) -> Tier {
        self.known.get(usize::from(place.0)).map_or(Tier::T2, |known| known.tier)
    }

    /// The place of a store, and whether its medium is one that no engine is known to use and is seen for the first time.
    pub(super) fn of_store(&mut self, medium: Option<&str>, locality: Option<Locality>) -> (Place, bool) {
        let medium = medium.unwrap_or("GPU");
        if medium.eq_ignore_ascii_case("GPU") {
            // Device memory is on this host whatever an event says.
            return (DEVICE, false);
        }
        if let Some(place) = self.find(medium, locality) {
            return (place, false);
        }
        if medium.len() > MAX_MEDIUM || self.known.len() >= usize::from(OTHER.0) {
            return (OTHER, false);
        }
        let (tier, recognised) = tier_of(medium, locality);
        let Ok(place) = u8::try_from(self.known.len()) else { return (OTHER, false) };
        let first = !recognised && !self.known.iter().any(|known| known.medium.eq_ignore_ascii_case(medium));
        self.known.push(Known { medium: medium.to_ascii_uppercase().into(), locality, tier });
        (Place(place), first)
    }

    /// The places that a removal means. Locality is compared only when the removal names it.
    pub(super) fn of_removal(&self, medium: Option<&str>, locality: Option<Locality>) -> PlaceSet {
        let medium = medium.unwrap_or("GPU");
        let mut set = PlaceSet::default();
        if medium.eq_ignore_ascii_case("GPU") {
            set.insert(DEVICE);
            return set;
        }
        let mut found = false;
        for (index, known) in (0..OTHER.0).zip(&self.known) {
            if known.medium.eq_ignore_ascii_case(medium) {
                found = true;
                if locality.is_none() || known.locality == locality {
                    set.insert(Place(index));
                }
            }
        }
        if !found {
            set.insert(OTHER);
        }
        set
    }

    fn find(&self, medium: &str, locality: Option<Locality>) -> Option<Place> {
        (0..OTHER.0)
            .zip(&self.known)
            .find(|(_, known)| known.locality == locality && known.medium.eq_ignore_ascii_case(medium))
            .map(|(index, _)| Place(index))
    }
}

/// The tier of a medium other than device memory, and whether the medium is known.
fn tier_of(medium: &str, locality: Option<Locality>) -> (Tier, bool) {
    let is = |name: &str| medium.eq_ignore_ascii_case(name);
    if ["CPU", "CPU_TIER1", "CPU_PINNED", "DISK"].into_iter().any(is) {
        (Tier::T2, true)
    } else if is("STORAGE") {
        (if locality == Some(Locality::Local) { Tier::T2 } else { Tier::Remote }, true)
    } else if is("CPU_TIER2") || is("EXTERNAL") {
        (Tier::Remote, true)
    } else {
        (Tier::T2, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_have_tiers_whatever_their_case() {
        let mut places = Places::default();
        for (medium, locality, tier) in [
            (None, None, Tier::T1),
            (Some("gpu"), Some(Locality::Remote), Tier::T1),
            (Some("cpu"), None, Tier::T2),
            (Some("CPU_TIER1"), None, Tier::T2),
            (Some("CPU_PINNED"), None, Tier::T2),
            (Some("Disk"), None, Tier::T2),
            (Some("STORAGE"), Some(Locality::Local), Tier::T2),
            (Some("STORAGE"), Some(Locality::Remote), Tier::Remote),
            (Some("STORAGE"), None, Tier::Remote),
            (Some("CPU_TIER2"), None, Tier::Remote),
            (Some("EXTERNAL"), None, Tier::Remote),
            (Some("TAPE"), None, Tier::T2),
        ] {
            let (place, _) = places.of_store(medium, locality);
            assert_eq!(places.tier(place), tier, "{medium:?} {locality:?}");
        }
    }

    #[test]
    fn a_removal_finds_the_copy_unless_it_names_another_locality() {
        let mut places = Places::default();
        let (local, _) = places.of_store(Some("STORAGE"), Some(Locality::Local));
        let (remote, _) = places.of_store(Some("storage"), Some(Locality::Remote));
        assert_ne!(local, remote);
        let both = places.of_removal(Some("STORAGE"), None);
        assert!(both.contains(local) && both.contains(remote) && !both.contains(DEVICE));
        let one = places.of_removal(Some("STORAGE"), Some(Locality::Local));
        assert!(one.contains(local) && !one.contains(remote));
    }

    #[test]
    fn a_strange_medium_is_announced_once_and_the_table_is_bounded() {
        let mut places = Places::default();
        assert!(places.of_store(Some("TAPE"), None).1);
        assert!(!places.of_store(Some("tape"), None).1);
        assert!(!places.of_store(Some("TAPE"), Some(Locality::Local)).1);
        for i in 0..1000 {
            places.of_store(Some(&format!("M{i}")), None);
        }
        assert_eq!(places.known.len(), 255);
        let (place, _) = places.of_store(Some(&"x".repeat(65)), None);
        assert_eq!((place, places.tier(place)), (OTHER, Tier::T2));
        assert!(places.of_removal(Some("M999"), None).contains(OTHER));
    }
}
