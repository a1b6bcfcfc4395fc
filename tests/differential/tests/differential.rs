//! A bounded share of `make machine` and its variants, and every program that has ever failed.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uncopy_core::options::LogMode;
use uncopy_core::stats::Counter;
use uncopy_differential::drive::{Outcome, Plan, drive};
use uncopy_differential::program::{Kind, Program};
use uncopy_differential::test_run::{ProgramSource, TestRun};
use uncopy_differential::{files, generator};
use uncopy_tests::artifacts::skipped;
use uncopy_tests::launch::Mode;
use uncopy_tests::random::test_size;
use uncopy_tests::scratch::Scratch;

const MACHINE: &str = env!("CARGO_BIN_EXE_differential");

/// Operations of one program of files.
const FILE_OPERATIONS: usize = 800;

/// Number of operations of a share.
fn operations() -> u64 {
    15_000 * test_size()
}

fn run_share(seed: u64, operations: u64, modes: &[Mode]) -> Outcome {
    run_share_with_mates(seed, operations, modes, 0)
}

/// Runs a share whose streams go to mates, by lanes.
fn run_share_with_mates(seed: u64, operations: u64, modes: &[Mode], mates: usize) -> Outcome {
    run_plan(&Plan { seed, operations, modes: modes.to_vec(), mates, ..base_plan() })
}

/// Parameters common to all shares.
fn base_plan() -> Plan {
    Plan {
        seed: 1,
        operations: 0,
        length: 10_000,
        jobs: 2,
        time: Duration::from_secs(150),
        modes: vec![Mode::Always],
        mates: 0,
        files: None,
        machine: PathBuf::from(MACHINE),
        failures: Path::new(env!("CARGO_TARGET_TMPDIR")).join("differential-failures"),
        shrink_time: Duration::from_secs(30),
        max_failures: 1,
    }
}

fn run_plan(plan: &Plan) -> Outcome {
    let outcome = drive(plan);
    println!("seeds from {} on\n{}", plan.seed, outcome.totals);
    assert!(
        outcome.failures.is_empty(),
        "seeds from {} on, {:?}: differences; the programs are in {:?}",
        plan.seed,
        plan.modes,
        outcome.failures
    );
    outcome
}

/// Returns a seed that was not tried before.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() << 20
}

/// Whether files can take part in a log on this file system; prints that the test is skipped if not.
fn can_log(test: &str) -> bool {
    let scratch = Scratch::on_disk("fit");
    let supports_log = files::test_run::supports_log(scratch.path());
    if !supports_log {
        eprintln!("skipped: {test}: {} lies on a file system without logs", scratch.path().display());
    }
    supports_log && !skipped()
}

/// Runs a share of programs of files.
fn run_file_share(seed: u64, operations: u64, log_mode: LogMode) -> Outcome {
    run_plan(&Plan { seed, operations, length: FILE_OPERATIONS, files: Some(log_mode), ..base_plan() })
}

#[test]
fn generators_produce_every_kind_of_operation() {
    let memory_programs = (0..40).map(|seed| generator::generate(seed, 1000));
    let file_programs = (0..40).map(|seed| files::generator::generate(seed, 1000, LogMode::Beside));
    let mut seen = [false; Kind::ALL.len()];
    for operation in memory_programs.chain(file_programs).flat_map(|program| program.operations) {
        seen[operation.kind as usize] = true;
    }
    let missing: Vec<Kind> = Kind::ALL.iter().copied().filter(|kind| !seen[*kind as usize]).collect();
    assert_eq!(missing, []);
}

#[test]
fn fixed_seeds_match_the_model() {
    let totals = run_share(1, operations(), &[Mode::Always]).totals;
    for counter in [
        Counter::ElidedBytes,
        Counter::InputBytes,
        Counter::OutputBytes,
        Counter::Faults,
        Counter::LentBytes,
        Counter::DroppedBytes,
    ] {
        assert!(totals.counter(counter) > 0, "{counter:?} is zero: nothing was tried");
    }
}

#[test]
fn fixed_seeds_match_the_model_under_the_default_policy() {
    run_share(1, operations() / 3, &[Mode::Sliced]);
}

#[test]
fn fixed_seeds_match_the_model_while_recorded_and_sampled() {
    let totals = run_share(1, operations() / 6, &[Mode::Recorded]).totals;
    for counter in [Counter::ElidedBytes, Counter::InputBytes, Counter::Faults] {
        assert!(totals.counter(counter) > 0, "{counter:?} is zero: nothing was sampled");
    }
}

#[test]
fn fresh_seeds_match_the_model() {
    run_share(fresh_seed(), operations() / 3, &[Mode::Always]);
}

#[test]
fn streams_over_lanes_match_the_model() {
    let totals = run_share_with_mates(1, operations() / 3, &[Mode::Always, Mode::Auto], 2).totals;
    for counter in [Counter::Lanes, Counter::LaneReceivedBytes, Counter::LaneSentBytes, Counter::ElidedBytes]
    {
        assert!(totals.counter(counter) > 0, "{counter:?} is zero: nothing was tried");
    }
}

#[test]
fn file_programs_behave_the_same_with_a_log() {
    if can_log("programs of files") {
        let totals = run_file_share(1, operations() / 25, LogMode::Beside).totals;
        for counter in [Counter::LogSyncs, Counter::LogBytes] {
            assert!(totals.counter(counter) > 0, "{counter:?} is zero: no log took part");
        }
    }
}

#[test]
fn file_programs_behave_the_same_with_a_log_that_has_the_only_copy() {
    if can_log("programs of files, by the log alone") {
        // At least eight programs, for the same reason as below.
        let operations = (operations() / 50).max(8 * FILE_OPERATIONS as u64);
        for seed in [1, fresh_seed()] {
            let totals = run_file_share(seed, operations, LogMode::Only).totals;
            for counter in [Counter::LogAppends, Counter::LogAppendedBytes, Counter::LogDepartures] {
                assert!(totals.counter(counter) > 0, "{counter:?} is zero: no log took part");
            }
        }
    }
}

#[test]
fn file_programs_of_fresh_seeds_behave_the_same_with_a_log() {
    if can_log("new programs of files") {
        // At least eight programs: in one of ten, no file is synced often enough to take part in a log.
        let operations = (operations() / 50).max(8 * FILE_OPERATIONS as u64);
        let totals = run_file_share(fresh_seed(), operations, LogMode::Beside).totals;
        assert!(totals.counter(Counter::LogSyncs) > 0, "no log took part");
    }
}

#[test]
fn corpus_of_file_programs_passes() {
    if !can_log("programs of files that failed once") {
        return;
    }
    let test_run =
        TestRun::new(MACHINE, Mode::Always).with_file_runner(Some(uncopy_differential::files::test_run::run));
    let programs = for_each_program("corpus-files", |path, program| {
        let report = test_run.run(ProgramSource::Program(program));
        assert!(report.failure.is_none(), "{}: {:?}", path.display(), report.failure);
    });
    assert!(programs > 0, "corpus-files is empty");
}

/// Calls `work` for each program of a directory and returns the number of programs.
fn for_each_program(directory: &str, mut work: impl FnMut(&Path, &Program)) -> usize {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut programs = 0;
    for entry in corpus.read_dir().expect("the corpus") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let program = Program::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        work(&path, &program);
        programs += 1;
    }
    programs
}

#[test]
fn corpus_passes() {
    let programs = for_each_program("corpus", |path, program| {
        for mode in Mode::FOR_APPLICATIONS {
            let report = TestRun::new(MACHINE, mode).run(ProgramSource::Program(program));
            assert!(report.failure.is_none(), "{} ({mode:?}): {:?}", path.display(), report.failure);
        }
    });
    assert!(programs > 0, "the corpus is empty");
}
