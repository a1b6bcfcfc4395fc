//! POLLERR of connections that have failed: a UNIX socket hangs up without it. Whatever hangs up is looked at when poll or epoll tells it.
//!
//! Epoll tells what the program has registered and not the descriptor, so what is registered is noted: in a table that forgets, as an
//! event without POLLERR is one that programs know, too (it hangs up, and receiving says why).

use super::client;
use super::kept::Kept;
use core::ffi::{c_int, c_short};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};
use uncopy_interpose::{entry, slots};
use uncopy_net::board::Condition;
use uncopy_sys::errno;

slots! {
    POLL = c"poll": unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    PPOLL = c"ppoll": unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    POLL_CHK = c"__poll_chk": unsafe extern "C" fn(*mut pollfd, nfds_t, c_int, usize) -> c_int;
    PPOLL_CHK = c"__ppoll_chk": unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, usize) -> c_int;
    EPOLL_WAIT = c"epoll_wait": unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    EPOLL_PWAIT = c"epoll_pwait": unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
}

/// Registrations that are noted, at most.
const MAX: usize = 4096;

/// A registration: what epoll tells, and who has registered it. Both are written one after the other: whoever reads half of one finds a
/// descriptor whose state decides.
struct Noted {
    data: AtomicU64,
    /// The epoll and the descriptor; 0: none.
    place: AtomicU64,
}

static NOTED: [Noted; MAX] = [const { Noted { data: AtomicU64::new(0), place: AtomicU64::new(0) } }; MAX];

fn slot(epoll: c_int, data: u64) -> &'static Noted {
    // Fibonacci hashing: programs register descriptors, or addresses.
    let hash = (data ^ u64::from(epoll.cast_unsigned()) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &NOTED[(hash >> 52) as usize % MAX]
}

/// Epoll was told of a descriptor.
///
/// # Safety
/// As epoll_ctl, which has taken it.
pub unsafe fn note(epoll: c_int, operation: c_int, fd: c_int, event: *const epoll_event) {
    if operation == libc::EPOLL_CTL_DEL {
        return;
    }
    // SAFETY: the kernel has just read it.
    let data = unsafe { event.read_unaligned() }.u64;
    let noted = slot(epoll, data);
    noted.data.store(data, Relaxed);
    noted.place.store(u64::from(epoll.cast_unsigned()) << 32 | u64::from(fd.cast_unsigned()), Relaxed);
}

fn registered(epoll: c_int, data: u64) -> Option<c_int> {
    let noted = slot(epoll, data);
    let place = noted.place.load(Relaxed);
    let is_it =
        place != 0 && (place >> 32) as u32 == epoll.cast_unsigned() && noted.data.load(Relaxed) == data;
    is_it.then_some(place as u32 as c_int)
}

/// Whether a connection has an error that nobody was told.
#[cold]
fn has_error(fd: c_int) -> bool {
    let _errno = errno::Keep::new();
    let Some(client) = client() else { return false };
    let condition = client.connection(fd).and_then(|connection| client.condition(&connection));
    matches!(condition, Some(Condition::Failed(_))) && !Kept::of(fd).is_told
}

/// Adds POLLERR to what poll has told.
///
/// # Safety
/// As poll, which has returned `done`.
unsafe fn polled(fds: *mut pollfd, count: nfds_t, done: c_int) -> c_int {
    if done > 0 {
        for at in 0..count as usize {
            // SAFETY: the kernel has just written to as many.
            let found = unsafe { &mut *fds.add(at) };
            if found.revents & (libc::POLLHUP | libc::POLLERR) == libc::POLLHUP && has_error(found.fd) {
                found.revents |= libc::POLLERR as c_short;
            }
        }
    }
    done
}

/// The same for epoll.
///
/// # Safety
/// As epoll_wait, which has returned `done`.
unsafe fn waited(epoll: c_int, events: *mut epoll_event, done: c_int) -> c_int {
    const HUP: u32 = libc::EPOLLHUP.cast_unsigned();
    const ERR: u32 = libc::EPOLLERR.cast_unsigned();
    for at in 0..usize::try_from(done).unwrap_or(0) {
        // SAFETY: the kernel has just written as many; they are packed.
        unsafe {
            let at = events.add(at);
            let mut event = at.read_unaligned();
            if event.events & (HUP | ERR) == HUP && registered(epoll, event.u64).is_some_and(has_error) {
                event.events |= ERR;
                at.write_unaligned(event);
            }
        }
    }
    done
}

entry!(poll POLL (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int, super::is_on(), {
    polled(fds, count, POLL.call()(fds, count, timeout))
});

entry!(ppoll PPOLL
(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int, super::is_on(), {
    polled(fds, count, PPOLL.call()(fds, count, timeout, mask))
});

entry!(__poll_chk POLL_CHK
(fds: *mut pollfd, count: nfds_t, timeout: c_int, room_bytes: usize) -> c_int, super::is_on(), {
    polled(fds, count, POLL_CHK.call()(fds, count, timeout, room_bytes))
});

entry!(__ppoll_chk PPOLL_CHK
(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room_bytes: usize) -> c_int,
super::is_on(), {
    polled(fds, count, PPOLL_CHK.call()(fds, count, timeout, mask, room_bytes))
});

entry!(epoll_wait EPOLL_WAIT
(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int, super::is_on(), {
    waited(epoll, events, EPOLL_WAIT.call()(epoll, events, max, timeout))
});

entry!(epoll_pwait EPOLL_PWAIT
(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int,
super::is_on(), {
    waited(epoll, events, EPOLL_PWAIT.call()(epoll, events, max, timeout, mask))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_registered_last_is_known_by_its_epoll_and_what_it_tells() {
        let event = |data| epoll_event { events: 1, u64: data };
        // SAFETY: valid events.
        unsafe {
            note(7, libc::EPOLL_CTL_ADD, 9, &event(0xffff_0000_1234));
            note(8, libc::EPOLL_CTL_MOD, 10, &event(5));
            note(8, libc::EPOLL_CTL_DEL, 10, core::ptr::null());
        }
        assert_eq!(registered(7, 0xffff_0000_1234), Some(9));
        assert_eq!((registered(8, 5), registered(7, 5), registered(8, 6)), (Some(10), None, None));
    }
}
