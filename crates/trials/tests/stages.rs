//! Trials of a program whose costs are known, with the clocks of this machine. One test: there is one trial in a process.
#![cfg(target_os = "linux")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use uncopy_trials::{Pace, begin, end, is_a_loss, is_on, moved};

const COSTLY: usize = 3;
const NEUTRAL: usize = 4;
/// Many pairs of slices.
const WATCHED: Duration = Duration::from_secs(2);
/// For hangs only.
const TIMEOUT: Duration = Duration::from_secs(60);

fn work(rounds: u64) {
    (0..rounds).for_each(|round| {
        black_box(round);
    });
}

/// A call that costs half as much again if the one factor is on.
fn call() {
    let _ = is_on(NEUTRAL);
    work(if is_on(COSTLY) { 30_000 } else { 20_000 });
    moved(64 << 10);
}

#[test]
fn what_costs_is_left_out_and_after_the_end_nothing_is_tried() {
    assert!(is_on(COSTLY), "what nobody has tried is done");
    begin(Pace::of_ms(8), None);
    let begun = Instant::now();
    while !is_a_loss(COSTLY) {
        assert!(begun.elapsed() < TIMEOUT, "nothing was found");
        call();
    }
    // It is tried again now and then, for many calls on end.
    let (begun, mut calls, mut on) = (Instant::now(), 0, 0);
    while begun.elapsed() < WATCHED {
        call();
        calls += 1;
        on += u32::from(is_on(COSTLY));
    }
    assert!(on < calls / 2, "{on} of {calls} calls after it was found to cost");

    // A forked child goes on with what is known.
    // SAFETY: the child makes calls of its own thread only, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        uncopy_trials::in_child();
        (0..100).for_each(|_| call());
        let is_known = is_a_loss(COSTLY);
        // SAFETY: it ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!is_known)) };
    }
    let mut status = 0;
    // SAFETY: the status is valid for writes.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 0));

    // Many threads make calls while the trials end: none brings them back.
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
    begin(Pace::of_ms(8), None);
    (0..2_000).for_each(|_| call());
    assert!(!is_on(COSTLY), "the end is for good");
}
