//! Memory of the service `uncopy net --memory-dir` that records of a mapped log refer to: what arrived from the network
//! is in files of the log's directory already (zIO, OSDI 2022, section 3.3).
//!
//! ```text
//! the service makes a file ──► a record is to refer to it: the keeper gives it a name of the log ──► records
//!                                                          │ log empty: the name goes
//! ```
//!
//! File number N is chunk N + 1. The service reuses no byte that a program holds, nor, after the program's end, while
//! there is a name of its log. So what records refer to survives program, keeper and service.

use crate::log_files::c_path;
use std::path::Path;
use std::sync::OnceLock;
use uncopy_mapped::mapping::{Flushing, Mapping};
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::file;
use uncopy_sys::mem::FileMapping;
use uncopy_sys::memory_file::{self, LogName};
use uncopy_sys::private_directory::PrivateDirectory;

/// Length of a file, bytes: a chunk of shared memory.
pub const FILE_BYTES: usize = 4 << 20;
/// Maximum number of files that a log has referred to since it was empty.
pub const MAX_FILES: usize = 256;

/// File of the service that is mapped.
#[derive(Debug)]
struct ServiceFile {
    inode: u64,
    memory: FileMapping,
    mapping: Mapping,
}

/// Files of the service that a log's records may refer to.
#[derive(Debug)]
pub struct ServiceMemory {
    files: Box<[OnceLock<ServiceFile>]>,
}

impl ServiceMemory {
    /// Returns memory without files.
    #[must_use]
    pub fn new() -> Self {
        Self { files: (0..MAX_FILES).map(|_| OnceLock::new()).collect() }
    }

    /// Maps the files that have a name of a log in a directory. Those that cannot be opened are missing.
    pub fn open_named(&self, directory: &Path, log: u64, is_persistent: bool) {
        let Ok(directory) = open(directory) else { return };
        for name in names_of(&directory, log) {
            let opened = memory_file::open_logged(&directory, &name, FILE_BYTES as u64);
            // A record that refers to a missing file is damaged.
            let _ =
                opened.and_then(|file| self.insert(name.number as usize, &file, name.inode, is_persistent));
        }
    }

    /// Maps a file of [`FILE_BYTES`] as that with a number.
    ///
    /// # Errors
    /// ENOSPC if there is no such number; EEXIST if it is taken; errors of mmap(2).
    pub fn insert(&self, number: usize, file: &OwnFd, inode: u64, is_persistent: bool) -> Result<(), Errno> {
        let slot = self.files.get(number).ok_or(Errno(libc::ENOSPC))?;
        if slot.get().is_some() {
            return Err(Errno::EEXIST);
        }
        let memory = FileMapping::to_read(file.reference(), FILE_BYTES, is_persistent)?;
        let flushing = Flushing::of(is_persistent);
        // SAFETY: the file is mapped readable until `drop`, when nothing uses it any more; `forget` puts private memory in its
        // place. This process uses this mapping through the value only, and logs store nothing in chunks.
        let mapping = unsafe { Mapping::new(memory.address() as *mut u8, FILE_BYTES, flushing) };
        let mapping = mapping.ok_or(Errno::EINVAL)?;
        slot.set(ServiceFile { inode, memory, mapping }).map_err(|_| Errno::EEXIST)
    }

    /// Returns the first number that was never used.
    #[must_use]
    pub fn free_number(&self) -> Option<usize> {
        self.files.iter().position(|file| file.get().is_none())
    }

    /// Returns the number of the file with this inode.
    #[must_use]
    pub fn number_of(&self, inode: u64) -> Option<usize> {
        self.files().find(|(_, file)| file.inode == inode).map(|(number, _)| number)
    }

    /// Gives up all files, which no record refers to: private zeroes take their place.
    ///
    /// # Errors
    /// Errors of mmap(2) and mremap(2).
    pub fn forget(&self) -> Result<(), Errno> {
        self.files().try_for_each(|(_, file)| file.memory.detach(core::iter::empty()))
    }

    fn files(&self) -> impl Iterator<Item = (usize, &ServiceFile)> {
        self.files.iter().enumerate().filter_map(|(number, file)| Some((number, file.get()?)))
    }

    /// Returns the memory of a chunk of records, from 1 on.
    #[must_use]
    pub fn chunk(&self, chunk: u32) -> Option<&Mapping> {
        let number = usize::try_from(chunk).ok()?.checked_sub(1)?;
        self.files.get(number)?.get().map(|file| &file.mapping)
    }
}

impl Drop for ServiceMemory {
    fn drop(&mut self) {
        for (_, file) in self.files() {
            // SAFETY: the file's `Mapping` is lent for as long as the value lives, so nothing uses it any more.
            unsafe { file.memory.unmap() };
        }
    }
}

impl Default for ServiceMemory {
    fn default() -> Self {
        Self::new()
    }
}

fn open(directory: &Path) -> Result<PrivateDirectory, Errno> {
    memory_file::open(&c_path(directory)?)
}

fn names_of(directory: &PrivateDirectory, log: u64) -> Vec<LogName> {
    let names = memory_file::log_names(directory).unwrap_or_default();
    names.into_iter().filter(|name| name.log == log).collect()
}

/// Gives the service's file with this inode a name of a log, durably. Returns the open file.
///
/// # Errors
/// ENOENT if the service has no such file in the log's directory; EPERM if it is not this user's; errors of linkat(2).
pub fn give_name(directory: &Path, name: &LogName) -> Result<OwnFd, Errno> {
    let directory = open(directory)?;
    let file = memory_file::open_makers(&directory, name.inode, FILE_BYTES as u64)?;
    file::link_into(&file, directory.fd(), &name.name())?;
    file::sync(directory.fd())?;
    Ok(file)
}

/// Removes the names of a log whose records refer to no file any more.
pub fn remove_names(directory: &Path, log: u64) {
    // Without the directory there is no log either.
    let Ok(directory) = open(directory) else { return };
    names_of(&directory, log).iter().for_each(|name| directory.remove(&name.name()));
}
