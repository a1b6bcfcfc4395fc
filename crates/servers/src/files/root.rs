//! The directory that is served. A path is resolved below it by the kernel itself (openat2, Linux 5.6, with
//! RESOLVE_BENEATH): neither `..` nor a symbolic link, nor one that is put there meanwhile, leads out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;

use crate::files::status::Status;
use crate::files::target::Target;

/// Tries of a lookup that a rename elsewhere disturbs (openat2 says EAGAIN then).
const ATTEMPTS: usize = 8;

/// A directory, held open.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    index: PathBuf,
    /// Whether names that begin with a dot are served.
    hidden: bool,
}

/// What a target stands for.
#[derive(Debug)]
pub enum Found {
    /// A regular file.
    File(Opened),
    /// A directory, asked for without its slash.
    Elsewhere,
}

/// A regular file.
#[derive(Debug)]
pub struct Opened {
    /// Open for reading.
    pub file: File,
    /// What it was when it was opened.
    pub stat: Stat,
    /// Its path below the root, for its ending.
    pub path: Vec<u8>,
}

impl Root {
    /// Opens `path`; `index` is the name of the file that is served for a directory.
    ///
    /// # Errors
    /// The kernel's: no such directory, no permission, or no openat2.
    pub fn open(path: &Path, index: PathBuf, hidden: bool) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Self { directory: open(path, flags, Mode::empty())?, index, hidden };
        root.beneath(b".", OFlags::PATH)?;
        Ok(root)
    }

    /// What `target` stands for.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn find(&self, target: &Target) -> Result<Found, Status> {
        if target.is_hidden() && !self.hidden {
            return Err(Status::NotFound);
        }
        let path = if target.path.is_empty() { &b"."[..] } else { &target.path };
        let (file, stat) = self.look(path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if target.is_directory => Err(Status::NotFound),
            FileType::RegularFile => Ok(Found::File(Opened { file, stat, path: target.path.clone() })),
            FileType::Directory if !target.is_directory => Ok(Found::Elsewhere),
            FileType::Directory => {
                let path = [path, b"/", self.index.as_os_str().as_bytes()].concat();
                // What a directory without an index holds is nobody's business.
                let (file, stat) = self.look(&path).map_err(|status| match status {
                    Status::NotFound => Status::Forbidden,
                    status => status,
                })?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => Ok(Found::File(Opened { file, stat, path })),
                    _ => Err(Status::Forbidden),
                }
            }
            _ => Err(Status::Forbidden),
        }
    }

    fn look(&self, path: &[u8]) -> Result<(File, Stat), Status> {
        // Not to wait for a writer of a named pipe, and not to get a terminal.
        let file = self.beneath(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(status)?;
        let stat = fstat(&file).map_err(status)?;
        Ok((file.into(), stat))
    }

    fn beneath(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut outcome = Err(Errno::AGAIN);
        for _ in 0..ATTEMPTS {
            outcome = openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
            if !matches!(outcome, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        outcome
    }
}

/// What to answer when a file cannot be opened.
fn status(error: Errno) -> Status {
    match error {
        Errno::NOENT | Errno::NOTDIR => Status::NotFound,
        // A link that leads out of the root (EXDEV), or in a circle; a socket or a device without a driver.
        Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP | Errno::NXIO | Errno::NODEV => {
            Status::Forbidden
        }
        Errno::NAMETOOLONG => Status::UriTooLong,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => Status::ServiceUnavailable,
        _ => Status::InternalError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A root with a file, a directory, links and a pipe, and a file beside it; removed when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let base = std::env::temp_dir().join(format!("uncopy-files-{name}-{}", std::process::id()));
            std::fs::create_dir_all(base.join("root/inner")).expect("a directory");
            let place = Self(base);
            std::fs::write(place.0.join("secret"), b"secret").expect("a file");
            std::fs::write(place.0.join("root/a.txt"), b"a").expect("a file");
            std::fs::write(place.0.join("root/.hidden"), b"h").expect("a file");
            std::fs::write(place.0.join("root/inner/index.html"), b"i").expect("a file");
            symlink("a.txt", place.0.join("root/good")).expect("a link");
            symlink("../secret", place.0.join("root/out")).expect("a link");
            symlink("/etc/passwd", place.0.join("root/absolute")).expect("a link");
            symlink("/proc/self/root", place.0.join("root/magic")).expect("a link");
            symlink("circle", place.0.join("root/circle")).expect("a link");
            let _ =
                rustix::fs::mkfifoat(rustix::fs::CWD, place.0.join("root/pipe"), Mode::from_raw_mode(0o600));
            place
        }

        fn code(&self, target: &str, hidden: bool) -> u16 {
            let root = Root::open(&self.0.join("root"), "index.html".into(), hidden).expect("a root");
            match Target::parse(target).and_then(|target| root.find(&target)) {
                Ok(Found::File(_)) => 200,
                Ok(Found::Elsewhere) => 301,
                Err(status) => status.code(),
            }
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_regular_files_below_the_root_are_found() {
        let place = Place::new("root");
        for (target, code) in [
            ("/a.txt", 200),
            ("/good", 200),
            ("/inner/", 200),
            ("/inner", 301),
            ("/inner/../a.txt", 200),
            ("/", 403),
            ("/a.txt/", 404),
            ("/a.txt/b", 404),
            ("/missing", 404),
            ("/.hidden", 404),
            ("/out", 403),
            ("/absolute", 403),
            ("/magic", 403),
            ("/magic/etc/passwd", 403),
            ("/circle", 403),
            ("/pipe", 403),
        ] {
            assert_eq!(place.code(target, false), code, "{target}");
        }
        assert_eq!(place.code("/.hidden", true), 200);
        assert_eq!(place.code(&format!("/{}", "n".repeat(300)), false), 414);
    }

    #[test]
    fn a_root_that_is_no_directory_is_refused() {
        let place = Place::new("no-root");
        assert!(Root::open(&place.0.join("secret"), "index.html".into(), false).is_err());
        assert!(Root::open(&place.0.join("missing"), "index.html".into(), false).is_err());
    }
}
