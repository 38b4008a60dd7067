//! Every answer and every stored entry, compared with the oracle (P1 to P17).

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};

use inferencecache_core::testkit::differential::{Coverage, Episode, run};
use inferencecache_core::testkit::generate::{Names, Op, Setup};
use inferencecache_core::testkit::{Broken, Fault, Model, Subject};
use inferencecache_core::{Index, IndexOptions};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Operations of the run in every `cargo test`.
const OPERATIONS: usize = 1_000_000;

fn model(options: IndexOptions) -> Subject {
    Subject::open(Model::new(options))
}

fn index(options: IndexOptions) -> Subject {
    Subject::open(Index::new(options))
}

/// A seed that is new every time. A failure prints it.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one("seed")
}

fn met_everything(coverage: &Coverage) -> bool {
    let Coverage { strategies, rows, captures, over_quota, evicted, dumps, .. } = coverage;
    strategies.iter().chain(evicted).chain([rows, captures, over_quota, dumps]).all(|&count| count > 1_000)
}

#[test]
fn the_index_answers_as_the_oracle_does() {
    for seed in [1, fresh_seed()] {
        let coverage = run(seed, OPERATIONS / 2, &model, &index);
        println!("seed {seed}: {coverage:?}");
        assert!(met_everything(&coverage), "{coverage:?}");
    }
}

#[test]
#[ignore = "long: make soak"]
fn the_index_answers_as_the_oracle_does_for_long() {
    let seed = fresh_seed();
    println!("seed {seed}: {:?}", run(seed, 10 * OPERATIONS, &model, &index));
}

/// O3: nothing depends on the seed of a hasher.
#[test]
fn two_indexes_answer_alike() {
    run(fresh_seed(), OPERATIONS / 10, &index, &index);
}

#[test]
fn every_fault_differs() {
    for fault in Fault::ALL {
        let broken = |options| Subject::open(Broken::new(options, fault));
        let outcome = catch_unwind(AssertUnwindSafe(|| run(7, 20_000, &model, &broken)));
        assert!(outcome.is_err(), "{fault:?} went unnoticed");
    }
}

#[test]
fn a_difference_is_told_in_few_operations() {
    let broken = |options| Subject::open(Broken::new(options, Fault::LosesRemovals));
    let episode = Episode::random(1, 2_000);
    let first = episode.play(&model, &broken, 8, &mut Coverage::default()).expect_err("a fault");
    let (few, _) = episode.shrink(&first, &model, &broken);
    assert_eq!(few.ops.len(), 2, "one report and one removal: {:#?}", few.ops);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same, shrunk by proptest: each operation is drawn from a seed of its own.
    #[test]
    fn lists_of_operations_answer_alike(setup in any::<u64>().no_shrink(), ops in prop::collection::vec(any::<u64>().no_shrink(), 1..150)) {
        let setup = Setup::random(&mut SmallRng::seed_from_u64(setup));
        let names = Names::new(setup.shape);
        let ops = ops.into_iter().map(|seed| Op::random(&mut SmallRng::seed_from_u64(seed), &names)).collect();
        let episode = Episode { setup, ops };
        if let Err(difference) = episode.play(&model, &index, 1, &mut Coverage::default()) {
            prop_assert!(false, "{difference:?}\n{episode:#?}");
        }
    }
}
