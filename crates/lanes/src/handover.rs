//! What is done when streams come into others' hands, as [`handed`](crate::handed) says: before exec, before a program is started,
//! when a descriptor is sent, when the process is about to be allowed less.

use crate::handed::{note, note_all};
use crate::process::process;
use crate::{forks, process};
use uncopy_sys::iovec::Part;
use uncopy_sys::{fd, socket};

/// Receives by which what was not received is discarded, at most.
const MAX_DISCARDED: usize = 16 << 10;

/// The cookie of a socket whose bytes are a stream's.
fn stream(fd: i32) -> Option<u64> {
    let (_, kind, _) = socket::kind(fd).ok()?;
    if kind == libc::SOCK_STREAM { socket::cookie(fd).ok() } else { None }
}

/// Calls `each` with every stream of the calling thread's table of descriptors, or where that cannot be told, notes all.
fn each_stream(mut each: impl FnMut(i32, u64)) {
    let each = |fd| {
        if let Some(cookie) = stream(fd) {
            each(fd, cookie);
        }
    };
    if fd::each_open(each).is_err() {
        note_all();
    }
}

/// What is open now was inherited: whoever started this process may have it, too.
pub fn note_inherited() {
    each_stream(|_, cookie| note(cookie));
}

/// Another program is about to be executed in the calling process, which is this one (`is_owner`) or one that shares its memory
/// (vfork). What is not received yet is lost to it: a connection that it is going to read is reset. Which one that is nobody knows where this
/// process, or its parent, goes on reading: its standard input, output and error.
pub fn before_exec(is_owner: bool) {
    let is_replaced = is_owner && process().is_some();
    hand_on(|fd| is_replaced || fd <= libc::STDERR_FILENO);
}

/// Another program is about to be started, which inherits what exec does not close.
pub fn before_spawn() {
    hand_on(|_| false);
}

/// The streams that exec does not close come into other hands.
fn hand_on(is_read: impl Fn(i32) -> bool) {
    each_stream(|fd, cookie| {
        if fd::closes_on_exec(fd) == Some(false) {
            hand(fd, cookie, is_read(fd));
        }
    });
}

/// A descriptor is about to be given to another process, or was received from one.
pub fn pass(fd: i32) {
    if let Some(cookie) = stream(fd) {
        hand(fd, cookie, true);
    }
}

/// A socket comes into other hands. `is_read`: whoever gets it is going to read it.
fn hand(fd: i32, cookie: u64, is_read: bool) {
    note(cookie);
    forks::say(cookie);
    let is_plain = process().map_or_else(|| !process::is_attended(fd), |process| process.end_socket(cookie));
    if !is_plain && is_read {
        reset(fd);
    }
}

/// Ends a connection of which not all that was announced was received.
fn reset(fd: i32) {
    uncopy_sys::mem::say(format_args!(
        "uncopy: a connection is reset: it was handed over with bytes unread that lie in shared memory\n"
    ));
    socket::reset(fd);
    let mut bytes = [0u8; 4096];
    let room = Part { address: bytes.as_mut_ptr() as usize, len_bytes: bytes.len() };
    // Nothing comes behind it; bounded all the same.
    for _ in 0..MAX_DISCARDED {
        // SAFETY: room of our own.
        if !unsafe { socket::receive(fd, &[room], libc::MSG_DONTWAIT) }.is_ok_and(|got| got > 0) {
            break;
        }
    }
}

/// Every stream of this process is literal from here on, because it is about to be allowed less. What cannot be received plainly is
/// reset.
pub fn end_all() {
    end_every(|fd, _| reset(fd));
}

/// Every stream of this process is literal from here on, and no memory is shared with anybody any more, because it is about to be
/// somebody else's. What was announced is received as before, from copies; a stream whose sender is stopped where more may follow is
/// reset.
pub fn detach() {
    end_every(|fd, may_follow| {
        if may_follow {
            reset(fd);
        }
    });
}

fn end_every(unread: impl Fn(i32, bool)) {
    note_all();
    if let Some(process) = process() {
        process.end_every(unread);
        process.stop();
    }
}
