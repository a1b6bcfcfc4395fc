//! Writing a file that the user named, in a directory where others may have planted something.
//!
//! | what has the name | what is done |
//! |---|---|
//! | nothing, or a regular file | a new file takes its place in one step: no reader finds half of it, and other names of the old file keep it |
//! | a symbolic link of this user's or of root's | followed, by these same rules |
//! | another user's link or FIFO | refused |
//! | a FIFO that nobody reads | refused: nobody is waited for |
//! | a FIFO, a terminal, a device | written to |
//!
//! Directories in front of the last name are the user's to choose. The memory that this takes is allocated.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::file::{self, Status};
use crate::ids;
use core::ffi::CStr;
use std::ffi::CString;

/// Links that are followed one after the other; the kernel's own bound is 40 (`MAXSYMLINKS`).
const MAX_LINKS: usize = 16;
/// Longest target of a link, bytes (`PATH_MAX`).
const MAX_TARGET_BYTES: usize = 4096;
/// `PROC_SUPER_MAGIC` (linux/magic.h): its links lead to open files, which their texts need not name.
const PROC: u32 = 0x9fa0;

/// Why a file was not written. `Display` is part of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The kernel refused a call.
    Kernel(Errno),
    /// The name is another user's symbolic link.
    OthersLink,
    /// The name is another user's FIFO.
    OthersFifo,
    /// Nobody reads from the FIFO.
    NoReader,
}

impl core::fmt::Display for Failed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Kernel(errno) => errno.fmt(f),
            Self::OthersLink => f.write_str("it is another user's symbolic link"),
            Self::OthersFifo => f.write_str("it is another user's pipe"),
            Self::NoReader => f.write_str("nobody reads from this pipe"),
        }
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

impl From<Failed> for std::io::Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Kernel(errno) => errno.into(),
            other => Self::new(std::io::ErrorKind::PermissionDenied, other.to_string()),
        }
    }
}

/// Writes `bytes` to what `path` names. A file that is made has these permissions, less the umask.
///
/// # Errors
/// Why it was not written. What was a regular file is then as it was.
pub fn write(path: &CStr, bytes: &[u8], mode: u32) -> Result<(), Failed> {
    let mut name = Name::of(None, path)?;
    for _ in 0..MAX_LINKS {
        let Some(found) = name.look_up()? else { return name.replace(bytes, mode) };
        let is_trusted = found.status.user == 0 || found.status.user == ids::effective_user();
        match found.status.mode & libc::S_IFMT {
            libc::S_IFREG => return name.replace(bytes, mode),
            libc::S_IFLNK if !is_trusted => return Err(Failed::OthersLink),
            libc::S_IFLNK => match found.target {
                Some(target) => name = Name::of(Some(name.parent), &target)?,
                None => return name.write_to(bytes, None),
            },
            libc::S_IFIFO if !is_trusted => return Err(Failed::OthersFifo),
            libc::S_IFDIR => return Err(Errno(libc::EISDIR).into()),
            _ => return name.write_to(bytes, Some(found.status)),
        }
    }
    Err(Errno(libc::ELOOP).into())
}

/// Puts a new file in the place of `path`, whatever that is, in one step.
///
/// # Errors
/// What making, writing and renaming it say; nothing has changed then.
pub fn replace(path: &CStr, bytes: &[u8], mode: u32) -> Result<(), Failed> {
    Name::of(None, path)?.replace(bytes, mode)
}

/// A descriptor of ours, closed when dropped.
struct Opened(i32);

impl Drop for Opened {
    fn drop(&mut self) {
        file::close(self.0);
    }
}

/// What has a name.
struct Found {
    status: Status,
    /// The text of a symbolic link; `None` if it is no link, or one that leads to an open file.
    target: Option<CString>,
}

/// A name in an open directory.
struct Name {
    parent: Opened,
    last: CString,
}

impl Name {
    /// The last name of a path, and the directory that it lies in. A relative path begins at `base`, or where the process is.
    fn of(base: Option<Opened>, path: &CStr) -> Result<Self, Errno> {
        let path = path.to_bytes();
        let (parent, last) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(0) => (&b"/"[..], &path[1..]),
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b"."[..], path),
        };
        if matches!(last, b"" | b"." | b"..") {
            return Err(Errno(if path.is_empty() { libc::ENOENT } else { libc::EISDIR }));
        }
        // Parts of a terminated string have no zero byte.
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::EINVAL);
        let base = base.as_ref().map_or(libc::AT_FDCWD, |base| base.0);
        let parent = file::open_at(base, &text(parent)?, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        Ok(Self { parent: Opened(parent), last: text(last)? })
    }

    /// What has the name; `None`: nothing. The descriptor for it is closed again: few may be left.
    fn look_up(&self) -> Result<Option<Found>, Errno> {
        let opened = match file::open_at(self.parent.0, &self.last, libc::O_PATH | libc::O_NOFOLLOW, 0) {
            Ok(fd) => Opened(fd),
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let status = file::status(opened.0)?;
        let is_link = status.mode & libc::S_IFMT == libc::S_IFLNK;
        let has_target = is_link && file::file_system(opened.0)? != PROC;
        let target = if has_target { Some(target_of(&opened)?) } else { None };
        Ok(Some(Found { status, target }))
    }

    /// Writes a file beside, and gives it the name.
    fn replace(&self, bytes: &[u8], mode: u32) -> Result<(), Failed> {
        let mut beside = self.last.clone().into_bytes();
        beside.extend_from_slice(format!(".{}.part", std::process::id()).as_bytes());
        let beside = CString::new(beside).map_err(|_| Errno::EINVAL)?;
        // Whoever can write in the directory may have put something there.
        file::unlink_at(self.parent.0, &beside, 0);
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let made = Opened(file::open_at(self.parent.0, &beside, flags, mode)?);
        let (parent, from, to) = (self.parent.0, beside.as_ptr(), self.last.as_ptr());
        let rename = || {
            // SAFETY: terminated names.
            check(unsafe { kernel!(Name, syscall!(libc::SYS_renameat, parent, from, parent, to)) })
        };
        write_all(made.0, bytes)
            .and_then(|()| rename())
            .inspect_err(|_| file::unlink_at(parent, &beside, 0))?;
        Ok(())
    }

    /// Writes to what has the name, and is `expected` or, without that, whatever an open file of this process is.
    fn write_to(&self, bytes: &[u8], expected: Option<Status>) -> Result<(), Failed> {
        let nofollow = if expected.is_some() { libc::O_NOFOLLOW } else { 0 };
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | nofollow;
        let opened = match file::open_at(self.parent.0, &self.last, flags, 0) {
            Ok(fd) => Opened(fd),
            Err(Errno(libc::ENXIO)) => return Err(Failed::NoReader),
            Err(errno) => return Err(errno.into()),
        };
        if let Some(expected) = expected {
            let status = file::status(opened.0)?;
            if (status.device, status.inode) != (expected.device, expected.inode) {
                // Somebody put something else there meanwhile.
                return Err(Errno(libc::ESTALE).into());
            }
        }
        // From here on it is a stream like any other: a reader that is slow is waited for.
        let flags = file::flags(opened.0)? & !libc::O_NONBLOCK;
        // SAFETY: touches no memory.
        check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, opened.0, libc::F_SETFL, flags)) })?;
        Ok(write_all(opened.0, bytes)?)
    }
}

/// The text of a symbolic link.
fn target_of(link: &Opened) -> Result<CString, Errno> {
    let mut target = vec![0u8; MAX_TARGET_BYTES];
    let (to, room) = (target.as_mut_ptr(), target.len());
    let empty = c"".as_ptr();
    // SAFETY: a terminated path, and room for as many bytes as is said.
    let read = unsafe { kernel!(Stat, syscall!(libc::SYS_readlinkat, link.0, empty, to, room)) };
    target.truncate(check(read)? as usize);
    CString::new(target).map_err(|_| Errno::EINVAL)
}

fn write_all(fd: i32, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: as many bytes as is said.
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

    fn put(path: &Path, text: &str) -> Result<(), Failed> {
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
        // A directory cannot be removed so, and nothing is written then.
        fs::create_dir(&beside).expect("planted");
        assert_eq!(put(&path, "more"), Err(Failed::Kernel(Errno::EEXIST)));
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
        assert_eq!(put(&scratch.path("circle"), ""), Err(Failed::Kernel(Errno(libc::ELOOP))));
        let name = CString::new(format!("{}/", scratch.0.display())).expect("no NUL");
        assert_eq!(write(&name, b"", 0o600), Err(Failed::Kernel(Errno(libc::EISDIR))));
    }

    #[test]
    fn a_fifo_is_written_to_if_somebody_reads_and_never_waited_for() {
        let scratch = Scratch::new("fifo");
        let path = scratch.path("fifo");
        // SAFETY: a terminated path.
        assert_eq!(unsafe { libc::mkfifo(c(&path).as_ptr(), 0o600) }, 0);
        assert_eq!(put(&path, "text"), Err(Failed::NoReader));
        // It can be opened for both without a writer.
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
        assert_eq!(put(&link, "text"), Err(Failed::OthersLink));
        // SAFETY: a terminated path.
        assert_eq!(unsafe { libc::mkfifo(c(&fifo).as_ptr(), 0o666) }, 0);
        chown(&fifo, Some(OTHER), Some(OTHER)).expect("given away");
        assert_eq!(put(&fifo, "text"), Err(Failed::OthersFifo));
        // One link that is root's, and then one that is not.
        symlink("l", scratch.path("first")).expect("a link");
        assert_eq!(put(&scratch.path("first"), "text"), Err(Failed::OthersLink));
        assert_eq!(read(&precious), "precious");
        // A file of the other's is replaced by one of ours.
        let theirs = scratch.path("theirs");
        fs::write(&theirs, "theirs").expect("written");
        chown(&theirs, Some(OTHER), Some(OTHER)).expect("given away");
        put(&theirs, "text").expect("replaced");
        assert_eq!(fs::metadata(&theirs).expect("there").uid(), 0);
    }
}
