//! Directories that only one user can enter, and the files in them.
//!
//! Such a directory lies where all users may write (`/dev/shm`), so its name proves nothing. It is
//! opened once, without following a symbolic link; owner and mode are read from the descriptor, and
//! its files are opened relative to that descriptor. Later changes of the name have no effect.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};
use crate::file::{self, Status};
use core::ffi::CStr;

/// Permissions of a private directory.
pub const DIRECTORY_MODE: u32 = 0o700;
/// Permissions of a file or FIFO in a private directory.
pub const FILE_MODE: u32 = 0o600;
/// The permission bits, with set-user-ID, set-group-ID and sticky.
const MODE_BITS: u32 = 0o7777;

/// Reason why a directory or a file is not used. `Display` completes a sentence that begins with the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryError {
    /// The kernel refused a call.
    Kernel(Errno),
    /// The name is a symbolic link.
    Symlink,
    /// The name is not a directory.
    NotADirectory,
    /// The file is not of the requested kind.
    WrongKind(FileKind),
    /// The file has another owner.
    WrongOwner,
    /// The permissions are not these.
    WrongMode(u32),
    /// The file has other names, perhaps outside the directory.
    HardLinked,
}

impl core::fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Kernel(errno) => errno.fmt(f),
            Self::Symlink => f.write_str("is a symbolic link"),
            Self::NotADirectory => f.write_str("is not a directory"),
            Self::WrongKind(FileKind::File) => f.write_str("is not a file"),
            Self::WrongKind(FileKind::Fifo) => f.write_str("is not a pipe"),
            Self::WrongOwner => f.write_str("belongs to another user"),
            Self::WrongMode(mode) => write!(f, "does not have mode {mode:04o}"),
            Self::HardLinked => f.write_str("has another name too"),
        }
    }
}

impl From<Errno> for DirectoryError {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

impl From<DirectoryError> for Errno {
    fn from(refused: DirectoryError) -> Self {
        match refused {
            DirectoryError::Kernel(errno) => errno,
            // The error of openat(2) with O_DIRECTORY.
            DirectoryError::Symlink | DirectoryError::NotADirectory => Self(libc::ENOTDIR),
            _ => Self::EPERM,
        }
    }
}

impl From<DirectoryError> for std::io::Error {
    fn from(refused: DirectoryError) -> Self {
        match refused {
            DirectoryError::Kernel(errno) => errno.into(),
            other => Self::new(std::io::ErrorKind::PermissionDenied, format!("it {other}")),
        }
    }
}

/// Kinds of files in a private directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file (S_IFREG).
    File,
    /// A named pipe (S_IFIFO).
    Fifo,
}

impl FileKind {
    const fn format(self) -> u32 {
        match self {
            Self::File => libc::S_IFREG,
            Self::Fifo => libc::S_IFIFO,
        }
    }
}

/// An open directory that only its owner can enter.
#[derive(Debug)]
pub struct PrivateDirectory {
    fd: OwnFd,
    owner: u32,
}

impl PrivateDirectory {
    /// Opens a directory, which must belong to `owner` and have mode 0700.
    ///
    /// # Errors
    /// [`DirectoryError`] if it does not, or the kernel fails.
    pub fn open(path: &CStr, owner: u32) -> Result<Self, DirectoryError> {
        Self::open_at(ProgramFd::CURRENT_DIRECTORY, path, owner)
    }

    /// Creates a directory of the calling process's user, or opens an existing one; the parent must exist.
    ///
    /// # Errors
    /// See [`PrivateDirectory::open`].
    pub fn make(path: &CStr) -> Result<Self, DirectoryError> {
        Self::make_at(ProgramFd::CURRENT_DIRECTORY, path)
    }

    /// Opens a directory in this one, which must have the same owner.
    ///
    /// # Errors
    /// See [`PrivateDirectory::open`].
    pub fn open_in(&self, name: &CStr) -> Result<Self, DirectoryError> {
        Self::open_at(&self.fd, name, self.owner)
    }

    /// Creates a directory in this one, or opens an existing one.
    ///
    /// # Errors
    /// See [`PrivateDirectory::open`].
    pub fn make_in(&self, name: &CStr) -> Result<Self, DirectoryError> {
        Self::make_at(&self.fd, name)
    }

    fn make_at(parent: impl Descriptor, path: &CStr) -> Result<Self, DirectoryError> {
        // SAFETY: `path` is NUL-terminated and lives through the call; mkdirat(2) only reads it.
        let made =
            unsafe { kernel!(Name, syscall!(libc::SYS_mkdirat, parent, path.as_ptr(), DIRECTORY_MODE)) };
        match check(made) {
            Ok(_) | Err(Errno::EEXIST) => Self::open_at(parent, path, crate::ids::effective_user()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open_at(parent: impl Descriptor, path: &CStr, owner: u32) -> Result<Self, DirectoryError> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let fd = match file::open_at(parent, path, flags, 0) {
            Ok(fd) => fd,
            // O_DIRECTORY with O_NOFOLLOW gives ENOTDIR for a symbolic link too.
            Err(Errno(libc::ENOTDIR | libc::ELOOP)) => {
                // SAFETY: `path` is a `CStr`, so NUL-terminated, and lives through the call.
                let is_link = unsafe { file::is_symlink_at(parent, path.as_ptr()) };
                return Err(if is_link { DirectoryError::Symlink } else { DirectoryError::NotADirectory });
            }
            Err(errno) => return Err(errno.into()),
        };
        let status = file::status(&fd)?;
        if status.user != owner {
            return Err(DirectoryError::WrongOwner);
        }
        if status.mode & MODE_BITS != DIRECTORY_MODE {
            return Err(DirectoryError::WrongMode(DIRECTORY_MODE));
        }
        Ok(Self { fd, owner })
    }

    /// Makes another user the owner of the directory, who can enter it from here on.
    ///
    /// # Errors
    /// Errors of fchown(2).
    pub fn set_owner(&mut self, user: u32) -> Result<(), Errno> {
        const SAME_GROUP: u32 = u32::MAX;
        // SAFETY: fchown(2) takes only integers here, and accesses no memory of the process.
        check(unsafe { kernel!(Name, syscall!(libc::SYS_fchown, &self.fd, user, SAME_GROUP)) })?;
        self.owner = user;
        Ok(())
    }

    /// User id of the directory's owner.
    #[must_use]
    pub const fn owner(&self) -> u32 {
        self.owner
    }

    /// The directory's descriptor, which lives as long as this value.
    #[must_use]
    pub const fn fd(&self) -> &OwnFd {
        &self.fd
    }

    /// Opens a file, which must be of this kind, belong to the directory's owner, have mode 0600
    /// and no other name. Never blocks.
    ///
    /// # Errors
    /// [`DirectoryError`] if the file is not like that, or the kernel fails.
    pub fn open_file(&self, name: &CStr, kind: FileKind, access: i32) -> Result<OwnFd, DirectoryError> {
        self.open_file_of(name, kind, access, |user| user == self.owner)
    }

    /// Opens a file whose owner `is_accepted`. See [`PrivateDirectory::open_file`].
    ///
    /// # Errors
    /// [`DirectoryError`] if the file is not like that, or the kernel fails.
    pub fn open_file_of(
        &self,
        name: &CStr,
        kind: FileKind,
        access: i32,
        is_accepted: impl FnOnce(u32) -> bool,
    ) -> Result<OwnFd, DirectoryError> {
        let flags = access | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd = match file::open_at(&self.fd, name, flags, 0) {
            Ok(fd) => fd,
            Err(Errno(libc::ELOOP)) => return Err(DirectoryError::Symlink),
            Err(Errno(libc::EISDIR)) => return Err(DirectoryError::WrongKind(kind)),
            Err(errno) => return Err(errno.into()),
        };
        judge(&file::status(&fd)?, kind, is_accepted).map(|()| fd)
    }

    /// Opens a file as [`PrivateDirectory::open_file`] does, which may have other names too.
    ///
    /// # Errors
    /// [`DirectoryError`] if the file is not like that, or the kernel fails.
    pub fn open_file_linked(
        &self,
        name: &CStr,
        kind: FileKind,
        access: i32,
    ) -> Result<OwnFd, DirectoryError> {
        let flags = access | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd = file::open_at(&self.fd, name, flags, 0)?;
        judge_linked(&file::status(&fd)?, kind, |user| user == self.owner).map(|()| fd)
    }

    /// Creates a file that only its owner can read, open for reading and writing, in place of any old one.
    ///
    /// # Errors
    /// Errors of openat(2): EEXIST if another thread created the name meanwhile.
    pub fn create(&self, name: &CStr) -> Result<OwnFd, Errno> {
        self.remove(name);
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        file::open_at(&self.fd, name, flags, FILE_MODE)
    }

    /// Creates a FIFO that only its owner can open, in place of a file with that name, and opens it
    /// in both directions, so that it never reports end of file.
    ///
    /// # Errors
    /// [`DirectoryError`] if it cannot be created or opened.
    pub fn create_fifo(&self, name: &CStr) -> Result<OwnFd, DirectoryError> {
        self.remove(name);
        let mode = libc::S_IFIFO | FILE_MODE;
        // SAFETY: `name` is NUL-terminated and lives through the call; mknodat(2) only reads it.
        check(unsafe { kernel!(Name, syscall!(libc::SYS_mknodat, &self.fd, name.as_ptr(), mode, 0)) })?;
        self.open_file(name, FileKind::Fifo, libc::O_RDWR)
    }

    /// Removes a file of the directory, without following a link. Directories and missing names are ignored.
    pub fn remove(&self, name: &CStr) {
        file::unlink_at(&self.fd, name, 0);
    }

    /// Removes an empty directory in this one.
    pub fn remove_directory(&self, name: &CStr) {
        file::unlink_at(&self.fd, name, libc::AT_REMOVEDIR);
    }

    /// Calls `each` with every name in the directory. Names that appear or vanish meanwhile may be missing.
    ///
    /// # Errors
    /// Errors of opening and reading the directory.
    pub fn each_name(&self, mut each: impl FnMut(&CStr)) -> Result<(), Errno> {
        // A new descriptor, so that each listing begins at the first name.
        let listed = file::open_at(&self.fd, c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        crate::fd::each_entry(&listed, &mut each)
    }
}

/// Checks kind, owner, mode and link count of a file in a private directory.
fn judge(
    status: &Status,
    kind: FileKind,
    is_accepted: impl FnOnce(u32) -> bool,
) -> Result<(), DirectoryError> {
    judge_linked(status, kind, is_accepted)?;
    if status.links == 1 { Ok(()) } else { Err(DirectoryError::HardLinked) }
}

/// Checks kind, owner and mode of a file that may have other names.
pub(crate) fn judge_linked(
    status: &Status,
    kind: FileKind,
    is_accepted: impl FnOnce(u32) -> bool,
) -> Result<(), DirectoryError> {
    if status.mode & libc::S_IFMT != kind.format() {
        return Err(DirectoryError::WrongKind(kind));
    }
    if !is_accepted(status.user) {
        return Err(DirectoryError::WrongOwner);
    }
    if status.mode & MODE_BITS != FILE_MODE {
        return Err(DirectoryError::WrongMode(FILE_MODE));
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("uncopy-directory-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("a directory");
            Self(path)
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

    fn user() -> u32 {
        crate::ids::effective_user()
    }

    #[test]
    fn links_other_modes_and_other_owners_are_refused() {
        let scratch = Scratch::new("refused");
        let (real, link, file) = (scratch.0.join("real"), scratch.0.join("link"), scratch.0.join("file"));
        drop(PrivateDirectory::make(&c(&real)).expect("made"));
        symlink(&real, &link).expect("a link");
        fs::write(&file, "x").expect("written");
        let refused = |path: &Path, owner| PrivateDirectory::open(&c(path), owner).expect_err("refused");
        assert_eq!(refused(&link, user()), DirectoryError::Symlink);
        assert_eq!(PrivateDirectory::make(&c(&link)).expect_err("refused"), DirectoryError::Symlink);
        assert_eq!(refused(&file, user()), DirectoryError::NotADirectory);
        assert_eq!(refused(&real, user() + 1), DirectoryError::WrongOwner);
        assert_eq!(refused(&scratch.0.join("none"), user()), DirectoryError::Kernel(Errno::ENOENT));
        for mode in [0o701, 0o711, 0o750, 0o1700, 0o500] {
            fs::set_permissions(&real, Permissions::from_mode(mode)).expect("ours");
            assert_eq!(refused(&real, user()), DirectoryError::WrongMode(0o700), "{mode:o}");
        }
        fs::set_permissions(&real, Permissions::from_mode(0o700)).expect("ours");
    }

    #[test]
    fn a_directory_that_was_swapped_after_it_was_opened_is_the_old_one() {
        let scratch = Scratch::new("swapped");
        let (path, aside) = (scratch.0.join("d"), scratch.0.join("aside"));
        let directory = PrivateDirectory::make(&c(&path)).expect("made");
        fs::write(path.join("17"), "ours").expect("written");
        fs::rename(&path, &aside).expect("moved");
        fs::create_dir(&path).expect("another");
        fs::write(path.join("17"), "precious").expect("written");
        let mut names = Vec::new();
        directory.each_name(|name| names.push(name.to_owned())).expect("listed");
        assert_eq!(names, [c"17".to_owned()]);
        directory.remove(c"17");
        assert!(path.join("17").exists() && !aside.join("17").exists());
    }

    #[test]
    fn removing_a_link_leaves_what_it_leads_to() {
        let scratch = Scratch::new("link");
        let directory = PrivateDirectory::make(&c(&scratch.0.join("d"))).expect("made");
        let target = scratch.0.join("target");
        fs::write(&target, "precious").expect("written");
        symlink(&target, scratch.0.join("d/1")).expect("a link");
        assert_eq!(directory.open_file(c"1", FileKind::File, libc::O_RDONLY), Err(DirectoryError::Symlink));
        drop(directory.create(c"1").expect("in its place"));
        assert_eq!(fs::read(&target).expect("there"), b"precious");
        assert_eq!(fs::read(scratch.0.join("d/1")).expect("there"), b"");
    }

    #[test]
    fn files_of_another_kind_mode_or_name_are_refused_and_nobody_is_waited_for() {
        let scratch = Scratch::new("files");
        let directory = PrivateDirectory::make(&c(&scratch.0.join("d"))).expect("made");
        let open = |kind| directory.open_file(c"1", kind, libc::O_RDONLY);
        drop(directory.create_fifo(c"1").expect("made"));
        assert_eq!(open(FileKind::File), Err(DirectoryError::WrongKind(FileKind::File)));
        drop(open(FileKind::Fifo).expect("nobody writes, and it opens"));
        let written = directory.open_file(c"1", FileKind::Fifo, libc::O_WRONLY);
        assert_eq!(written, Err(DirectoryError::Kernel(Errno(libc::ENXIO))), "nobody reads");
        drop(directory.create(c"1").expect("made"));
        assert_eq!(open(FileKind::Fifo), Err(DirectoryError::WrongKind(FileKind::Fifo)));
        drop(open(FileKind::File).expect("ours"));
        let path = scratch.0.join("d/1");
        fs::hard_link(&path, scratch.0.join("other")).expect("linked");
        assert_eq!(open(FileKind::File), Err(DirectoryError::HardLinked));
        fs::remove_file(scratch.0.join("other")).expect("removed");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        assert_eq!(open(FileKind::File), Err(DirectoryError::WrongMode(0o600)));
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        assert_eq!(open(FileKind::File), Err(DirectoryError::WrongKind(FileKind::File)));
    }

    #[test]
    fn many_names_are_listed_more_than_once() {
        let scratch = Scratch::new("many");
        let directory = PrivateDirectory::make(&c(&scratch.0.join("d"))).expect("made");
        for number in 0..500 {
            let name = CString::new(number.to_string()).expect("digits");
            drop(directory.create(&name).expect("made"));
        }
        for _ in 0..2 {
            let mut count = 0;
            directory.each_name(|_| count += 1).expect("listed");
            assert_eq!(count, 500);
        }
    }
}
