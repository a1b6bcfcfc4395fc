//! Files of shared memory, to which the records of logs can refer: `uncopy net --memory-dir`.
//!
//! ```text
//! DIR/INODE.memory                     its maker's name for it, while the maker lives (locked)
//! DIR/INODE-HOLDER-LOG-NUMBER.memory   name that a log gives it: records of HOLDER may refer to it
//! ```
//!
//! The directory is private to its owner. What a holder held when it ended must not change while a name of that holder
//! is left. Numbers are hexadecimal.

use crate::descriptor::{Descriptor, OwnFd};
use crate::errno::Errno;
use crate::private_directory::{FILE_MODE, FileKind, PrivateDirectory, judge_linked};
use crate::{file, file_lock, ids};
use core::ffi::CStr;
use std::ffi::CString;

const SUFFIX: &str = ".memory";

/// A new file, which is locked for as long as this value lives.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// The file, open for reading and writing.
    pub locked: OwnFd,
    /// The file, open for reading: for others.
    pub readable: OwnFd,
    /// Number of the inode, which names the file.
    pub inode: u64,
}

/// Name by which a log keeps a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogName {
    /// Inode of the file.
    pub inode: u64,
    /// Id of the process whose records refer to the file (its lanes' id).
    pub holder: u64,
    /// Identifier of the log.
    pub log: u64,
    /// Number of the file in the log.
    pub number: u32,
}

impl LogName {
    /// Returns the name in the directory.
    #[must_use]
    pub fn name(&self) -> CString {
        let Self { inode, holder, log, number } = self;
        c_name(format!("{inode:016x}-{holder:016x}-{log:016x}-{number:x}{SUFFIX}"))
    }

    /// Parses a name; `None`: a log has not given it.
    #[must_use]
    pub fn parse(name: &CStr) -> Option<Self> {
        let mut words = name.to_str().ok()?.strip_suffix(SUFFIX)?.split('-');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let parsed =
            Self { inode: number()?, holder: number()?, log: number()?, number: number()?.try_into().ok()? };
        (parsed.name().as_c_str() == name).then_some(parsed)
    }
}

fn c_name(name: String) -> CString {
    // Digits, minus signs and the suffix: no NUL.
    CString::new(name).unwrap_or_default()
}

/// Returns the name that the maker of a file has given it.
#[must_use]
pub fn makers_name(inode: u64) -> CString {
    c_name(format!("{inode:016x}{SUFFIX}"))
}

/// Creates a file of `len_bytes` allocated zeroes in a directory that only this user can enter.
///
/// # Errors
/// EPERM or ENOTDIR if the directory is not like that; EOPNOTSUPP if it cannot have unnamed files; errors of the
/// file system, ENOSPC among them.
pub fn create(directory: &CStr, len_bytes: u64) -> Result<MemoryFile, Errno> {
    let directory = open(directory)?;
    let flags = libc::O_RDWR | libc::O_TMPFILE;
    let locked = file::open_at(directory.fd(), c".", flags, FILE_MODE)?;
    // Allocated, because a store to a page without room on the file system would be SIGBUS.
    file::allocate(&locked, len_bytes)?;
    file_lock::lock_exclusive(&locked)?;
    let inode = file::status(&locked)?.inode;
    let readable = file::reopen(&locked, libc::O_RDONLY)?;
    file::link_into(&locked, directory.fd(), &makers_name(inode))?;
    Ok(MemoryFile { locked, readable, inode })
}

/// Removes the maker's name of a file.
pub fn remove(directory: &CStr, inode: u64) {
    if let Ok(directory) = open(directory) {
        directory.remove(&makers_name(inode));
    }
}

/// Opens the file whose maker has given it this inode's name, of `len_bytes`, for reading.
///
/// # Errors
/// ENOENT if there is none; EPERM if it is not a file of this user of that length; errors of openat(2).
pub fn open_makers(directory: &PrivateDirectory, inode: u64, len_bytes: u64) -> Result<OwnFd, Errno> {
    open_checked(directory, &makers_name(inode), inode, len_bytes)
}

/// Opens a file by the name that a log has given it. See [`open_makers`].
///
/// # Errors
/// Those of [`open_makers`].
pub fn open_logged(directory: &PrivateDirectory, name: &LogName, len_bytes: u64) -> Result<OwnFd, Errno> {
    open_checked(directory, &name.name(), name.inode, len_bytes)
}

fn open_checked(
    directory: &PrivateDirectory,
    name: &CStr,
    inode: u64,
    len_bytes: u64,
) -> Result<OwnFd, Errno> {
    let opened = directory.open_file_linked(name, FileKind::File, libc::O_RDONLY)?;
    let status = file::status(&opened)?;
    let is_it = status.inode == inode && status.len_bytes == len_bytes;
    if is_it { Ok(opened) } else { Err(Errno::EPERM) }
}

/// Whether an open file of another process is one that [`create`] makes: a regular file of this user, of `len_bytes`,
/// to which no other user can write.
///
/// # Errors
/// EPERM if it is not; errors of fstat(2).
pub fn check(fd: impl Descriptor, len_bytes: u64) -> Result<u64, Errno> {
    let status = file::status(fd)?;
    judge_linked(&status, FileKind::File, |user| user == ids::effective_user())?;
    if status.len_bytes == len_bytes { Ok(status.inode) } else { Err(Errno::EPERM) }
}

/// Opens a directory that only this user can enter.
///
/// # Errors
/// EPERM or ENOTDIR if it is not like that; errors of openat(2).
pub fn open(directory: &CStr) -> Result<PrivateDirectory, Errno> {
    Ok(PrivateDirectory::open(directory, ids::effective_user())?)
}

/// Returns the names that logs have given to files of a directory.
///
/// # Errors
/// Errors of reading the directory.
pub fn log_names(directory: &PrivateDirectory) -> Result<Vec<LogName>, Errno> {
    let mut found = Vec::new();
    directory.each_name(|name| found.extend(LogName::parse(name)))?;
    Ok(found)
}

/// Removes the names of makers that have ended. Returns how many.
///
/// # Errors
/// Errors of opening and reading the directory.
pub fn remove_stale(directory: &CStr) -> Result<usize, Errno> {
    let directory = open(directory)?;
    let mut names = Vec::new();
    directory.each_name(|name| {
        let text = name.to_str().ok().and_then(|name| name.strip_suffix(SUFFIX));
        if let Some(inode) = text.and_then(|text| u64::from_str_radix(text, 16).ok())
            && makers_name(inode).as_c_str() == name
        {
            names.push(makers_name(inode));
        }
    })?;
    let mut removed = 0;
    for name in names {
        let is_stale = directory
            .open_file_linked(&name, FileKind::File, libc::O_RDONLY)
            .is_ok_and(|opened| file_lock::lock_exclusive(&opened).is_ok());
        if is_stale {
            directory.remove(&name);
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    const LEN_BYTES: u64 = 8192;

    struct Scratch(CString);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::path::Path::new("/dev/shm").join(format!("uncopy-memory-{name}-{}", std::process::id()));
            let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
            drop(PrivateDirectory::make(&path).expect("made"));
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.to_str().expect("UTF-8"));
        }
    }

    #[test]
    fn names_of_logs_are_parsed_again_and_others_are_not() {
        let name = LogName { inode: 77, holder: u64::MAX, log: 5, number: 300 };
        assert_eq!(LogName::parse(&name.name()), Some(name));
        assert_eq!(LogName::parse(&makers_name(77)), None);
        for other in [c"4d-5-6-1.memory", c"x.memory", c"-.memory", c""] {
            assert_eq!(LogName::parse(other), None);
        }
    }

    #[test]
    fn a_file_is_stale_once_its_maker_is_gone_and_a_name_of_a_log_never_is() {
        let scratch = Scratch::new("stale");
        let [living, ended] = [(); 2].map(|()| create(&scratch.0, LEN_BYTES).expect("made"));
        let directory = open(&scratch.0).expect("opened");
        let name = LogName { inode: ended.inode, holder: 1, log: 2, number: 3 };
        file::link_into(&ended.locked, directory.fd(), &name.name()).expect("linked");
        let inode = ended.inode;
        drop(ended);
        assert_eq!(remove_stale(&scratch.0), Ok(1));
        assert!(open_makers(&directory, living.inode, LEN_BYTES).is_ok());
        assert!(open_makers(&directory, living.inode, LEN_BYTES + 1).is_err());
        assert_eq!(open_makers(&directory, inode, LEN_BYTES).err(), Some(Errno::ENOENT));
        assert_eq!(log_names(&directory), Ok(vec![name]));
        assert!(open_logged(&directory, &name, LEN_BYTES).is_ok());
        let another = LogName { inode: living.inode, ..name };
        assert_eq!(open_logged(&directory, &another, LEN_BYTES).err(), Some(Errno::ENOENT));
    }

    #[test]
    fn others_cannot_write_to_what_they_are_given() {
        let scratch = Scratch::new("given");
        let made = create(&scratch.0, LEN_BYTES).expect("made");
        assert_eq!(check(&made.readable, LEN_BYTES), Ok(made.inode));
        assert!(file::write_at(&made.readable, 0, b"x").is_err());
        assert!(check(&made.readable, LEN_BYTES - 1).is_err());
        std::fs::write(std::path::Path::new(scratch.0.to_str().expect("UTF-8")).join("other"), "x")
            .expect("written");
        let other =
            open(&scratch.0).and_then(|directory| file::open_at(directory.fd(), c"other", libc::O_RDONLY, 0));
        assert!(check(&other.expect("opened"), 1).is_err(), "others could read it");
    }
}
