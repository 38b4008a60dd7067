//! The router at its public edge, in front of every index there is.

mod rows;
mod steps;
mod world;

use inferencecache_core::testkit::model::Model;

use self::world::{MakeIndex, TestIndex};

const MODEL: MakeIndex = |options| Box::new(Model::new(options)) as Box<dyn TestIndex>;

#[test]
fn every_row_is_answered_as_specified() {
    rows::run(MODEL);
}

#[test]
fn steps() {
    steps::run(MODEL);
}
