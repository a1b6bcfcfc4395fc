//! Handing streams over to other processes, as [`shared_streams`](crate::shared_streams) defines it: before exec, before a program
//! is spawned, when a descriptor is sent, and before the process loses rights.

use crate::process::process;
use crate::shared_streams::{note_all_shared, note_shared};
use crate::{forks, process};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::iovec::Part;
use uncopy_sys::{fd, socket};

const MAX_DISCARDED: usize = 16 << 10;

/// Returns the cookie of a stream socket; `None` for other descriptors.
fn stream(fd: ProgramFd) -> Option<u64> {
    let (_, kind, _) = socket::kind(fd).ok()?;
    if kind == libc::SOCK_STREAM { socket::cookie(fd).ok() } else { None }
}

/// Calls `each` with every stream in the thread's descriptor table. If that cannot be read, notes all streams.
fn each_stream(mut each: impl FnMut(ProgramFd, u64)) {
    let each = |fd| {
        if let Some(cookie) = stream(fd) {
            each(fd, cookie);
        }
    };
    if fd::each_open(each).is_err() {
        note_all_shared();
    }
}

/// Notes all open streams as inherited: the process that started this one may have them too.
pub fn note_inherited() {
    each_stream(|_, cookie| note_shared(cookie));
}

/// Prepares for an exec in this process (`is_owner`) or in a vfork child that shares its memory. The new program
/// cannot receive what is announced, so a connection that it is going to read is reset. If this process or its
/// parent may continue to read, that is assumed of standard input, output and error only.
pub fn before_exec(is_owner: bool) {
    let is_replaced = is_owner && process().is_some();
    hand_on(|fd| is_replaced || fd <= ProgramFd::new(libc::STDERR_FILENO));
}

/// Prepares for a spawned program, which inherits descriptors without FD_CLOEXEC.
pub fn before_spawn() {
    hand_on(|_| false);
}

/// Hands over the streams without FD_CLOEXEC.
fn hand_on(is_read: impl Fn(ProgramFd) -> bool) {
    each_stream(|fd, cookie| {
        if fd::closes_on_exec(fd) == Some(false) {
            hand(fd, cookie, is_read(fd));
        }
    });
}

/// Hands over a descriptor that is sent to another process, or was received from one.
pub fn hand_over(fd: ProgramFd) {
    if let Some(cookie) = stream(fd) {
        hand(fd, cookie, true);
    }
}

/// Hands a socket over. `is_read`: the recipient is going to read it.
fn hand(fd: ProgramFd, cookie: u64, is_read: bool) {
    note_shared(cookie);
    forks::report_kept_socket(cookie);
    let is_plain = process().map_or_else(|| !process::accepts_refs(fd), |process| process.end_socket(cookie));
    if !is_plain && is_read {
        reset(fd);
    }
}

/// Resets a connection whose announced bytes were not all received.
fn reset(fd: ProgramFd) {
    uncopy_sys::mem::write_stderr(format_args!(
        "uncopy: a connection is reset: it was handed over with bytes unread that lie in shared memory\n"
    ));
    socket::shut_down(fd);
    let mut bytes = [0u8; 4096];
    let room = Part { address: bytes.as_mut_ptr() as usize, len_bytes: bytes.len() };
    // Nothing follows a reset, but the loop is bounded in case something does.
    for _ in 0..MAX_DISCARDED {
        // SAFETY: `room` describes `bytes`, a local array that outlives the call and that nothing else refers to.
        if !unsafe { socket::receive(fd, &[room], libc::MSG_DONTWAIT) }.is_ok_and(|got| got > 0) {
            break;
        }
    }
}

/// Makes every stream of this process permanently literal before it loses rights. Streams with outstanding
/// announcements are reset.
pub fn end_all() {
    end_every(|fd, _| reset(fd));
}

/// Makes every stream of this process permanently literal and ends all memory sharing, before the process changes
/// its user. Outstanding announcements are received from private copies; a stream whose sender is stopped, so that
/// more may follow, is reset.
pub fn detach() {
    end_every(|fd, may_follow| {
        if may_follow {
            reset(fd);
        }
    });
}

fn end_every(unread: impl Fn(ProgramFd, bool)) {
    note_all_shared();
    if let Some(process) = process() {
        process.end_every(unread);
        process.stop();
    }
}
