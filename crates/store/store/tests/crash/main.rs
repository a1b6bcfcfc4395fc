//! Simulates power loss at any moment: whichever unflushed sectors a device kept and dirty pages a file system
//! wrote, each byte of a file has its value at the last completed sync, or one that was written later.
//!
//! `UNCOPY_TEST_SIZE`: ten thousands of states to check. `UNCOPY_TEST_SEED`: the first seed.

#![allow(clippy::cast_possible_truncation, reason = "64-bit machines")]

mod disk;
mod files;
mod system;

use std::rc::Rc;

use uncopy_core::random::test_size;
use uncopy_store::capture::Capture;
use uncopy_store::layout::{Checkpoint, RING_OFFSET, Superblock};
use uncopy_store::log::{Checkpoints, Log, create};
use uncopy_store::recovery::Recovery;
use uncopy_store::state::State;

use disk::{Disk, Random, SECTOR};
use files::PAGE;
use system::{FILES, LOG, System, Tracked, World, add, crash};

const RING_BYTES: u64 = 14 << 10;
const CRASHES: usize = 8;

fn made(disk: &Disk) -> (Superblock, Checkpoint) {
    let superblock =
        Superblock { log: LOG, len_bytes: RING_OFFSET + RING_BYTES, granule_bytes: 512, machine: 1 };
    (superblock, create(&disk, &superblock, 0).expect("a log"))
}

fn begin<'a>(
    disk: &'a Disk,
    (superblock, checkpoint): (Superblock, Checkpoint),
    state: &'a State,
) -> (Log<'a, &'a Disk>, Checkpoints<'a, &'a Disk>) {
    let checkpoints = Checkpoints::begin(disk, superblock, checkpoint, state).expect("a log");
    let log = Log::attach(disk, superblock, checkpoint.epoch, state).expect("a moment");
    (log, checkpoints)
}

/// Recovers a log, sometimes after further power losses during recoveries.
fn recover(disk: &Disk, world: &mut World, random: &mut Random) -> (Superblock, Checkpoint) {
    for _ in 0..random.below(3) {
        let mut interrupted = world.clone();
        let recovery = Recovery::open(disk).expect("a log");
        let survey = recovery.survey().expect("read");
        let mut found = recovery.look_up(&survey, &mut interrupted);
        recovery.replay(&mut interrupted, &mut found).expect("replayed");
        for (file, after) in world.files.iter_mut().zip(&interrupted.files) {
            let mut inode = after.inode.clone();
            // The power is lost before all writes of the recovery are synced.
            inode.durable.clone_from(&file.inode.durable);
            let pages = (0..=inode.cached.len() / PAGE).filter(|page| page * PAGE < inode.cached.len());
            inode.dirty = pages.collect();
            file.inode = inode.crashed(random);
        }
    }
    let recovery = Recovery::open(disk).expect("a log");
    let survey = recovery.survey().expect("read");
    let (end, mut found) = (survey.end, recovery.look_up(&survey, world));
    assert!(!end.is_damaged, "{end:?}");
    recovery.replay(world, &mut found).expect("replayed");
    let (_, superblock, checkpoint) = recovery.emptied(end, 0);
    (superblock, checkpoint)
}

fn check(world: &World) -> Result<(), String> {
    let check = |file: &Tracked| {
        file.promise.check(&file.inode.cached).map_err(|why| format!("file {}: {why}", file.identity))
    };
    world.files.iter().try_for_each(check)
}

/// Simulates a log through several crashes. Returns the number of checked states.
fn live(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let mut disk = Disk::new((RING_OFFSET + RING_BYTES) as usize);
    let files = (0..FILES as u64).map(Tracked::new).collect();
    let mut world = World { files, identities: FILES as u64 };
    let (mut first, mut checkpoint, mut states) = (true, None, 0);
    for _ in 0..4 {
        let state = State::default();
        let (log, checkpoints) = begin(&disk, checkpoint.unwrap_or_else(|| made(&disk)), &state);
        let (is_broken, world_now) = (false, world.clone());
        let mut system = System { disk: &disk, log, checkpoints, state: &state, is_broken, world: world_now };
        for file in &mut system.world.files {
            // A restarted program knows nothing of its files.
            file.is_adopted = false;
            file.last = 0;
            file.dirty.clear();
            file.needs_sync = false;
            file.inode.is_marked &= !first;
            let cached = file.inode.cached.clone();
            file.inode.sync();
            Rc::make_mut(&mut file.promise).synced(&cached);
        }
        first = false;
        let fails_after = if random.one_in(6) { Some(random.below(40) as u32) } else { None };
        disk.fails_after.set(fails_after);
        disk.lives_for.set(if random.one_in(2) { Some(random.below(60) as u32) } else { None });
        let steps = 1 + random.below(60);
        for _ in 0..steps {
            system.step(&mut random);
            if !random.one_in(4) && !system.is_over() {
                continue;
            }
            for _ in 0..CRASHES {
                let (disk, mut world) = crash(&system, &disk, &mut random);
                let _ = recover(&disk, &mut world, &mut random);
                check(&world).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                states += 1;
            }
            if system.is_over() {
                break;
            }
        }
        let (after, mut left) = crash(&system, &disk, &mut random);
        checkpoint = Some(recover(&after, &mut left, &mut random));
        check(&left).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        (disk, world) = (after, left);
        states += 1;
    }
    states
}

#[test]
fn what_was_synced_survives_whatever_is_lost() {
    let wanted = 10_000 * test_size() as usize;
    let mut seed = std::env::var("UNCOPY_TEST_SEED")
        .map_or(1, |text| text.parse().expect("UNCOPY_TEST_SEED is a number"));
    let mut states = 0;
    while states < wanted {
        states += live(seed);
        seed += 1;
    }
    println!("{states} states of {seed} lives");
}

/// Makes a log with records of one length, the first `flushed` of which are durable. Returns their offsets.
fn with_records(disk: &Disk, count: usize, flushed: usize) -> Vec<usize> {
    let state = State::default();
    let (log, _) = begin(disk, made(disk), &state);
    add_records(&log, count, flushed, b'a')
}

fn add_records(log: &Log<'_, &Disk>, count: usize, flushed: usize, byte: u8) -> Vec<usize> {
    let identity = Tracked::new(1).identity();
    let mut offsets = Vec::new();
    for number in 0..count {
        offsets.push((RING_OFFSET + log.used_bytes()) as usize);
        let mut written = Capture::NONE;
        add(&mut written, 0, &[byte + number as u8; 700]);
        let sequence = log.append(0, &identity, &mut written).expect("written").expect("room");
        if number < flushed {
            log.flush(sequence).expect("flushed");
        }
    }
    offsets
}

/// Returns the first byte of each record found, and whether the log is damaged.
fn found(disk: &Disk) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let recovery = Recovery::open(disk).expect("a log");
    let end = recovery.each_record(|record, all| {
        bytes.push(all[record.extents[0].at]);
        Ok(())
    });
    (bytes, end.expect("read").is_damaged)
}

#[test]
fn leftovers_behind_a_torn_record_do_not_count_once_the_log_goes_on() {
    let disk = Disk::new((RING_OFFSET + RING_BYTES) as usize);
    let offsets = with_records(&disk, 3, 1);
    // The second record was lost, and the third one written.
    disk.cached.borrow_mut()[offsets[1]..offsets[1] + SECTOR].fill(0);
    assert_eq!(found(&disk), (vec![b'a'], false), "nobody was told that the others survive");
    let recovery = Recovery::open(&disk).expect("a log");
    let end = recovery.each_record(|_, _| Ok(())).expect("read");
    let (_, superblock, checkpoint) = recovery.emptied(end, 0);
    let state = State::default();
    let (log, _) = begin(&disk, (superblock, checkpoint), &state);
    assert_eq!(found(&disk), (vec![], false));
    add_records(&log, 1, 1, b'x');
    assert_eq!(found(&disk), (vec![b'x'], false), "the third is of an earlier epoch");
}

#[test]
fn a_record_that_survived_and_is_damaged_is_told_of() {
    let disk = Disk::new((RING_OFFSET + RING_BYTES) as usize);
    let offsets = with_records(&disk, 3, 3);
    assert_eq!(found(&disk), (vec![b'a', b'b', b'c'], false));
    for at in [offsets[1], offsets[1] + 40, offsets[1] + 600] {
        disk.cached.borrow_mut()[at] ^= 1;
        assert_eq!(found(&disk), (vec![b'a'], true), "byte {at}");
        disk.cached.borrow_mut()[at] ^= 1;
    }
    assert!(!found(&disk).1);
}

#[test]
fn whatever_is_on_the_device_is_read_without_harm() {
    let mut random = Random::new(77);
    for _ in 0..20_000 {
        let disk = Disk::new((RING_OFFSET + RING_BYTES) as usize);
        let offsets = with_records(&disk, 3, 2);
        for _ in 0..=random.below(3) {
            let near = [0, 4096, 8192, offsets[0], offsets[1], offsets[2]][random.below(6)];
            disk.cached.borrow_mut()[near + random.below(160)] = random.word() as u8;
        }
        if let Ok(recovery) = Recovery::open(&disk) {
            let mut count = 0;
            recovery
                .each_record(|record, bytes| {
                    count += 1;
                    assert!(record.extents.iter().all(|extent| extent.at + extent.len_bytes <= bytes.len()));
                    Ok(())
                })
                .expect("read");
            assert!(count <= 3, "{count} records");
        }
    }
}
