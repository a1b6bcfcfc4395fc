//! Atomic replacement of a file that the user named, in a directory where other users may write.
//!
//! | existing file | action |
//! |---|---|
//! | none, or a regular file | replaced by a new file in one step; hard links keep the old bytes |
//! | a symbolic link of this user or of root | followed, by the same rules |
//! | a symbolic link or FIFO of another user | refused |
//! | a FIFO without a reader | refused, so as not to block |
//! | a FIFO, a terminal, a device | written to |
//!
//! Directories before the last component are trusted. This module allocates memory.

use crate::call::{kernel, syscall};
use crate::descriptor::OwnFd;
use crate::errno::{Errno, check};
use crate::file::{self, Status};
use crate::ids;
use core::ffi::CStr;
use std::ffi::CString;

/// Maximum number of links followed in a row; the kernel's own bound is 40 (`MAXSYMLINKS`).
const MAX_LINKS: usize = 16;
/// Longest target of a link, bytes (`PATH_MAX`).
const MAX_TARGET_BYTES: usize = 4096;
/// `PROC_SUPER_MAGIC` (linux/magic.h). Links in proc lead to open files, which their texts need not name.
const PROC: u32 = 0x9fa0;

/// Reason why a file was not written. `Display` completes a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The kernel refused a call.
    Kernel(Errno),
    /// The name is another user's symbolic link.
    OthersSymlink,
    /// The name is another user's FIFO.
    OthersFifo,
    /// The FIFO has no reader.
    NoReader,
}

impl core::fmt::Display for WriteError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Kernel(errno) => errno.fmt(f),
            Self::OthersSymlink => f.write_str("it is another user's symbolic link"),
            Self::OthersFifo => f.write_str("it is another user's pipe"),
            Self::NoReader => f.write_str("nobody reads from this pipe"),
        }
    }
}

impl From<Errno> for WriteError {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

impl From<WriteError> for std::io::Error {
    fn from(failed: WriteError) -> Self {
        match failed {
            WriteError::Kernel(errno) => errno.into(),
            other => Self::new(std::io::ErrorKind::PermissionDenied, other.to_string()),
        }
    }
}

/// Writes `bytes` to the file that `path` names. A new file gets the permissions `mode`, less the umask.
///
/// # Errors
/// [`WriteError`]; a regular file is unchanged then.
pub fn write(path: &CStr, bytes: &[u8], mode: u32) -> Result<(), WriteError> {
    let mut name = Name::of(None, path)?;
    for _ in 0..MAX_LINKS {
        let Some(found) = name.look_up()? else { return name.replace(bytes, mode) };
        let is_trusted = found.status.user == 0 || found.status.user == ids::effective_user();
        match found.status.mode & libc::S_IFMT {
            libc::S_IFREG => return name.replace(bytes, mode),
            libc::S_IFLNK if !is_trusted => return Err(WriteError::OthersSymlink),
            libc::S_IFLNK => match found.target {
                Some(target) => name = Name::of(Some(name.parent), &target)?,
                None => return name.write_to(bytes, None),
            },
            libc::S_IFIFO if !is_trusted => return Err(WriteError::OthersFifo),
            libc::S_IFDIR => return Err(Errno(libc::EISDIR).into()),
            _ => return name.write_to(bytes, Some(found.status)),
        }
    }
    Err(Errno(libc::ELOOP).into())
}

/// Replaces whatever `path` names by a new file, in one step.
///
/// # Errors
/// Errors of creating, writing and renaming the file; nothing has changed then.
pub fn replace(path: &CStr, bytes: &[u8], mode: u32) -> Result<(), WriteError> {
    Name::of(None, path)?.replace(bytes, mode)
}

/// An existing file under a name.
struct Found {
    status: Status,
    /// Target of a symbolic link; `None` for other files, and for links in proc to open files.
    target: Option<CString>,
}

struct Name {
    parent: OwnFd,
    last: CString,
}

impl Name {
    /// Splits a path into its last component and the directory before it. A relative path begins at
    /// `base`, or at the current directory.
    fn of(base: Option<OwnFd>, path: &CStr) -> Result<Self, Errno> {
        let path = path.to_bytes();
        let (parent, last) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(0) => (&b"/"[..], &path[1..]),
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b"."[..], path),
        };
        if matches!(last, b"" | b"." | b"..") {
            return Err(Errno(if path.is_empty() { libc::ENOENT } else { libc::EISDIR }));
        }
        // Parts of a NUL-terminated string contain no NUL.
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::EINVAL);
        let (parent, flags) = (text(parent)?, libc::O_PATH | libc::O_DIRECTORY);
        let parent = match &base {
            Some(base) => file::open_at(base, &parent, flags, 0)?,
            None => file::open(&parent, flags, 0)?,
        };
        Ok(Self { parent, last: text(last)? })
    }

    /// Finds the file under the name, or `None`. Its descriptor is closed at once, because few may be left.
    fn look_up(&self) -> Result<Option<Found>, Errno> {
        let opened = match file::open_at(&self.parent, &self.last, libc::O_PATH | libc::O_NOFOLLOW, 0) {
            Ok(opened) => opened,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let status = file::status(&opened)?;
        let is_link = status.mode & libc::S_IFMT == libc::S_IFLNK;
        let has_target = is_link && file::file_system(&opened)? != PROC;
        let target = if has_target { Some(target_of(&opened)?) } else { None };
        Ok(Some(Found { status, target }))
    }

    /// Writes a temporary file in the same directory and renames it.
    fn replace(&self, bytes: &[u8], mode: u32) -> Result<(), WriteError> {
        let mut beside = self.last.clone().into_bytes();
        beside.extend_from_slice(format!(".{}.part", std::process::id()).as_bytes());
        let beside = CString::new(beside).map_err(|_| Errno::EINVAL)?;
        // Another user who can write to the directory may have planted a file there.
        file::unlink_at(&self.parent, &beside, 0);
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let made = file::open_at(&self.parent, &beside, flags, mode)?;
        let (parent, from, to) = (&self.parent, beside.as_ptr(), self.last.as_ptr());
        let rename = || {
            // SAFETY: `from` and `to` are NUL-terminated, and renameat(2) only reads them.
            check(unsafe { kernel!(Name, syscall!(libc::SYS_renameat, parent, from, parent, to)) })
        };
        write_all(&made, bytes)
            .and_then(|()| rename())
            .inspect_err(|_| file::unlink_at(parent, &beside, 0))?;
        Ok(())
    }

    /// Writes to the file under the name, which must still be `expected`; without that, to the open
    /// file that a link in proc leads to.
    fn write_to(&self, bytes: &[u8], expected: Option<Status>) -> Result<(), WriteError> {
        let nofollow = if expected.is_some() { libc::O_NOFOLLOW } else { 0 };
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | nofollow;
        let opened = match file::open_at(&self.parent, &self.last, flags, 0) {
            Ok(opened) => opened,
            Err(Errno(libc::ENXIO)) => return Err(WriteError::NoReader),
            Err(errno) => return Err(errno.into()),
        };
        if let Some(expected) = expected {
            let status = file::status(&opened)?;
            if (status.device, status.inode) != (expected.device, expected.inode) {
                // The file was replaced meanwhile.
                return Err(Errno(libc::ESTALE).into());
            }
        }
        // From here on the call may block: it waits for a slow reader.
        let flags = file::flags(&opened)? & !libc::O_NONBLOCK;
        // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
        check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, &opened, libc::F_SETFL, flags)) })?;
        Ok(write_all(&opened, bytes)?)
    }
}

fn target_of(link: &OwnFd) -> Result<CString, Errno> {
    let mut target = vec![0u8; MAX_TARGET_BYTES];
    let (to, room) = (target.as_mut_ptr(), target.len());
    let empty = c"".as_ptr();
    // SAFETY: the path is NUL-terminated, and readlinkat(2) writes at most `room` bytes to `target`.
    let read = unsafe { kernel!(Stat, syscall!(libc::SYS_readlinkat, link, empty, to, room)) };
    target.truncate(check(read)? as usize);
    CString::new(target).map_err(|_| Errno::EINVAL)
}

fn write_all(fd: &OwnFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: write(2) reads `bytes.len()` bytes of `bytes`.
        let put = unsafe { kernel!(Write, syscall!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len())) };
        match check(put) {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(put) => bytes = &bytes[put as usize..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
    use std::path::{Path, PathBuf};

    const OTHER: u32 = 65_534;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("uncopy-write-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("a directory");
            Self(path)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn c(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).expect("no NUL")
    }

    fn put(path: &Path, text: &str) -> Result<(), WriteError> {
        write(&c(path), text.as_bytes(), 0o600)
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).expect("a file")
    }

    #[test]
    fn a_file_is_replaced_and_its_other_names_keep_the_old_one() {
        let scratch = Scratch::new("file");
        let (path, other) = (scratch.path("f"), scratch.path("other"));
        put(&path, "a long first text").expect("made");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o600);
        fs::hard_link(&path, &other).expect("linked");
        put(&path, "second").expect("replaced");
        assert_eq!((read(&path).as_str(), read(&other).as_str()), ("second", "a long first text"));
        assert_eq!(fs::read_dir(&scratch.0).expect("listed").count(), 2, "nothing is left beside");
    }

    #[test]
    fn what_was_planted_beside_is_not_written_to() {
        let scratch = Scratch::new("beside");
        let (path, precious) = (scratch.path("f"), scratch.path("precious"));
        fs::write(&precious, "precious").expect("written");
        let beside = scratch.path(&format!("f.{}.part", std::process::id()));
        symlink(&precious, &beside).expect("planted");
        put(&path, "text").expect("written");
        assert_eq!((read(&path).as_str(), read(&precious).as_str()), ("text", "precious"));
        assert!(path.symlink_metadata().expect("there").is_file() && beside.symlink_metadata().is_err());
        // Unlink does not remove a directory, so the new file cannot be created.
        fs::create_dir(&beside).expect("planted");
        assert_eq!(put(&path, "more"), Err(WriteError::Kernel(Errno::EEXIST)));
        assert_eq!(read(&path), "text");
    }

    #[test]
    fn links_of_this_user_are_followed_also_to_open_files() {
        let scratch = Scratch::new("links");
        let target = scratch.path("target");
        fs::create_dir(scratch.path("d")).expect("made");
        symlink("d/second", scratch.path("first")).expect("a link");
        symlink("../target", scratch.path("d/second")).expect("a link");
        put(&scratch.path("first"), "new").expect("made through two links");
        put(&scratch.path("first"), "old").expect("replaced through them");
        assert_eq!(read(&target), "old");
        let opened = fs::File::options().read(true).write(true).open(&target).expect("opened");
        let number = std::os::fd::AsRawFd::as_raw_fd(&opened);
        symlink(format!("/proc/self/fd/{number}"), scratch.path("magic")).expect("a link");
        fs::remove_file(&target).expect("removed");
        put(&scratch.path("magic"), "XYZ").expect("written to the open file");
        let mut text = [0; 3];
        std::os::unix::fs::FileExt::read_exact_at(&opened, &mut text, 0).expect("there");
        assert_eq!(&text, b"XYZ");
        symlink("circle", scratch.path("circle")).expect("a link");
        assert_eq!(put(&scratch.path("circle"), ""), Err(WriteError::Kernel(Errno(libc::ELOOP))));
        let name = CString::new(format!("{}/", scratch.0.display())).expect("no NUL");
        assert_eq!(write(&name, b"", 0o600), Err(WriteError::Kernel(Errno(libc::EISDIR))));
    }

    #[test]
    fn a_fifo_is_written_to_if_somebody_reads_and_never_waited_for() {
        let scratch = Scratch::new("fifo");
        let path = scratch.path("fifo");
        // SAFETY: the path is NUL-terminated and lives through the call; mkfifo(3) only reads it.
        assert_eq!(unsafe { libc::mkfifo(c(&path).as_ptr(), 0o600) }, 0);
        assert_eq!(put(&path, "text"), Err(WriteError::NoReader));
        // A FIFO opened in both directions does not wait for a writer.
        let mut reader = fs::File::options().read(true).write(true).open(&path).expect("opened");
        put(&path, "text").expect("written");
        let mut text = [0; 4];
        std::io::Read::read_exact(&mut reader, &mut text).expect("it came");
        assert_eq!(&text, b"text");
    }

    #[test]
    fn what_another_user_planted_is_refused() {
        if ids::effective_user() != 0 {
            eprintln!("skipped: what_another_user_planted_is_refused: only root can give files away");
            return;
        }
        let scratch = Scratch::new("others");
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o1777)).expect("ours");
        let (link, fifo, precious) = (scratch.path("l"), scratch.path("p"), scratch.path("precious"));
        fs::write(&precious, "precious").expect("written");
        symlink(&precious, &link).expect("a link");
        lchown(&link, Some(OTHER), Some(OTHER)).expect("given away");
        assert_eq!(put(&link, "text"), Err(WriteError::OthersSymlink));
        // SAFETY: the path is NUL-terminated and lives through the call; mkfifo(3) only reads it.
        assert_eq!(unsafe { libc::mkfifo(c(&fifo).as_ptr(), 0o666) }, 0);
        chown(&fifo, Some(OTHER), Some(OTHER)).expect("given away");
        assert_eq!(put(&fifo, "text"), Err(WriteError::OthersFifo));
        // The first link is root's, the second another user's.
        symlink("l", scratch.path("first")).expect("a link");
        assert_eq!(put(&scratch.path("first"), "text"), Err(WriteError::OthersSymlink));
        assert_eq!(read(&precious), "precious");
        // Another user's regular file is replaced by a new one of ours.
        let theirs = scratch.path("theirs");
        fs::write(&theirs, "theirs").expect("written");
        chown(&theirs, Some(OTHER), Some(OTHER)).expect("given away");
        put(&theirs, "text").expect("replaced");
        assert_eq!(fs::metadata(&theirs).expect("there").uid(), 0);
    }
}
