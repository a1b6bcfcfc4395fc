//! Copies from file to file inside the kernel, and descriptors sent over a socket.

use core::ptr::null_mut;

use libc::{c_int, off_t};

use super::interpreter::FilesInterpreter;
use super::{MAX_FILE, NEGATIVE};

/// Maximum offset in a file, in bytes.
const MAX_OFFSET: usize = 4 * MAX_FILE;

/// Converts an operation's number to an offset.
pub(super) fn offset(number: usize) -> off_t {
    let (sign, number) = if number >= NEGATIVE { (-1, number - NEGATIVE) } else { (1, number) };
    // Shrinking makes up numbers, so any number must convert.
    sign * off_t::try_from(number.min(MAX_OFFSET)).expect("a short one")
}

impl FilesInterpreter<'_> {
    pub(super) fn pass(&mut self, how: usize, from: usize, to: usize, at: usize, to_at: usize, len: usize) {
        let (fd, to) = (self.fd(from), self.fd(to));
        let (mut at, mut to_at) = (offset(at), offset(to_at));
        if how % 6 != 2 && how % 6 != 3 && is_same_file(fd, to) {
            // Within one file the bytes that arrive depend on the page cache: two plain runs may differ.
            return self.trace_result(0, format_args!("one file"));
        }
        // SAFETY: the offsets are writable and live through the calls; null offsets are allowed.
        let passed = unsafe {
            match how % 6 {
                0 => libc::sendfile(to, fd, &raw mut at, len),
                1 => libc::sendfile(to, fd, null_mut(), len),
                2 => libc::copy_file_range(fd, &raw mut at, to, &raw mut to_at, len, 0),
                3 => libc::copy_file_range(fd, null_mut(), to, null_mut(), len, 0),
                4 => return self.splice(fd, to, Some(at), Some(to_at), len),
                _ => return self.splice(fd, to, None, None, len),
            }
        };
        self.trace_result(passed as i64, format_args!("passed {at} {to_at}"));
        self.trace_descriptor(fd);
        self.trace_descriptor(to);
    }

    /// Copies from file to file by splice(2), through a pipe.
    fn splice(&mut self, from: c_int, to: c_int, at: Option<off_t>, to_at: Option<off_t>, len: usize) {
        let mut ends = [-1; 2];
        let (mut at, mut to_at) = (at, to_at);
        let offset_pointer = |at: &mut Option<off_t>| at.as_mut().map_or(null_mut(), core::ptr::from_mut);
        // SAFETY: `ends` has room for two descriptors; the offsets are writable and live through the calls.
        unsafe {
            libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK);
            let into_pipe = libc::splice(from, offset_pointer(&mut at), ends[1], null_mut(), len, 0);
            self.trace_result(into_pipe as i64, format_args!("from {at:?}"));
            let from_pipe = libc::splice(ends[0], null_mut(), to, offset_pointer(&mut to_at), len, 0);
            self.trace_result(from_pipe as i64, format_args!("to {to_at:?}"));
            ends.iter().for_each(|end| {
                libc::close(*end);
            });
        }
        self.trace_descriptor(from);
        self.trace_descriptor(to);
    }
}

/// Whether both descriptors refer to the same file.
fn is_same_file(one: c_int, other: c_int) -> bool {
    // SAFETY: an all-zero `stat` is valid and lives through the call.
    let inode = |fd| unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        (libc::fstat(fd, &raw mut found) == 0).then_some((found.st_dev, found.st_ino))
    };
    inode(one).is_some_and(|found| Some(found) == inode(other))
}

/// Buffer for the control data of one descriptor, aligned as `cmsghdr` is.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Sends a descriptor over a socket to this process. Returns the received descriptor, which refers
/// to the same open file description, or -1.
pub(super) fn duplicate_by_scm_rights(fd: c_int) -> c_int {
    let mut ends = [-1; 2];
    let mut byte = [7u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 24]);
    // SAFETY: an all-zero `msghdr` is valid; the part and the control data that it points to live through
    // the calls, and the control data has room for one header and one descriptor (CMSG_SPACE(4) is 24).
    unsafe {
        let mut header: libc::msghdr = core::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = 24;
        let head = libc::CMSG_FIRSTHDR(&raw const header);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(fd);
        libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr());
        let mut new = -1;
        if libc::sendmsg(ends[0], &raw const header, 0) == 1 {
            control = Control([0; 24]);
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = 24;
            libc::recvmsg(ends[1], &raw mut header, libc::MSG_DONTWAIT);
            let head = libc::CMSG_FIRSTHDR(&raw const header);
            if !head.is_null() {
                new = libc::CMSG_DATA(head).cast::<c_int>().read_unaligned();
            }
        }
        let saved_errno = uncopy_tests::oracle::errno();
        ends.iter().for_each(|end| {
            libc::close(*end);
        });
        uncopy_tests::oracle::set_errno(saved_errno);
        new
    }
}
