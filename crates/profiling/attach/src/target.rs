//! Files of a sampled process, opened without trusting it.
//!
//! The process chooses its root directory, its working directory, the names of its files and what lies under
//! these names by now. A path is therefore resolved inside the process's own root, never through links of
//! `/proc`, and counts only if it leads to the regular file that the kernel says is mapped. Files are read with
//! read(2), because a process can truncate a file that is mapped here, and the next access would be SIGBUS.

use crate::maps::{FileId, MAX_MAPS_BYTES, Mapping};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Suffix that the kernel adds to the path of a file without a name.
const DELETED: &[u8] = b" (deleted)";
/// Maximum bytes of a symbol file that a just-in-time compiler wrote.
const MAX_PERF_MAP_BYTES: u64 = 64 << 20;

/// Reads at most `max_bytes` of a file below `/proc`.
///
/// # Errors
/// Those of open(2) and read(2).
pub fn read_proc(pid: u32, name: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    File::open(format!("/proc/{pid}/{name}"))?.take(max_bytes).read_to_end(&mut data)?;
    Ok(data)
}

/// Reads the mappings of a process.
///
/// # Errors
/// EACCES if this user may not inspect the process, ESRCH or ENOENT if it has ended.
pub fn read_maps(pid: u32) -> io::Result<Vec<u8>> {
    read_proc(pid, "maps", MAX_MAPS_BYTES)
}

/// Opens the file behind a mapping. Returns `None` if that cannot be done, or another file has its name.
pub fn open_mapped(pid: u32, mapping: &Mapping) -> Option<File> {
    // A link to the mapped file itself, also if it has no name any more; only for root.
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(found) = rustix::fs::openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        && let Some(file) = reopen(&found, mapping.file)
    {
        return Some(file);
    }
    if mapping.name.ends_with(DELETED) {
        return None;
    }
    reopen(&find_in_root(pid, &mapping.name)?, mapping.file)
}

/// Finds a path in the root directory of a process.
fn find_in_root(pid: u32, path: &[u8]) -> Option<OwnedFd> {
    let path = path.strip_prefix(b"/")?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?;
    let path = Path::new(OsStr::from_bytes(path));
    // openat2(2) is of Linux 5.6.
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).ok()
}

/// Opens a found file for reading, if it is a regular file with this identity.
fn reopen(found: &OwnedFd, id: FileId) -> Option<File> {
    let state = rustix::fs::fstat(found).ok()?;
    // The devices differ on file systems with subvolumes and on overlays; the inodes do not.
    if FileType::from_raw_mode(state.st_mode) != FileType::RegularFile || state.st_ino != id.inode {
        return None;
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()
}

/// Reads the symbols that a just-in-time compiler wrote to `/tmp/perf-PID.map`, if the file belongs to the
/// process's user.
pub fn read_perf_map(pid: u32) -> Option<Vec<u8>> {
    let status = read_proc(pid, "status", 64 << 10).ok()?;
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // The last number is the pid in the process's own namespace.
    let own_pid: u32 = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
    let user: u32 = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    let found = find_in_root(pid, format!("/tmp/perf-{own_pid}.map").as_bytes())?;
    let state = rustix::fs::fstat(&found).ok()?;
    if state.st_uid != user {
        return None;
    }
    let id = FileId { inode: state.st_ino, ..FileId::default() };
    let mut data = Vec::new();
    reopen(&found, id)?.take(MAX_PERF_MAP_BYTES).read_to_end(&mut data).ok()?;
    Some(data)
}

/// Memory of a process, for reading.
pub struct Memory(File);

impl Memory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// EACCES if this user may not inspect the process.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }

    /// Fills `buffer` from `address` on; returns whether that was possible.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        // The offset of pread(2) is signed, and addresses of user code are not negative.
        i64::try_from(address).is_ok() && self.0.read_exact_at(buffer, address).is_ok()
    }

    /// Reads the word at `address`.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

/// Returns the user that owns a process, `None` if it has ended.
pub fn owner(pid: u32) -> Option<u32> {
    // The effective user also of a process whose memory may not be read, whose other files belong to root.
    let status = read_proc(pid, "status", 64 << 10).ok()?;
    let status = String::from_utf8_lossy(&status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the ids of a process's threads.
///
/// # Errors
/// If the process has ended.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let mut threads: Vec<u32> = std::fs::read_dir(format!("/proc/{pid}/task"))?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    threads.sort_unstable();
    if threads.is_empty() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(threads) }
}

/// Returns the name of a process, without control characters; empty if it has ended.
pub fn name(pid: u32) -> String {
    let name = read_proc(pid, "comm", 64).unwrap_or_default();
    clean_name(name.strip_suffix(b"\n").unwrap_or(&name))
}

/// Returns the command line of a process, without control characters; empty if it has none.
pub fn command_line(pid: u32) -> Vec<String> {
    /// Maximum bytes of a command line that are read; longer ones are of no use to people.
    const MAX_BYTES: u64 = 4096;
    let bytes = read_proc(pid, "cmdline", MAX_BYTES).unwrap_or_default();
    bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(clean_name).collect()
}

/// Returns the last component of a path.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Replaces the control characters of a name.
pub fn clean_name(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

/// Whether this process may inspect another: read its memory and mappings (PTRACE_MODE_READ).
pub fn may_inspect(pid: u32) -> bool {
    // An empty file is that of a kernel thread, which has no memory.
    rustix::fs::accessat(CWD, format!("/proc/{pid}/maps"), rustix::fs::Access::READ_OK, AtFlags::EACCESS)
        .is_ok()
        && read_proc(pid, "maps", 1).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::AddressSpace;
    use std::os::unix::fs::MetadataExt as _;

    fn own_mapping() -> Mapping {
        let space = AddressSpace::parse(&read_maps(std::process::id()).expect("own maps"));
        let here = own_mapping as fn() -> Mapping as usize as u64;
        space.find(here).expect("this code is mapped").clone()
    }

    #[test]
    fn the_program_of_this_process_is_found_also_by_its_name() {
        let pid = std::process::id();
        let mapping = own_mapping();
        let program = std::fs::metadata("/proc/self/exe").expect("a program").ino();
        let by_link = open_mapped(pid, &mapping).expect("opened");
        assert_eq!(by_link.metadata().expect("a file").ino(), program);
        // Without a link in map_files.
        let by_name = Mapping { start: 1, end: 2, ..mapping.clone() };
        let by_name = open_mapped(pid, &by_name).expect("opened");
        assert_eq!(by_name.metadata().expect("a file").ino(), program);
        let other = FileId { inode: mapping.file.inode + 1, ..mapping.file };
        assert!(open_mapped(pid, &Mapping { start: 1, end: 2, file: other, ..mapping }).is_none());
    }

    #[test]
    fn devices_directories_and_names_without_a_file_are_not_opened() {
        let pid = std::process::id();
        for name in ["/dev/zero", "/proc/self/exe", "/", "", "[vdso]", "/nonexistent", "//../..//dev/null"] {
            let inode = std::fs::metadata(name).map_or(1, |found| found.ino());
            let file = FileId { inode, ..FileId::default() };
            let mapping = Mapping { start: 1, end: 2, offset: 0, file, name: name.as_bytes().into() };
            assert!(open_mapped(pid, &mapping).is_none(), "{name}");
        }
    }

    #[test]
    fn memory_and_threads_of_this_process() {
        let value = 0x0123_4567_89AB_CDEF_u64;
        let memory = Memory::open(std::process::id()).expect("own memory");
        assert_eq!(memory.word((&raw const value).addr() as u64), Some(value));
        assert_eq!(memory.word(8), None);
        assert_eq!(memory.word(u64::MAX - 8), None);
        assert!(threads(std::process::id()).expect("threads").contains(&std::process::id()));
        assert!(may_inspect(std::process::id()) && owner(std::process::id()).is_some());
    }
}
