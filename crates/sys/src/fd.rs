//! What a file descriptor is.

/// The kinds that matter to an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdKind {
    /// A regular file.
    File,
    /// A socket of any family and type.
    Socket,
    /// A pipe or FIFO.
    Pipe,
    /// Something else: a terminal, a device, or no open descriptor.
    Other,
}

/// The kind of `fd`. Leaves `errno` changed.
#[must_use]
pub fn kind(fd: i32) -> FdKind {
    // SAFETY: an all-zero stat is a valid buffer for fstat to fill.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
    if unsafe { libc::fstat(fd, &mut found) } != 0 {
        return FdKind::Other;
    }
    match found.st_mode & libc::S_IFMT {
        libc::S_IFREG => FdKind::File,
        libc::S_IFSOCK => FdKind::Socket,
        libc::S_IFIFO => FdKind::Pipe,
        _ => FdKind::Other,
    }
}
