//! A simulated program with its files, its hooks and its log.

use std::rc::Rc;

use uncopy_store::capture::Capture;
use uncopy_store::layout::Identity;
use uncopy_store::log::{Checkpoints, Log};
use uncopy_store::recovery::{FileLookup, Files};
use uncopy_store::state::State;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;

use crate::disk::{Disk, Random};
use crate::files::{Inode, Promise};

const MAX_FILE_BYTES: usize = 20_000;
pub const FILES: usize = 3;
pub const LOG: u64 = 0x6c6f67;

/// A file and the state of its hooks.
#[derive(Clone, Default)]
pub struct Tracked {
    pub identity: u64,
    pub inode: Inode,
    pub promise: Rc<Promise>,
    pub is_adopted: bool,
    pub needs_sync: bool,
    pub dirty: Vec<(u64, usize)>,
    pub last: u64,
}

impl Tracked {
    pub fn new(identity: u64) -> Self {
        Self { identity, ..Self::default() }
    }

    pub fn identity(&self) -> Identity {
        Identity { device: 1, inode: self.identity, generation: 7, path: b"/a/file".to_vec() }
    }

    pub fn sync(&mut self) {
        self.inode.sync();
        Rc::make_mut(&mut self.promise).synced(&self.inode.cached);
        self.dirty.clear();
        self.needs_sync = false;
    }

    pub fn logged(&mut self) {
        self.dirty.clear();
        let cached = self.inode.cached.clone();
        Rc::make_mut(&mut self.promise).synced(&cached);
    }

    pub fn leave(&mut self) {
        self.inode.is_marked = false;
        self.is_adopted = false;
        self.sync();
    }
}

#[derive(Clone)]
pub struct World {
    pub files: Vec<Tracked>,
    pub identities: u64,
}

impl Files for World {
    type File = usize;

    fn find(&mut self, file: &Identity, log: u64) -> FileLookup<usize> {
        assert_eq!(log, LOG);
        let is_it = |tracked: &Tracked| tracked.identity() == *file && tracked.inode.is_marked;
        self.files.iter().position(is_it).map_or(FileLookup::Gone, FileLookup::File)
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

pub struct System<'a> {
    pub disk: &'a Disk,
    pub log: Log<'a, &'a Disk>,
    pub checkpoints: Checkpoints<'a, &'a Disk>,
    pub state: &'a State,
    /// Whether the log's device has failed.
    pub is_broken: bool,
    pub world: World,
}

impl System<'_> {
    /// Returns whether the power was lost.
    pub const fn is_over(&self) -> bool {
        self.disk.has_lost_power.get()
    }

    pub fn digest(&mut self) {
        if self.is_broken {
            return;
        }
        let moment = self.state.moment().expect("nobody changes it");
        let oldest = self.checkpoints.checkpoint().sequence;
        for file in self.world.files.iter_mut().filter(|file| file.is_adopted && file.last >= oldest) {
            // The program is not told of this sync, so the promise is unchanged.
            file.inode.sync();
        }
        self.is_broken |= self.checkpoints.retire(moment, 0).is_err();
    }

    pub fn sync(&mut self, number: usize) {
        let has_records =
            |system: &Self| system.world.files[number].last >= system.checkpoints.checkpoint().sequence;
        if !self.world.files[number].is_adopted {
            // Old records of the file must not be replayed over newer bytes.
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
            match append(&self.log, file) {
                Ok(Some(sequence)) => {
                    if self.log.flush(sequence).is_err() {
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

    /// Simulates concurrent fsync(2) calls of several threads.
    pub fn sync_together(&mut self) {
        let (mut waiting, mut last) = (Vec::new(), 0);
        for (number, file) in self.world.files.iter_mut().enumerate() {
            if file.is_adopted && !file.needs_sync && !file.dirty.is_empty() && !self.is_broken {
                match append(&self.log, file) {
                    Ok(Some(sequence)) => {
                        last = sequence;
                        waiting.push(number);
                    }
                    Ok(None) => {}
                    Err(_) => self.is_broken = true,
                }
            }
        }
        self.is_broken |= !self.is_broken && !waiting.is_empty() && self.log.flush(last).is_err();
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

    pub fn step(&mut self, random: &mut Random) {
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
                // The zeroes of a hole are part of the file from now on.
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
                // The file is removed, and another one made.
                self.world.identities += 1;
                self.world.files[number] = Tracked::new(self.world.identities);
                self.world.files[number].sync();
            }
            // The file is synced by other means, with the program's knowledge.
            _ => file.leave(),
        }
    }
}

pub fn add(written: &mut Capture, offset: u64, bytes: &[u8]) {
    let part = Part { address: bytes.as_ptr() as usize, len_bytes: bytes.len() };
    // SAFETY: `part` is the borrowed slice `bytes`, all of which can be read.
    unsafe { written.add(offset, &[part], bytes.len()) };
}

/// Appends a file's writes since its last sync to the log.
pub fn append(log: &Log<'_, &Disk>, file: &mut Tracked) -> Result<Option<u64>, Errno> {
    let mut written = Capture::NONE;
    for (offset, len_bytes) in &file.dirty {
        add(&mut written, *offset, &file.inode.cached[*offset as usize..][..*len_bytes]);
    }
    let sequence = log.append(0, &file.identity(), &mut written)?;
    file.last = sequence.unwrap_or(file.last);
    Ok(sequence)
}

pub fn crash(system: &System<'_>, disk: &Disk, random: &mut Random) -> (Disk, World) {
    let disk = disk.crashed(random);
    let mut world = system.world.clone();
    for file in &mut world.files {
        file.inode = file.inode.crashed(random);
    }
    (disk, world)
}
