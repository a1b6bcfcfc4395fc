//! The directory that is served. The kernel resolves paths below it (openat2 with RESOLVE_BENEATH, Linux 5.6): neither
//! a symbolic link nor a rename meanwhile leads out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;

/// A directory, held open.
pub struct Root(OwnedFd);

impl Root {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Self(open(path, flags, Mode::empty())?);
        root.open_beneath(b".")?;
        Ok(root)
    }

    /// Opens the regular file at `path`; `None` if there is no readable one.
    pub fn find(&self, path: &[u8]) -> io::Result<Option<(File, Stat)>> {
        match self.open_beneath(path).and_then(|file| Ok((fstat(&file)?, file))) {
            Ok((stat, file)) => {
                let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                Ok(is_file.then(|| (file.into(), stat)))
            }
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO)) => Err(errno.into()),
            Err(_) => Ok(None),
        }
    }

    fn open_beneath(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        // NONBLOCK: opening a named pipe does not wait. NOCTTY: a terminal does not become this process's.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // A concurrent rename makes openat2 return EAGAIN.
        let look = |_| openat2(&self.0, path, flags, Mode::empty(), resolve);
        let is_final = |found: &Result<_, _>| !matches!(found, Err(Errno::AGAIN | Errno::INTR));
        (0..8).map(look).find(is_final).unwrap_or(Err(Errno::NOENT))
    }
}
