//! Power loss at any moment: whatever subset of unflushed sectors a device kept, and of dirty pages a file system wrote, each byte
//! of a file is what it was at the last sync that returned, or was written after that.
//!
//! `UNCOPY_STORE_STATES` says how many states are looked at, `UNCOPY_STORE_SEED` where to begin.

#![allow(clippy::cast_possible_truncation, reason = "64-bit machines")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use uncopy_store::device::Device;
use uncopy_store::layout::{Identity, RING_OFFSET, Superblock};
use uncopy_store::log::{Log, Moment};
use uncopy_store::recovery::{Files, Found, Recovery};
use uncopy_sys::errno::Errno;

const SECTOR: usize = 512;
const PAGE: usize = 4096;
const RING_BYTES: u64 = 14 << 10;
const MAX_FILE_BYTES: usize = 20_000;
const FILES: usize = 3;
/// Crashes that are looked at from each moment.
const CRASHES: usize = 8;
const LOG: u64 = 0x6c6f67;

/// Numbers that are the same in every run (splitmix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// A device with a volatile cache.
#[derive(Clone, Default)]
struct Disk {
    durable: RefCell<Vec<u8>>,
    cached: RefCell<Vec<u8>>,
    unflushed: RefCell<Vec<(usize, Vec<u8>)>>,
    /// Fails after so many more writes and flushes.
    fails_after: Cell<Option<u32>>,
    /// Loses its power in the middle of one, after so many more.
    lives_for: Cell<Option<u32>>,
    has_lost_power: Cell<bool>,
}

impl Disk {
    fn new(len: usize) -> Self {
        let bytes = RefCell::new(vec![0; len]);
        Self { durable: bytes.clone(), cached: bytes, ..Self::default() }
    }

    fn step(&self) -> Result<(), Errno> {
        let left = self.lives_for.get();
        self.has_lost_power.set(self.has_lost_power.get() || left == Some(0));
        self.lives_for.set(left.map(|left| left.saturating_sub(1)));
        if self.has_lost_power.get() {
            return Err(Errno(libc::EIO));
        }
        match self.fails_after.get() {
            Some(0) => Err(Errno(libc::EIO)),
            left => {
                self.fails_after.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    /// What is left after power loss.
    fn crashed(&self, random: &mut Random) -> Self {
        let mut durable = self.durable.borrow().clone();
        let chances = 1 + random.below(4);
        for (at, bytes) in &*self.unflushed.borrow() {
            for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                let at = at + sector * SECTOR;
                match random.below(chances + 1) {
                    0 => {}
                    // A sector that was written in part.
                    1 if random.one_in(8) => {
                        let torn = random.below(SECTOR);
                        durable[at..at + torn].copy_from_slice(&bytes[..torn]);
                    }
                    _ => durable[at..at + SECTOR].copy_from_slice(bytes),
                }
            }
        }
        let durable = RefCell::new(durable);
        Self { cached: durable.clone(), durable, ..Self::default() }
    }
}

impl Device for Disk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let (offset, cached) = (offset as usize, self.cached.borrow());
        into.copy_from_slice(cached.get(offset..offset + into.len()).ok_or(Errno(libc::EIO))?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        assert!(offset.is_multiple_of(SECTOR as u64) && bytes.len().is_multiple_of(SECTOR), "whole sectors");
        let offset = offset as usize;
        if !self.has_lost_power.get() {
            self.unflushed.borrow_mut().push((offset, bytes.to_vec()));
        }
        self.step()?;
        self.cached.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        self.step()?;
        let mut durable = self.durable.borrow_mut();
        for (at, bytes) in self.unflushed.borrow_mut().drain(..) {
            durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

/// A file as a file system has it: a page cache, and what is on its device.
#[derive(Clone, Default)]
struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    is_marked: bool,
    is_marked_durably: bool,
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        // Also the pages of a hole before it: their zeroes are part of the file.
        let first = offset.min(self.cached.len());
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[offset..end].copy_from_slice(bytes);
        self.dirty.extend(first / PAGE..=(end - 1) / PAGE);
    }

    fn write_back(&mut self, page: usize) {
        self.dirty.remove(&page);
        let end = (page * PAGE + PAGE).min(self.cached.len());
        if page * PAGE >= end {
            return;
        }
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[page * PAGE..end].copy_from_slice(&self.cached[page * PAGE..end]);
    }

    fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            self.write_back(page);
        }
        self.durable.resize(self.cached.len(), 0);
        self.durable.truncate(self.cached.len());
        self.is_marked_durably = self.is_marked;
    }

    fn crashed(&self, random: &mut Random) -> Self {
        let mut after = self.clone();
        for page in after.dirty.clone() {
            if random.one_in(2) {
                after.write_back(page);
            }
        }
        // A shorter length is written at some time, as marks are.
        if after.durable.len() > after.cached.len() && random.one_in(2) {
            after.durable.truncate(after.cached.len());
        }
        if random.one_in(2) {
            after.is_marked_durably = after.is_marked;
        }
        after.dirty.clear();
        after.cached.clone_from(&after.durable);
        after.is_marked = after.is_marked_durably;
        after
    }
}

/// What a file may hold after power loss.
#[derive(Clone, Default)]
struct Promise {
    /// For each byte, what it may be.
    bytes: Vec<Vec<u8>>,
    /// Shortest and longest that it may be.
    len: (usize, usize),
}

impl Promise {
    fn written(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, vec![0]);
        }
        for (allowed, byte) in self.bytes[offset..end].iter_mut().zip(bytes) {
            allowed.push(*byte);
        }
        self.len.1 = self.len.1.max(end);
    }

    fn truncated(&mut self, len: usize) {
        self.len.0 = self.len.0.min(len);
        // What is written behind it later begins with zeroes.
        self.bytes[len..].iter_mut().for_each(|allowed| allowed.push(0));
    }

    fn synced(&mut self, bytes: &[u8]) {
        self.bytes = bytes.iter().map(|byte| vec![*byte]).collect();
        self.len = (bytes.len(), bytes.len());
    }

    fn check(&self, found: &[u8]) -> Result<(), String> {
        if !(self.len.0..=self.len.1).contains(&found.len()) {
            return Err(format!("{} bytes long, may be {:?}", found.len(), self.len));
        }
        let wrong = found.iter().zip(&self.bytes).position(|(byte, allowed)| !allowed.contains(byte));
        wrong.map_or(Ok(()), |at| Err(format!("byte {at} is {}, may be {:?}", found[at], self.bytes[at])))
    }
}

/// A file with what its hooks know of it.
#[derive(Clone, Default)]
struct Tracked {
    identity: u64,
    inode: Inode,
    promise: Rc<Promise>,
    /// It takes part.
    is_adopted: bool,
    needs_sync: bool,
    dirty: Vec<(u64, usize)>,
    /// Its last record.
    last: u64,
}

impl Tracked {
    fn new(identity: u64) -> Self {
        Self { identity, ..Self::default() }
    }

    fn identity(&self) -> Identity {
        Identity { device: 1, inode: self.identity, generation: 7, path: b"/a/file".to_vec() }
    }

    fn sync(&mut self) {
        self.inode.sync();
        Rc::make_mut(&mut self.promise).synced(&self.inode.cached);
        self.dirty.clear();
        self.needs_sync = false;
    }

    /// What was written to it is in the log.
    fn logged(&mut self) {
        self.dirty.clear();
        let cached = self.inode.cached.clone();
        Rc::make_mut(&mut self.promise).synced(&cached);
    }

    /// It goes on without the log.
    fn leave(&mut self) {
        self.inode.is_marked = false;
        self.is_adopted = false;
        self.sync();
    }
}

#[derive(Clone)]
struct World {
    files: Vec<Tracked>,
    identities: u64,
}

impl Files for World {
    type File = usize;

    fn find(&mut self, file: &Identity, log: u64) -> Found<usize> {
        assert_eq!(log, LOG);
        let is_it = |tracked: &Tracked| tracked.identity() == *file && tracked.inode.is_marked;
        self.files.iter().position(is_it).map_or(Found::Gone, Found::File)
    }

    fn write_at(&mut self, file: &mut usize, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.files[*file].inode.write(offset as usize, bytes);
        Ok(())
    }

    fn sync(&mut self, file: &mut usize) -> Result<(), Errno> {
        self.files[*file].inode.sync();
        Ok(())
    }
}

struct System<'a> {
    disk: &'a Disk,
    log: Log<&'a Disk>,
    /// The log's device has failed.
    is_broken: bool,
    world: World,
}

impl System<'_> {
    /// Whether nothing happens any more.
    const fn is_over(&self) -> bool {
        self.disk.has_lost_power.get()
    }

    fn digest(&mut self) {
        if self.is_broken {
            return;
        }
        let moment: Moment = self.log.moment();
        let oldest = self.log.checkpoint().sequence;
        for file in self.world.files.iter_mut().filter(|file| file.is_adopted && file.last >= oldest) {
            // Nobody is told: the promise is what it was.
            file.inode.sync();
        }
        self.is_broken |= self.log.retire(moment, 0).is_err();
    }

    /// What fsync does.
    fn sync(&mut self, number: usize) {
        let has_records = |system: &Self| system.world.files[number].last >= system.log.checkpoint().sequence;
        if !self.world.files[number].is_adopted {
            // Its records of an earlier time must not count again.
            if has_records(self) {
                self.digest();
            }
            if self.is_over() {
                return;
            }
            let adopts = !self.is_broken && !has_records(self);
            let file = &mut self.world.files[number];
            file.is_adopted = adopts;
            file.inode.is_marked = adopts;
            return file.sync();
        }
        if self.is_broken {
            return self.world.files[number].leave();
        }
        if self.world.files[number].needs_sync && !has_records(self) {
            return self.world.files[number].sync();
        }
        for turn in 0..2 {
            let file = &mut self.world.files[number];
            if file.needs_sync {
                break;
            }
            if file.dirty.is_empty() {
                return;
            }
            match append(&mut self.log, file) {
                Ok(Some(_)) => {
                    if self.log.flush().is_err() {
                        self.is_broken = true;
                        break;
                    }
                    return file.logged();
                }
                Ok(None) if turn == 0 => self.digest(),
                Ok(None) => break,
                Err(_) => {
                    self.is_broken = true;
                    break;
                }
            }
        }
        if !self.is_over() {
            self.world.files[number].leave();
        }
    }

    /// What fsync does in several threads at once.
    fn sync_together(&mut self) {
        let mut waiting = Vec::new();
        for (number, file) in self.world.files.iter_mut().enumerate() {
            if file.is_adopted && !file.needs_sync && !file.dirty.is_empty() && !self.is_broken {
                match append(&mut self.log, file) {
                    Ok(Some(_)) => waiting.push(number),
                    Ok(None) => {}
                    Err(_) => self.is_broken = true,
                }
            }
        }
        self.is_broken |= !self.is_broken && self.log.flush().is_err();
        if self.is_over() {
            return;
        }
        for number in waiting {
            let file = &mut self.world.files[number];
            if self.is_broken {
                file.leave();
            } else {
                file.logged();
            }
        }
    }

    fn step(&mut self, random: &mut Random) {
        let number = random.below(FILES);
        let file = &mut self.world.files[number];
        match random.below(26) {
            24 | 25 => self.sync_together(),
            0..10 => {
                let len = if random.one_in(6) { 1 + random.below(5000) } else { 1 + random.below(300) };
                let is_append = random.one_in(2);
                let offset = if is_append { file.inode.cached.len() } else { random.below(MAX_FILE_BYTES) };
                if offset + len > MAX_FILE_BYTES {
                    return;
                }
                let bytes = vec![random.word() as u8; len];
                let hole = file.inode.cached.len()..offset.max(file.inode.cached.len());
                file.inode.write(offset, &bytes);
                let promise = Rc::make_mut(&mut file.promise);
                promise.written(offset, &bytes);
                // A hole's zeroes are the file's from now on.
                promise.bytes[hole].iter_mut().for_each(|allowed| allowed.push(0));
                file.dirty.push((offset as u64, len));
                if file.dirty.len() > 16 {
                    self.sync(number);
                }
            }
            10..17 => self.sync(number),
            17 | 18 => {
                if let Some(page) = file.inode.dirty.iter().nth(random.below(3)).copied() {
                    file.inode.write_back(page);
                }
            }
            19 => self.digest(),
            20 => {
                self.digest();
                if self.is_over() {
                    return;
                }
                let file = &mut self.world.files[number];
                if self.is_broken && file.is_adopted {
                    file.leave();
                }
                let len = random.below(file.inode.cached.len() + 1);
                file.inode.cached.truncate(len);
                Rc::make_mut(&mut file.promise).truncated(len);
                file.dirty.clear();
                file.needs_sync = true;
            }
            21 => {
                // Removed, and another one made.
                self.world.identities += 1;
                self.world.files[number] = Tracked::new(self.world.identities);
                self.world.files[number].sync();
            }
            // It is synced by another way, and who does so is told.
            _ => file.leave(),
        }
    }
}

/// Appends what was written to a file since the last sync.
fn append(log: &mut Log<&Disk>, file: &mut Tracked) -> Result<Option<u64>, Errno> {
    let cached = &file.inode.cached;
    let fill = |record: &mut [u8]| {
        let mut at = 0;
        for (offset, len) in &file.dirty {
            record[at..at + len].copy_from_slice(&cached[*offset as usize..][..*len]);
            at += len;
        }
        Ok(())
    };
    let sequence = log.append(0, &file.identity(), &file.dirty, fill)?;
    file.last = sequence.unwrap_or(file.last);
    Ok(sequence)
}

fn crash(system: &System<'_>, disk: &Disk, random: &mut Random) -> (Disk, World) {
    let disk = disk.crashed(random);
    let mut world = system.world.clone();
    for file in &mut world.files {
        file.inode = file.inode.crashed(random);
    }
    (disk, world)
}

/// Recovers, sometimes after another loss of power in the middle of it.
fn recover(
    disk: &Disk,
    world: &mut World,
    random: &mut Random,
) -> (Superblock, uncopy_store::layout::Checkpoint) {
    for _ in 0..random.below(3) {
        let mut interrupted = world.clone();
        let recovery = Recovery::open(disk).expect("a log");
        recovery.replay(&mut interrupted).expect("replayed");
        for (file, after) in world.files.iter_mut().zip(&interrupted.files) {
            let mut inode = after.inode.clone();
            // Not all that was written was synced before the power was lost.
            inode.durable.clone_from(&file.inode.durable);
            let pages = (0..=inode.cached.len() / PAGE).filter(|page| page * PAGE < inode.cached.len());
            inode.dirty = pages.collect();
            file.inode = inode.crashed(random);
        }
    }
    let recovery = Recovery::open(disk).expect("a log");
    let (end, done) = recovery.replay(world).expect("replayed");
    assert!(!end.is_damaged && done.unsure.is_empty(), "{end:?} {done:?}");
    let (_, superblock, checkpoint) = recovery.emptied(end, 0);
    (superblock, checkpoint)
}

fn check(world: &World) -> Result<(), String> {
    let check = |file: &Tracked| {
        file.promise.check(&file.inode.cached).map_err(|why| format!("file {}: {why}", file.identity))
    };
    world.files.iter().try_for_each(check)
}

/// A life of a log, with several crashes; how many states were looked at.
fn live(seed: u64) -> usize {
    let mut random = Random(seed);
    let mut disk = Disk::new((RING_OFFSET + RING_BYTES) as usize);
    let superblock =
        Superblock { log: LOG, len_bytes: RING_OFFSET + RING_BYTES, granule_bytes: 512, machine: 1 };
    let files = (0..FILES as u64).map(Tracked::new).collect();
    let mut world = World { files, identities: FILES as u64 };
    let (mut first, mut checkpoint, mut states) = (true, None, 0);
    for _ in 0..4 {
        let log = match checkpoint {
            Some((superblock, checkpoint)) => Log::begin(&disk, superblock, checkpoint),
            None => Log::create(&disk, superblock, 0),
        };
        let mut system =
            System { disk: &disk, log: log.expect("a log"), is_broken: false, world: world.clone() };
        for file in &mut system.world.files {
            // A program that begins anew knows of nothing that it has not synced.
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
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
    };
    let wanted = number("UNCOPY_STORE_STATES", 100_000) as usize;
    let mut seed = number("UNCOPY_STORE_SEED", 1);
    let mut states = 0;
    while states < wanted {
        states += live(seed);
        seed += 1;
    }
    println!("{states} states of {seed} lives");
}

/// A log with records of one length, of which the first `flushed` survived; their places.
fn with_records(disk: &Disk, count: usize, flushed: usize) -> Vec<usize> {
    let superblock =
        Superblock { log: LOG, len_bytes: RING_OFFSET + RING_BYTES, granule_bytes: 512, machine: 1 };
    let mut log = Log::create(disk, superblock, 0).expect("a log");
    add_records(&mut log, count, flushed, b'a')
}

fn add_records(log: &mut Log<&Disk>, count: usize, flushed: usize, byte: u8) -> Vec<usize> {
    let identity = Tracked::new(1).identity();
    let mut places = Vec::new();
    for number in 0..count {
        places.push((RING_OFFSET + log.used_bytes()) as usize);
        let fill = |room: &mut [u8]| {
            room.fill(byte + number as u8);
            Ok(())
        };
        log.append(0, &identity, &[(0, 700)], fill).expect("written").expect("room");
        if number < flushed {
            log.flush().expect("flushed");
        }
    }
    places
}

/// The first byte of each record that is found, and whether the log is damaged.
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
    let places = with_records(&disk, 3, 1);
    // The second was lost, the third was written.
    disk.cached.borrow_mut()[places[1]..places[1] + SECTOR].fill(0);
    assert_eq!(found(&disk), (vec![b'a'], false), "nobody was told that the others survive");
    let recovery = Recovery::open(&disk).expect("a log");
    let end = recovery.each_record(|_, _| Ok(())).expect("read");
    let (_, superblock, checkpoint) = recovery.emptied(end, 0);
    let mut log = Log::begin(&disk, superblock, checkpoint).expect("a log");
    assert_eq!(found(&disk), (vec![], false));
    add_records(&mut log, 1, 1, b'x');
    assert_eq!(found(&disk), (vec![b'x'], false), "the third is of an earlier epoch");
}

#[test]
fn a_record_that_survived_and_is_damaged_is_told_of() {
    let disk = Disk::new((RING_OFFSET + RING_BYTES) as usize);
    let places = with_records(&disk, 3, 3);
    assert_eq!(found(&disk), (vec![b'a', b'b', b'c'], false));
    for at in [places[1], places[1] + 40, places[1] + 600] {
        disk.cached.borrow_mut()[at] ^= 1;
        assert_eq!(found(&disk), (vec![b'a'], true), "byte {at}");
        disk.cached.borrow_mut()[at] ^= 1;
    }
    assert!(!found(&disk).1);
}

#[test]
fn whatever_is_on_the_device_is_read_without_harm() {
    let mut random = Random(77);
    for _ in 0..20_000 {
        let disk = Disk::new((RING_OFFSET + RING_BYTES) as usize);
        let places = with_records(&disk, 3, 2);
        for _ in 0..=random.below(3) {
            let near = [0, 4096, 8192, places[0], places[1], places[2]][random.below(6)];
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
