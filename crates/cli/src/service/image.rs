//! The system whose units are read and written: this one, or that of an image below a directory.
//!
//! Every name is looked up within it (openat2(2), `RESOLVE_IN_ROOT`, Linux 5.6): a link in an image, also an absolute one or one
//! with `..`, leads to a place in the image. What is no file is not waited for.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

/// The kernel says EAGAIN where `..` races with a rename.
const ATTEMPTS: usize = 16;
/// Device number of /dev/null (Documentation/admin-guide/devices.txt).
const NULL_DEVICE: (u32, u32) = (1, 3);

/// An open root directory.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    root: OwnedFd,
}

impl Image {
    /// The system below a directory; `/`: this one.
    ///
    /// # Errors
    /// What opening the directory says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { path: path.to_owned(), root: rustix::fs::openat(CWD, path, flags, Mode::empty())? })
    }

    /// Whether this is the system that runs.
    pub fn is_host(&self) -> bool {
        self.path == Path::new("/")
    }

    /// A place in it.
    pub fn at(&self, path: impl Into<PathBuf>) -> At<'_> {
        At { image: self, path: path.into() }
    }
}

/// A place in an image, by its absolute path there.
#[derive(Clone, Debug)]
pub struct At<'a> {
    image: &'a Image,
    path: PathBuf,
}

impl<'a> At<'a> {
    /// A name in this directory, or another place where `name` is absolute.
    pub fn join(&self, name: impl AsRef<Path>) -> At<'a> {
        At { image: self.image, path: self.path.join(name) }
    }

    /// Its last name.
    pub fn file_name(&self) -> Option<&OsStr> {
        self.path.file_name()
    }

    /// How it is called outside the image.
    pub fn shown(&self) -> PathBuf {
        match self.path.strip_prefix("/") {
            Ok(below) if below.as_os_str().is_empty() => self.image.path.clone(),
            Ok(below) => self.image.path.join(below),
            Err(_) => self.image.path.join(&self.path),
        }
    }

    fn parent(&self) -> At<'a> {
        At { image: self.image, path: self.path.parent().unwrap_or(Path::new("/")).to_owned() }
    }

    fn open_by(&self, flags: OFlags) -> io::Result<OwnedFd> {
        // openat2 refuses what has no meaning.
        let of_content = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
        let flags = flags | OFlags::CLOEXEC | of_content;
        for _ in 0..ATTEMPTS {
            let resolve = ResolveFlags::IN_ROOT;
            match rustix::fs::openat2(&self.image.root, &self.path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                // Before Linux 5.6 and under some filters; where nothing is outside, that keeps nobody.
                Err(Errno::NOSYS | Errno::PERM) if self.image.is_host() => {
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
    /// EINVAL where it is something else; else what the kernel says.
    pub fn open(&self) -> io::Result<File> {
        let file = File::from(self.open_by(OFlags::RDONLY | OFlags::NONBLOCK)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(Errno::INVAL.into()) }
    }

    /// Reads a regular file of at most `max_bytes`.
    ///
    /// # Errors
    /// EFBIG where it is longer; else what [`At::open`] and reading say.
    pub fn read(&self, max_bytes: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open()?.take(max_bytes + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes { Err(Errno::FBIG.into()) } else { Ok(bytes) }
    }

    /// Whether something has this name, also a link that leads nowhere.
    pub fn exists(&self) -> bool {
        self.open_by(OFlags::PATH | OFlags::NOFOLLOW).is_ok()
    }

    /// Whether it is a regular file, also one that cannot be read.
    pub fn is_file(&self) -> bool {
        self.open_by(OFlags::PATH)
            .is_ok_and(|found| File::from(found).metadata().is_ok_and(|found| found.is_file()))
    }

    /// The text of a symbolic link.
    pub fn link(&self) -> Option<PathBuf> {
        let link = self.open_by(OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let text = rustix::fs::readlinkat(link, c"", Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(text.into_bytes())))
    }

    /// Whether it is /dev/null, or a link to that, which an image need not have.
    pub fn is_null(&self) -> bool {
        let is_device = |found: OwnedFd| {
            File::from(found).metadata().is_ok_and(|found| {
                let device = found.rdev();
                found.file_type().is_char_device()
                    && (rustix::fs::major(device), rustix::fs::minor(device)) == NULL_DEVICE
            })
        };
        self.link().is_some_and(|target| target == Path::new("/dev/null"))
            || self.open_by(OFlags::PATH).is_ok_and(is_device)
    }

    /// Names in a directory; none if it is not one.
    pub fn names(&self) -> Vec<OsString> {
        let Ok(directory) = self.open_by(OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
        let Ok(entries) = rustix::fs::Dir::new(directory) else { return Vec::new() };
        let names = entries.flatten().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        names.filter(|name| name != "." && name != "..").collect()
    }

    /// Opens a directory, and makes it and those above that are missing.
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

    /// Puts a file there in one step, all of it or nothing, and makes the directories above that are missing. `beside` is the
    /// name that it has meanwhile.
    ///
    /// # Errors
    /// What the kernel says; nothing has changed then, but directories may have been made.
    pub fn replace(&self, text: &[u8], beside: &str) -> io::Result<()> {
        let name = self.file_name().ok_or(Errno::INVAL)?;
        let directory = self.parent().make_directory()?;
        let write = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file =
                File::from(rustix::fs::openat(&directory, beside, flags, Mode::from_raw_mode(0o644))?);
            file.write_all(text)?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(&directory, beside, &directory, name)?)
        };
        write().inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&directory, beside, AtFlags::empty());
        })
    }

    /// Removes a file, and its directory if nothing else is in it.
    ///
    /// # Errors
    /// What removing the file says.
    pub fn remove(&self) -> io::Result<()> {
        let name = self.file_name().ok_or(Errno::INVAL)?;
        let directory = self.parent();
        rustix::fs::unlinkat(directory.open_by(OFlags::PATH | OFlags::DIRECTORY)?, name, AtFlags::empty())?;
        if let (Some(name), Ok(above)) =
            (directory.file_name(), directory.parent().open_by(OFlags::PATH | OFlags::DIRECTORY))
        {
            // Others may have files there.
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
        let image = Image::open(&root).expect("a directory");
        for path in ["/absolute", "/etc/up", "/directory/precious", "/../precious", "/magic/etc/passwd"] {
            assert!(image.at(path).open().is_err(), "{path}");
        }
        assert_eq!(image.at("/own").read(100).expect("in the image"), b"root/etc/own");
        assert_eq!(image.at("/own").link().as_deref(), Some(Path::new("/etc/own")));
        // What is written through such a link is made in the image.
        let written = image.at("/directory/d/file");
        assert!(written.replace(b"x", ".beside").is_err(), "its target is not there");
        fs::create_dir_all(root.join(outside.strip_prefix("/").expect("absolute"))).expect("made");
        written.replace(b"x", ".beside").expect("written");
        assert!(!outside.join("d").exists());
        assert_eq!(written.read(10).expect("there"), b"x");
        assert!(written.read(0).is_err(), "longer than it may be");
        written.remove().expect("removed");
        assert!(!image.at("/directory/d").exists() && image.at("/directory").exists());
        fs::remove_dir_all(&outside).expect("removed");
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let root = std::env::temp_dir().join(format!("uncopy-image-fifo-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).expect("made");
        rustix::fs::mknodat(CWD, root.join("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .expect("a FIFO");
        let image = Image::open(&root).expect("a directory");
        let fifo = image.at("/fifo");
        assert!(fifo.exists() && !fifo.is_file() && fifo.open().is_err());
        symlink("/dev/null", root.join("masked")).expect("made");
        assert!(image.at("/masked").is_null() && !fifo.is_null());
        assert!(Image::open(Path::new("/")).expect("this system").at("/dev/null").is_null());
        fs::remove_dir_all(&root).expect("removed");
    }
}
