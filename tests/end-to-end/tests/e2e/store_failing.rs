//! A device without room for data that was synced: each acknowledged sync survives, in the file, or in the
//! log for a recovery once there is room. The test needs root to mount, and is skipped otherwise.

use uncopy_tests::artifacts::skipped;
use uncopy_tests::crash_cycles::{can_mount, run_script};

fn run_failing(what: &str) {
    if !skipped() && can_mount(what) {
        run_script(&["failing.sh", "failing.py"], what, &[what]);
    }
}

#[test]
fn data_refused_by_a_full_device_is_recovered_later() {
    run_failing("ends");
}

#[test]
fn a_device_that_takes_it_again_gets_all_while_the_program_goes_on() {
    run_failing("grows");
}

#[test]
fn program_killed_while_its_device_fails_loses_nothing() {
    run_failing("killed");
}

#[test]
fn keeper_killed_while_a_device_fails_loses_nothing() {
    run_failing("keeper");
}

#[test]
fn full_log_reports_sync_failures_to_the_program() {
    run_failing("full");
}

#[test]
fn recovery_keeps_later_writes_of_others() {
    run_failing("others");
}
