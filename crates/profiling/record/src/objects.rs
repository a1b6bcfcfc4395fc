//! Cache of descriptor kinds (file, socket, pipe, ...). An entry is valid for a tenth of a second, since
//! determining a kind takes one or two system calls.
//!
//! Closing a descriptor invalidates its entry if a hook sees the call; otherwise the entry goes stale.

use crate::session;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_core::recording::Object;
use uncopy_fdtable::{self as fdtable, FdCallbacks, Feature};
use uncopy_sys::clock;
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};
use uncopy_sys::fd::{PeerKind, peer_kind};
use uncopy_sys::socket;

const ENTRIES: usize = 1024;
/// Entries by descriptor modulo [`ENTRIES`]: descriptor << 32 | coarse time << 8 | kind. 0 is empty.
static CACHE: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

fn key(fd: ProgramFd, moment: u32) -> u64 {
    u64::from(fd.number().cast_unsigned()) << 32 | u64::from(moment & 0xFF_FFFF) << 8
}

/// Returns the kind of object that `fd` refers to; `now` is the current time in ticks.
#[inline]
pub fn of(fd: ProgramFd, is_socket: bool, now: u64) -> Object {
    let entry = &CACHE[fd.slot(ENTRIES)];
    let known = entry.load(Relaxed);
    let key = key(fd, clock::coarse_ticks(now));
    if known & !0xFF == key
        && let Some(object) = Object::from_code(known as u8)
        && object != Object::None
    {
        return object;
    }
    query(entry, key, fd, is_socket)
}

#[cold]
#[inline(never)]
fn query(entry: &AtomicU64, key: u64, fd: ProgramFd, is_socket: bool) -> Object {
    if session::has_stopped_system_calls() {
        let known = entry.load(Relaxed);
        let known = Object::from_code(known as u8).filter(|_| known >> 32 == key >> 32);
        let likely = if is_socket { Object::Socket } else { Object::Other };
        return known.filter(|object| *object != Object::None).unwrap_or(likely);
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let object = match peer_kind(fd) {
        PeerKind::Stream if socket::is_on_this_host(fd) => Object::Near,
        PeerKind::Stream => Object::Socket,
        PeerKind::Packets => Object::Datagram,
        PeerKind::File => Object::File,
        PeerKind::Pipe => Object::Pipe,
        PeerKind::Terminal => Object::Terminal,
        // Another thread has closed the descriptor since the call.
        PeerKind::Other if is_socket => Object::Socket,
        PeerKind::Other => Object::Other,
    };
    entry.store(key | object as u64, Relaxed);
    fdtable::register(Feature::Record, &FD_CALLBACKS);
    fdtable::track(Feature::Record, fd);
    object
}

static FD_CALLBACKS: FdCallbacks = FdCallbacks {
    on_close: |fd| {
        fdtable::untrack(Feature::Record, fd);
        CACHE[fd.slot(ENTRIES)].store(0, Relaxed);
    },
    on_dup: |_, _| {},
    on_pass: |_| {},
};
