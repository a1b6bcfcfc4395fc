//! Root of the system whose units are read and written: this one, or an image below a directory.
//!
//! Every name is resolved within the system's root (openat2(2), `RESOLVE_IN_ROOT`, Linux 5.6): a
//! symbolic link in an image, even an absolute one or one with `..`, leads to a path in the image.
//! Opening anything but a regular file does not block.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

/// Maximum number of openat2(2) calls; EAGAIN means that `..` raced with a rename.
const MAX_ATTEMPTS: usize = 16;
/// Device number of /dev/null (Documentation/admin-guide/devices.txt).
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Open root directory of a system.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    /// Opens the system below a directory; `/` is this one.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { path: path.to_owned(), fd: rustix::fs::openat(CWD, path, flags, Mode::empty())? })
    }

    /// Whether this is the running system.
    pub fn is_host(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Returns a path below the root.
    pub fn path(&self, path: impl Into<PathBuf>) -> RootPath<'_> {
        RootPath { root: self, path: path.into() }
    }
}

/// Absolute path below a root.
#[derive(Clone, Debug)]
pub struct RootPath<'a> {
    root: &'a Root,
    path: PathBuf,
}

impl<'a> RootPath<'a> {
    /// Returns the path of `name` in this directory, or `name` itself if absolute.
    pub fn join(&self, name: impl AsRef<Path>) -> RootPath<'a> {
        RootPath { root: self.root, path: self.path.join(name) }
    }

    pub fn file_name(&self) -> Option<&OsStr> {
        self.path.file_name()
    }

    /// Returns the path on the host.
    pub fn host_path(&self) -> PathBuf {
        match self.path.strip_prefix("/") {
            Ok(below) if below.as_os_str().is_empty() => self.root.path.clone(),
            Ok(below) => self.root.path.join(below),
            Err(_) => self.root.path.join(&self.path),
        }
    }

    fn parent(&self) -> RootPath<'a> {
        RootPath { root: self.root, path: self.path.parent().unwrap_or(Path::new("/")).to_owned() }
    }

    fn open_by(&self, flags: OFlags) -> io::Result<OwnedFd> {
        // openat2 refuses flags without effect, such as O_NOCTTY with O_PATH.
        let extra_flags = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
        let flags = flags | OFlags::CLOEXEC | extra_flags;
        for _ in 0..MAX_ATTEMPTS {
            let resolve = ResolveFlags::IN_ROOT;
            match rustix::fs::openat2(&self.root.fd, &self.path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                // Old kernels and some filters refuse openat2. The host needs no confinement.
                Err(Errno::NOSYS | Errno::PERM) if self.root.is_host() => {
                    return Ok(rustix::fs::openat(CWD, &self.path, flags, Mode::empty())?);
                }
                opened => return Ok(opened?),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// EINVAL for anything else, otherwise the kernel's error.
    pub fn open(&self) -> io::Result<File> {
        let file = File::from(self.open_by(OFlags::RDONLY | OFlags::NONBLOCK)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(Errno::INVAL.into()) }
    }

    /// Reads a regular file of at most `max_bytes`.
    ///
    /// # Errors
    /// EFBIG if the file is longer, otherwise the error of [`RootPath::open`] or of reading.
    pub fn read(&self, max_bytes: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open()?.take(max_bytes + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes { Err(Errno::FBIG.into()) } else { Ok(bytes) }
    }

    /// Whether the path exists, even as a dangling link.
    pub fn exists(&self) -> bool {
        self.open_by(OFlags::PATH | OFlags::NOFOLLOW).is_ok()
    }

    /// Whether the path is a regular file, even an unreadable one.
    pub fn is_file(&self) -> bool {
        self.open_by(OFlags::PATH)
            .is_ok_and(|found| File::from(found).metadata().is_ok_and(|found| found.is_file()))
    }

    /// Returns the target of a symbolic link.
    pub fn link_target(&self) -> Option<PathBuf> {
        let link = self.open_by(OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let text = rustix::fs::readlinkat(link, c"", Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(text.into_bytes())))
    }

    /// Whether the path is /dev/null or a link to it. The image need not have a /dev/null.
    pub fn is_null(&self) -> bool {
        let is_device = |found: OwnedFd| {
            File::from(found).metadata().is_ok_and(|found| {
                let device = found.rdev();
                found.file_type().is_char_device()
                    && (rustix::fs::major(device), rustix::fs::minor(device)) == NULL_DEVICE
            })
        };
        self.link_target().is_some_and(|target| target == Path::new("/dev/null"))
            || self.open_by(OFlags::PATH).is_ok_and(is_device)
    }

    /// Returns the names in a directory; none if it is not a directory.
    pub fn names(&self) -> Vec<OsString> {
        let Ok(directory) = self.open_by(OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
        let Ok(entries) = rustix::fs::Dir::new(directory) else { return Vec::new() };
        let names = entries.flatten().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        names.filter(|name| name != "." && name != "..").collect()
    }

    /// Opens a directory, creating it and its parents where missing.
    fn make_directory(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_by(flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let Some(Component::Normal(name)) = self.path.components().next_back() else {
            return Err(Errno::INVAL.into());
        };
        let above = self.parent().make_directory()?;
        match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => self.open_by(flags),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Replaces the file atomically, creating missing directories. `temp_name` is the temporary name.
    ///
    /// # Errors
    /// The kernel's error; the file is then unchanged, but directories may have been created.
    pub fn replace(&self, text: &[u8], temp_name: &str) -> io::Result<()> {
        let name = self.file_name().ok_or(Errno::INVAL)?;
        let directory = self.parent().make_directory()?;
        let write = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file =
                File::from(rustix::fs::openat(&directory, temp_name, flags, Mode::from_raw_mode(0o644))?);
            file.write_all(text)?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(&directory, temp_name, &directory, name)?)
        };
        write().inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&directory, temp_name, AtFlags::empty());
        })
    }

    /// Removes a file, and its directory if nothing else is in it.
    pub fn remove(&self) -> io::Result<()> {
        let name = self.file_name().ok_or(Errno::INVAL)?;
        let directory = self.parent();
        rustix::fs::unlinkat(directory.open_by(OFlags::PATH | OFlags::DIRECTORY)?, name, AtFlags::empty())?;
        if let (Some(name), Ok(above)) =
            (directory.file_name(), directory.parent().open_by(OFlags::PATH | OFlags::DIRECTORY))
        {
            // Fails if the directory has other files.
            let _ = rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_nowhere_out_of_an_image() {
        let outside = std::env::temp_dir().join(format!("uncopy-image-test-{}", std::process::id()));
        let _ = fs::remove_dir_all(&outside);
        let root = outside.join("root");
        fs::create_dir_all(root.join("etc")).expect("made");
        for name in ["precious", "root/etc/own"] {
            fs::write(outside.join(name), name).expect("written");
        }
        let host = outside.join("precious");
        symlink(&host, root.join("absolute")).expect("planted");
        symlink("../../precious", root.join("etc/up")).expect("planted");
        symlink("/etc/own", root.join("own")).expect("made");
        symlink(&outside, root.join("directory")).expect("planted");
        symlink("/proc/self/root", root.join("magic")).expect("planted");
        let image = Root::open(&root).expect("a directory");
        for path in ["/absolute", "/etc/up", "/directory/precious", "/../precious", "/magic/etc/passwd"] {
            assert!(image.path(path).open().is_err(), "{path}");
        }
        assert_eq!(image.path("/own").read(100).expect("in the image"), b"root/etc/own");
        assert_eq!(image.path("/own").link_target().as_deref(), Some(Path::new("/etc/own")));
        // Writing through such a link stays in the image.
        let written = image.path("/directory/d/file");
        assert!(written.replace(b"x", ".beside").is_err(), "its target is not there");
        fs::create_dir_all(root.join(outside.strip_prefix("/").expect("absolute"))).expect("made");
        written.replace(b"x", ".beside").expect("written");
        assert!(!outside.join("d").exists());
        assert_eq!(written.read(10).expect("there"), b"x");
        assert!(written.read(0).is_err(), "longer than it may be");
        written.remove().expect("removed");
        assert!(!image.path("/directory/d").exists() && image.path("/directory").exists());
        fs::remove_dir_all(&outside).expect("removed");
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let root = std::env::temp_dir().join(format!("uncopy-image-fifo-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).expect("made");
        rustix::fs::mknodat(CWD, root.join("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .expect("a FIFO");
        let image = Root::open(&root).expect("a directory");
        let fifo = image.path("/fifo");
        assert!(fifo.exists() && !fifo.is_file() && fifo.open().is_err());
        symlink("/dev/null", root.join("masked")).expect("made");
        assert!(image.path("/masked").is_null() && !fifo.is_null());
        assert!(Root::open(Path::new("/")).expect("this system").path("/dev/null").is_null());
        fs::remove_dir_all(&root).expect("removed");
    }
}
