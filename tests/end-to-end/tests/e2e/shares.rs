//! The program with known shares keeps its promise in every build.

use std::io::Write;

use uncopy_tests::Scratch;
use uncopy_tests::shares::{Build, Shares, Work};

fn check_shares(build: Build, work: Work) {
    let scratch = Scratch::new("shares");
    let program = match build.make(&scratch) {
        Ok(program) => program,
        // By the handle, which the tests' harness does not hold back.
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "skipped: shares::{build:?}: {why}");
            return;
        }
    };
    let done = program.program(work, 1).run(&scratch, "shares").expect_success();
    let shares = Shares::parse(&done.output);
    for (share, expected) in [(shares.memmove, 0.3), (shares.kernel, 0.2), (shares.compute, 0.5)] {
        assert!((share - expected).abs() < 0.02, "{build:?} {work:?}: {shares:?}");
    }
}

#[test]
fn every_build_has_the_same_shares() {
    for build in Build::ALL {
        check_shares(build, Work::Main);
    }
}

#[test]
fn threads_and_processes_that_come_and_go_have_the_same_shares() {
    check_shares(Build::FramePointers, Work::Threads);
    check_shares(Build::FramePointers, Work::Forks);
}
