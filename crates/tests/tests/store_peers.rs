//! Who else is at the other end of a link with the keeper of a log: processes that have become another user's, and forged ones. Only root
//! can mount: others skip it.

use uncopy_tests::artifacts::skipped;
use uncopy_tests::lives::{can_mount, run_script};

fn peers(what: &str) {
    if !skipped() && can_mount(what) {
        run_script(&["log_peers.sh", "log_peers.py"], what, &[what]);
    }
}

#[test]
fn a_worker_that_has_given_up_its_user_shares_nothing_with_the_logs_keeper() {
    peers("changes");
}

#[test]
fn a_forged_peer_has_no_file_marked_that_it_cannot_write_to() {
    peers("forged");
}
