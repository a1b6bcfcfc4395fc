//! Programs with a log, on their own file systems: kills and power loss lose nothing that was promised.
//!
//! `UNCOPY_TEST_SIZE` sets the number of cycles of each kind, `UNCOPY_TEST_SEED` the first seed. The tests
//! need root to mount, and are skipped otherwise.

use std::process::Command;

use uncopy_tests::crash_cycles::{can_mount, run_script, scaled_cycles};
use uncopy_tests::random::{Random, seed};

/// Number of cycles of each kind in tests of size 10.
const CYCLES: u64 = 3;

/// Runs several cycles of one kind.
fn run_cycles(what: &str, steps: u64, ms: std::ops::Range<usize>, mkfs: &str) {
    if !can_mount(what) {
        return;
    }
    let first = seed(1);
    for number in 0..scaled_cycles(CYCLES) {
        let seed = first + number;
        let mut random = Random::new(seed);
        let ms = ms.start + random.below(ms.end - ms.start);
        let title = format!("{what}, seed {seed}, after {ms} ms");
        let arguments = [&seed.to_string(), &steps.to_string(), what, &ms.to_string(), mkfs];
        let _ = run_script(&["crash_cycle.sh", "writer.py"], &title, &arguments);
    }
}

const EXT4: &str = "mkfs.ext4 -q -F";

#[test]
fn files_match_what_was_written() {
    run_cycles("nothing", 1500, 0..1, EXT4);
}

#[test]
fn killed_program_loses_nothing() {
    run_cycles("program", 1_000_000, 300..3000, EXT4);
}

#[test]
fn program_continues_without_its_keeper() {
    run_cycles("keeper", 1500, 100..900, EXT4);
}

#[test]
fn killed_program_and_keeper_lose_nothing() {
    run_cycles("both", 1_000_000, 300..3000, EXT4);
}

#[test]
fn synced_data_survives_power_loss() {
    run_cycles("power", 1_000_000, 300..3000, EXT4);
}

#[test]
fn synced_data_survives_power_loss_after_the_keepers_death() {
    run_cycles("keeper-power", 1_000_000, 300..3000, EXT4);
}

#[test]
fn synced_data_survives_power_loss_on_xfs_and_btrfs() {
    for (kind, mkfs) in [("xfs", "mkfs.xfs -q -f"), ("btrfs", "mkfs.btrfs -q -f -m single")] {
        let is_there = Command::new(format!("mkfs.{kind}")).arg("-V").output().is_ok();
        let is_known = std::fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains(kind));
        if is_there && is_known {
            run_cycles("power", 1_000_000, 300..3000, mkfs);
        } else {
            eprintln!("skipped: power loss on {kind}: the kernel or mkfs does not know it");
        }
    }
}
