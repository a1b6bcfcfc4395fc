//! After a program with a log has ended, its files and its log are not in use. The test needs root
//! to mount, and is skipped otherwise.

use uncopy_tests::artifacts::skipped;
use uncopy_tests::crash_cycles::{can_mount, run_script};

fn run_log_ends(what: &str) {
    if !skipped() && can_mount(what) {
        run_script(&["log_ends.sh", "failing.py"], what, &[what]);
    }
}

#[test]
fn file_system_can_be_unmounted_after_its_program() {
    run_log_ends("exits");
}

#[test]
fn log_wait_waits_for_the_keeper_of_a_killed_program() {
    run_log_ends("killed");
}
