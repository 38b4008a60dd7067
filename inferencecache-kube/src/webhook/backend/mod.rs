//! Rules of CacheBackend, a family to a file.
//!
//! ```text
//!  domain     R1 selector, X1 one owner     lmcache    R3 topology and servers
//!  storage    R2 R5 hierarchy and endpoint  redis      R4 R6-R12 what Redis may be told
//!  engine     R13-R16 mode, HiCache, role   wiring     R17 R18 adapters and overrides
//! ```
//!
//! The numbers are those of the specification. A rule looks at one object; X1 alone looks at its siblings. Adding a rule is
//! adding it to the list.

mod default;
mod domain;
mod engine;
mod lmcache;
mod redis;
mod resources;
mod storage;
mod wiring;

use std::fmt;
use std::sync::Arc;

pub use self::default::patch;
pub use self::domain::{conflict, selector};

use crate::adapters::RuntimeRegistry;
use crate::api::CacheBackend;
use crate::webhook::field::FieldError;
use crate::webhook::seam;

/// A rule: the violations of one object.
pub type Rule = Arc<dyn Fn(&CacheBackend) -> Vec<FieldError> + Send + Sync>;

/// All rules that look at one object, in order.
#[derive(Clone)]
pub struct Rules {
    list: Vec<Rule>,
    adapters: Arc<RuntimeRegistry>,
}

impl Rules {
    /// The rules of the specification, with those adapters.
    #[must_use]
    pub fn new(adapters: Arc<RuntimeRegistry>) -> Self {
        let (all, overrides) = (adapters.clone(), adapters.clone());
        Self {
            adapters: all,
            list: vec![
                Arc::new(selector),
                Arc::new(storage::hierarchy),
                Arc::new(lmcache::topology),
                Arc::new(redis::features),
                Arc::new(storage::namespace),
                Arc::new(redis::managed_resources),
                Arc::new(engine::events_only),
                Arc::new(engine::hi_cache),
                Arc::new(engine::kernel_check),
                Arc::new(engine::role),
                Arc::new(move |backend| wiring::adapter(&adapters, backend)),
                Arc::new(move |backend| wiring::overrides(&overrides, backend)),
            ],
        }
    }

    /// The adapters that the rules know.
    #[must_use]
    pub fn adapters(&self) -> &RuntimeRegistry {
        &self.adapters
    }

    /// One rule more, after the others.
    #[must_use]
    pub fn with(mut self, rule: Rule) -> Self {
        self.list.push(rule);
        self
    }

    /// Every violation of an object.
    #[must_use]
    pub fn all(&self, backend: &CacheBackend) -> Vec<FieldError> {
        let mut errors: Vec<FieldError> = Vec::new();
        for error in self.list.iter().flat_map(|rule| rule(backend)) {
            // Two rules may see one mistake.
            let told = errors.iter().any(|e| e.path == error.path && e.violation == error.violation);
            if !told {
                errors.push(error);
            }
        }
        errors
    }

    /// Violations that refuse a new object, but for X1.
    #[must_use]
    pub fn create(&self, backend: &CacheBackend) -> Vec<FieldError> {
        let mut errors = self.all(backend);
        errors.extend(storage::service_name(backend));
        errors
    }

    /// Violations that refuse an edit, but for X1: what it adds, and the selector whatever was there.
    #[must_use]
    pub fn update(&self, old: &CacheBackend, new: &CacheBackend) -> Vec<FieldError> {
        let mut errors = seam::introduced(&self.all(old), self.all(new));
        seam::enforce(&mut errors, selector(new));
        errors
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("rules", &self.list.len()).finish()
    }
}
