//! Trials of a program with known costs, with the clocks of this machine. The only test in its process,
//! because a process has one set of trials.
#![cfg(target_os = "linux")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use uncopy_trials::{Pace, begin, end, is_a_loss, is_on, record_transfer};

const COSTLY: usize = 3;
const NEUTRAL: usize = 4;
/// Long enough for many pairs of slices.
const WATCH_TIME: Duration = Duration::from_secs(2);
/// Limit for hangs only.
const TIMEOUT: Duration = Duration::from_secs(60);

fn work(rounds: u64) {
    (0..rounds).for_each(|round| {
        black_box(round);
    });
}

/// A call that takes 1.5 times as long while `COSTLY` is on.
fn call() {
    let _ = is_on(NEUTRAL);
    work(if is_on(COSTLY) { 30_000 } else { 20_000 });
    record_transfer(64 << 10);
}

#[test]
fn a_costly_factor_is_left_out_and_nothing_is_tried_after_the_end() {
    assert!(is_on(COSTLY), "what nobody has tried is done");
    begin(Pace::with_slice_ms(8), None);
    let start = Instant::now();
    while !is_a_loss(COSTLY) {
        assert!(start.elapsed() < TIMEOUT, "nothing was found");
        call();
    }
    // A factor that costs is tried again from time to time, for many calls in a row.
    let (start, mut calls, mut on) = (Instant::now(), 0, 0);
    while start.elapsed() < WATCH_TIME {
        call();
        calls += 1;
        on += u32::from(is_on(COSTLY));
    }
    assert!(on < calls / 2, "{on} of {calls} calls after it was found to cost");

    // A forked child keeps the findings.
    // SAFETY: the child runs only this crate's code on its one thread, and leaves by _exit(2).
    let child = unsafe { libc::fork() };
    if child == 0 {
        uncopy_trials::restart_in_child();
        (0..100).for_each(|_| call());
        let is_known = is_a_loss(COSTLY);
        // SAFETY: _exit(2) has no preconditions; it skips the exit handlers inherited from the parent.
        unsafe { libc::_exit(i32::from(!is_known)) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes through the call, and `child` is a child of this process.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 0));

    // A call in another thread while the trials end does not restart them.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..2_000).for_each(|_| call()));
        }
        std::thread::sleep(Duration::from_millis(20));
        end();
    });
    for _ in 0..2_000 {
        assert!(!is_on(COSTLY) && !is_on(NEUTRAL), "only what saves is on");
        call();
    }
    begin(Pace::with_slice_ms(8), None);
    (0..2_000).for_each(|_| call());
    assert!(!is_on(COSTLY), "the end is for good");
}
