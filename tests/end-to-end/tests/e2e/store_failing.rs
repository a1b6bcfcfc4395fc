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
fn what_a_failing_device_has_not_taken_is_recovered_later() {
    run_failing("ends");
}

#[test]
fn a_device_that_takes_it_again_gets_all_while_the_program_goes_on() {
    run_failing("grows");
}

#[test]
fn a_program_that_is_killed_while_its_device_fails_loses_nothing() {
    run_failing("killed");
}

#[test]
fn a_keeper_that_is_killed_while_a_device_fails_loses_nothing() {
    run_failing("keeper");
}

#[test]
fn where_the_log_has_no_room_the_program_hears_of_the_failure() {
    run_failing("full");
}

#[test]
fn what_others_write_to_a_file_that_failed_is_not_overwritten() {
    run_failing("others");
}
