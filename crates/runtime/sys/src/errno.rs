//! Error numbers: as results, and preserved for the program.

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! named {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`; see errno(3).")]
            pub const $name: Self = Self(libc::$name);)*
        }
    };
}

named!(EAGAIN, EBADF, EEXIST, EFAULT, EINTR, EINVAL, ENOENT, ENOMEM, ENOSPC, EPERM, ESRCH);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// The calling thread's `errno`.
#[must_use]
pub fn get() -> i32 {
    // SAFETY: __errno_location has no preconditions and returns a pointer valid for this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set(value: i32) {
    // SAFETY: __errno_location returns a pointer that is this thread's own and writable.
    unsafe { *libc::__errno_location() = value }
}

/// Converts a C result to a `Result`: -1 is an error whose number is in `errno`.
pub(crate) fn check(result: i64) -> Result<i64, Errno> {
    if result == -1 { Err(Errno(get())) } else { Ok(result) }
}

/// Guard that restores `errno` when dropped.
pub struct SavedErrno(i32);

impl SavedErrno {
    /// Saves the current `errno`.
    #[must_use]
    pub fn new() -> Self {
        Self(get())
    }
}

impl Default for SavedErrno {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SavedErrno {
    fn drop(&mut self) {
        set(self.0);
    }
}
