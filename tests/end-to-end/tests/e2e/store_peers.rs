//! Other peers of a log's keeper: processes that have changed user, and forged ones. The test needs
//! root to mount, and is skipped otherwise.

use uncopy_tests::artifacts::skipped;
use uncopy_tests::crash_cycles::{can_mount, run_script};

fn run_peers(what: &str) {
    if !skipped() && can_mount(what) {
        run_script(&["log_peers.sh", "log_peers.py"], what, &[what]);
    }
}

#[test]
fn a_worker_that_has_given_up_its_user_shares_nothing_with_the_logs_keeper() {
    run_peers("changes");
}

#[test]
fn a_forged_peer_has_no_file_marked_that_it_cannot_write_to() {
    run_peers("forged");
}
