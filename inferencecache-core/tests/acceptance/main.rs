//! The numbered acceptance rows of the index, played from `tests/cases` against every implementation.

mod expect;
mod header;
mod notation;
mod play;
mod script;
mod snapshot;

use std::sync::Arc;

use inferencecache_core::Index;
use inferencecache_core::testkit::Model;
use play::{Factory, World};

const FILES: &[(&str, &str)] = &[
    ("exact.cases", include_str!("../cases/exact.cases")),
    ("chain.cases", include_str!("../cases/chain.cases")),
    ("isolation.cases", include_str!("../cases/isolation.cases")),
    ("writes.cases", include_str!("../cases/writes.cases")),
    ("eviction.cases", include_str!("../cases/eviction.cases")),
    ("affinity.cases", include_str!("../cases/affinity.cases")),
    ("gates.cases", include_str!("../cases/gates.cases")),
];

/// Plays every case; reports all that fail, each with its row.
fn play_all(factory: &Factory) {
    let mut failures = String::new();
    for case in FILES.iter().flat_map(|(file, text)| script::cases(file, text)) {
        'repeat: for _ in 0..case.repeat {
            let mut world = World::new(factory, &case.options);
            for step in &case.steps {
                if let Err(why) = world.play(step) {
                    failures +=
                        &format!("\n{case}\n    {}\n  failed at `{step}`\n  {why}\n", case.steps.join("\n    "));
                    break 'repeat;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    snapshot::check(factory);
    header::check(factory);
}

#[test]
fn the_oracle_passes_every_case() {
    play_all(&|options| Arc::new(Model::new(options)));
}

#[test]
fn the_index_passes_every_case() {
    play_all(&|options| Arc::new(Index::new(options)));
}
