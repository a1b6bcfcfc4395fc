//! What descriptors are, remembered for a tenth of a second: asking costs a system call or two.
//!
//! A number that is closed and given to something else is forgotten by the hook of `close`; where the program closes
//! it in a way that no hook sees, what is remembered is wrong for that long at most.

use crate::session;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_core::recording::Object;
use uncopy_sys::clock;
use uncopy_sys::fd::{Peer, peer};
use uncopy_sys::socket;

const PLACES: usize = 1024;
/// By the number's last bits: number << 32 | moment << 8 | object. 0: nothing.
static KNOWN: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

fn key(fd: i32, moment: u32) -> u64 {
    u64::from(fd.cast_unsigned()) << 32 | u64::from(moment & 0xFF_FFFF) << 8
}

/// What `fd` is, at the moment `now` (ticks).
#[inline]
pub fn of(fd: i32, is_socket: bool, now: u64) -> Object {
    let place = &KNOWN[fd.cast_unsigned() as usize % PLACES];
    let known = place.load(Relaxed);
    let key = key(fd, clock::coarse(now));
    if known & !0xFF == key
        && let Some(object) = Object::from_code(known as u8)
        && object != Object::None
    {
        return object;
    }
    ask(place, key, fd, is_socket)
}

#[cold]
#[inline(never)]
fn ask(place: &AtomicU64, key: u64, fd: i32, is_socket: bool) -> Object {
    if session::is_confined() {
        let known = place.load(Relaxed);
        let known = Object::from_code(known as u8).filter(|_| known >> 32 == key >> 32);
        let likely = if is_socket { Object::Socket } else { Object::Other };
        return known.filter(|object| *object != Object::None).unwrap_or(likely);
    }
    let _errno = uncopy_sys::errno::Keep::new();
    let object = match peer(fd) {
        Peer::Stream if socket::is_on_this_host(fd) => Object::Near,
        Peer::Stream => Object::Socket,
        Peer::Packets => Object::Datagram,
        Peer::File => Object::File,
        Peer::Pipe => Object::Pipe,
        Peer::Terminal => Object::Terminal,
        // Closed by another thread since.
        Peer::Other if is_socket => Object::Socket,
        Peer::Other => Object::Other,
    };
    place.store(key | object as u64, Relaxed);
    object
}

/// The program closes `fd`, or puts something else in its place.
#[inline]
pub fn closed(fd: i32) {
    if crate::switch::is_on() {
        KNOWN[fd.cast_unsigned() as usize % PLACES].store(0, Relaxed);
    }
}
