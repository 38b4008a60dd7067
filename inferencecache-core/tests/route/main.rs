//! The router at its public edge, in front of every index there is.

mod properties;
mod rows;
mod steps;
mod world;

use inferencecache_core::Index;
use inferencecache_core::testkit::{Model, TestIndex};

use self::world::MakeIndex;

const MODEL: MakeIndex = |options| Box::new(Model::new(options)) as Box<dyn TestIndex>;
const INDEX: MakeIndex = |options| Box::new(Index::new(options)) as Box<dyn TestIndex>;

#[test]
fn every_row_is_answered_as_specified() {
    rows::run(MODEL);
    rows::run(INDEX);
}

#[test]
fn every_story_goes_as_specified() {
    steps::run(MODEL);
    steps::run(INDEX);
}
