//! What an index must do to be one: a suite for your own [`IndexApi`].
//!
//! ```
//! # use inferencecache_core::{Index, testkit::conformance};
//! # use std::sync::Arc;
//! conformance::index_api(&|options| Arc::new(Index::new(options)));
//! ```
//!
//! Two parts. *Stories* are short, readable, and each about one promise; when one fails its name tells what was broken.
//! The *walk* puts 30 000 random operations to your index and to the oracle and compares every answer exactly, down to
//! the bits of the scores and the totals of the sink; when it fails it prints the fewest operations that show it.

mod stories;

use std::sync::Arc;

use super::differential;
use super::model::Model;
use super::subject::Subject;
use crate::index::{IndexApi, IndexOptions};

/// Makes the index under test.
pub type Make<'a> = dyn Fn(IndexOptions) -> Arc<dyn IndexApi> + 'a;

/// Runs the whole suite. Panics with the name of the story, or the operations, that show a violation.
pub fn index_api(make: &Make<'_>) {
    stories::all(make);
    for seed in 0..3 {
        differential::run(seed, 10_000, &|options| Subject::Opaque(Arc::new(Model::new(options))), &|options| {
            Subject::Opaque(make(options))
        });
    }
}
