//! A bounded share of what `make machine` does, and every program that ever failed.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uncopy_core::stats::Counter;
use uncopy_differential::drive::{Outcome, Plan, drive};
use uncopy_differential::program::Program;
use uncopy_differential::trial::{Subject, Trial};
use uncopy_tests::launch::Mode;

const MACHINE: &str = env!("CARGO_BIN_EXE_differential");

/// Operations of a share: `UNCOPY_TEST_OPERATIONS`, or what `make test` has time for.
fn operations() -> u64 {
    std::env::var("UNCOPY_TEST_OPERATIONS")
        .map_or(150_000, |text| text.parse().expect("a number of operations"))
}

fn plan(seed: u64, operations: u64, modes: &[Mode]) -> Outcome {
    plan_with_mates(seed, operations, modes, 0)
}

/// The same where streams go to other programs, by lanes.
fn plan_with_mates(seed: u64, operations: u64, modes: &[Mode], mates: usize) -> Outcome {
    let plan = Plan {
        seed,
        operations,
        length: 10_000,
        jobs: 2,
        time: Duration::from_secs(150),
        modes: modes.to_vec(),
        mates,
        machine: PathBuf::from(MACHINE),
        failures: Path::new(env!("CARGO_TARGET_TMPDIR")).join("differential-failures"),
        shrink_time: Duration::from_secs(30),
        max_failures: 1,
    };
    let outcome = drive(&plan);
    println!("seeds from {seed} on\n{}", outcome.sum);
    assert!(
        outcome.failures.is_empty(),
        "seeds from {seed} on, {modes:?}: differences; the programs are in {:?}",
        outcome.failures
    );
    outcome
}

#[test]
fn known_programs_make_no_difference() {
    let sum = plan(1, operations(), &[Mode::Always]).sum;
    for counter in [
        Counter::ElidedBytes,
        Counter::InputBytes,
        Counter::OutputBytes,
        Counter::Faults,
        Counter::LentBytes,
        Counter::DroppedBytes,
    ] {
        assert!(sum.counter(counter) > 0, "{counter:?} is zero: nothing was tried");
    }
}

#[test]
fn known_programs_make_no_difference_with_the_default_policy() {
    plan(1, operations() / 3, &[Mode::Sliced]);
}

#[test]
fn known_programs_make_no_difference_while_they_are_recorded_and_sampled() {
    let sum = plan(1, operations() / 6, &[Mode::Recorded]).sum;
    for counter in [Counter::ElidedBytes, Counter::InputBytes, Counter::Faults] {
        assert!(sum.counter(counter) > 0, "{counter:?} is zero: nothing was sampled");
    }
}

#[test]
fn new_programs_make_no_difference() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    plan(since.as_secs() << 20, operations() / 3, &[Mode::Always]);
}

#[test]
fn programs_whose_streams_are_lanes_make_no_difference() {
    let sum = plan_with_mates(1, operations() / 3, &[Mode::Always, Mode::Auto], 2).sum;
    for counter in [Counter::Lanes, Counter::LaneReceivedBytes, Counter::LaneSentBytes, Counter::ElidedBytes]
    {
        assert!(sum.counter(counter) > 0, "{counter:?} is zero: nothing was tried");
    }
}

#[test]
fn programs_that_failed_once_do_not_fail_again() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut programs = 0;
    for entry in corpus.read_dir().expect("the corpus") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let program = Program::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for mode in Mode::BOTH {
            let report = Trial::new(MACHINE, mode).run(Subject::Program(&program));
            assert!(report.failure.is_none(), "{} ({mode:?}): {:?}", path.display(), report.failure);
        }
        programs += 1;
    }
    assert!(programs > 0, "{} is empty", corpus.display());
}
