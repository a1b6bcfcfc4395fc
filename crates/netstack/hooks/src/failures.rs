//! POLLERR for failed connections: a UNIX socket only hangs up, so each reported hang-up is checked.
//!
//! Epoll reports the program's data and not the descriptor, so registrations are recorded, in a lossy hash
//! table: a program must handle a hang-up without POLLERR anyway, and a receive then returns the error.

use super::service::{client, is_on};
use super::socket_note::SocketNote;
use core::ffi::{c_int, c_short};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};
use uncopy_interpose::{entry, slots};
use uncopy_net::state_table::ConnectionState;
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};
use uncopy_sys::errno;

slots! {
    POLL = c"poll": unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    PPOLL = c"ppoll": unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    POLL_CHK = c"__poll_chk": unsafe extern "C" fn(*mut pollfd, nfds_t, c_int, usize) -> c_int;
    PPOLL_CHK = c"__ppoll_chk": unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, usize) -> c_int;
    EPOLL_WAIT = c"epoll_wait": unsafe extern "C" fn(ProgramFd, *mut epoll_event, c_int, c_int) -> c_int;
    EPOLL_PWAIT = c"epoll_pwait": unsafe extern "C" fn(ProgramFd, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
}

const MAX: usize = 4096;

/// A registration with epoll. A reader of two halves from different registrations gets a wrong descriptor,
/// whose state then decides.
struct Registration {
    data: AtomicU64,
    /// Number of the epoll in the high half, and of the descriptor in the low one; 0: free.
    descriptors: AtomicU64,
}

static REGISTRATIONS: [Registration; MAX] =
    [const { Registration { data: AtomicU64::new(0), descriptors: AtomicU64::new(0) } }; MAX];

fn slot(epoll: ProgramFd, data: u64) -> &'static Registration {
    // Fibonacci hashing: the data are usually descriptors or addresses.
    let hash = (data ^ u64::from(epoll.number().cast_unsigned()) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &REGISTRATIONS[(hash >> 52) as usize % MAX]
}

/// Records a registration.
///
/// # Safety
/// epoll_ctl(2) has succeeded with these arguments.
pub unsafe fn on_epoll_ctl(epoll: ProgramFd, operation: c_int, fd: ProgramFd, event: *const epoll_event) {
    if operation == libc::EPOLL_CTL_DEL {
        return;
    }
    // SAFETY: epoll_ctl(2) has just read `event`, as all its operations but EPOLL_CTL_DEL do.
    let data = unsafe { event.read_unaligned() }.u64;
    let registration = slot(epoll, data);
    registration.data.store(data, Relaxed);
    registration.descriptors.store(
        u64::from(epoll.number().cast_unsigned()) << 32 | u64::from(fd.number().cast_unsigned()),
        Relaxed,
    );
}

fn registered(epoll: ProgramFd, data: u64) -> Option<ProgramFd> {
    let registration = slot(epoll, data);
    let descriptors = registration.descriptors.load(Relaxed);
    let is_it = descriptors != 0
        && (descriptors >> 32) as u32 == epoll.number().cast_unsigned()
        && registration.data.load(Relaxed) == data;
    is_it.then_some(ProgramFd::new(descriptors as u32 as c_int))
}

/// Returns whether a connection has an error that was not reported to the program yet.
#[cold]
fn has_error(fd: ProgramFd) -> bool {
    let _errno = errno::SavedErrno::new();
    let Some(client) = client() else { return false };
    let condition = client.connection(fd).and_then(|connection| client.connection_state(&connection));
    matches!(condition, Some(ConnectionState::Failed(_))) && !SocketNote::load(fd).is_error_reported
}

/// Adds POLLERR to the results of poll(2).
///
/// # Safety
/// poll(2) has returned `done` for `count` elements at `fds`.
unsafe fn add_poll_errors(fds: *mut pollfd, count: nfds_t, done: c_int) -> c_int {
    if done > 0 {
        for at in 0..count as usize {
            // SAFETY: poll(2) has succeeded, so all `count` elements at `fds` can be written, and `at` is below
            // `count`.
            let found = unsafe { &mut *fds.add(at) };
            if found.revents & (libc::POLLHUP | libc::POLLERR) == libc::POLLHUP
                && has_error(ProgramFd::new(found.fd))
            {
                found.revents |= libc::POLLERR as c_short;
            }
        }
    }
    done
}

/// Adds EPOLLERR to the results of epoll_wait(2).
///
/// # Safety
/// epoll_wait(2) has returned `done` for the buffer `events`.
unsafe fn add_epoll_errors(epoll: ProgramFd, events: *mut epoll_event, done: c_int) -> c_int {
    const HUP: u32 = libc::EPOLLHUP.cast_unsigned();
    const ERR: u32 = libc::EPOLLERR.cast_unsigned();
    for at in 0..usize::try_from(done).unwrap_or(0) {
        // SAFETY: epoll_wait(2) has just written `done` elements, and `at` is below that; the accesses are
        // unaligned because `epoll_event` is packed.
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

entry!(poll POLL (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int, is_on(), {
    add_poll_errors(fds, count, POLL.call()(fds, count, timeout))
});

entry!(ppoll PPOLL
(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int, is_on(), {
    add_poll_errors(fds, count, PPOLL.call()(fds, count, timeout, mask))
});

entry!(__poll_chk POLL_CHK
(fds: *mut pollfd, count: nfds_t, timeout: c_int, room_bytes: usize) -> c_int, is_on(), {
    add_poll_errors(fds, count, POLL_CHK.call()(fds, count, timeout, room_bytes))
});

entry!(__ppoll_chk PPOLL_CHK
(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room_bytes: usize) -> c_int,
is_on(), {
    add_poll_errors(fds, count, PPOLL_CHK.call()(fds, count, timeout, mask, room_bytes))
});

entry!(epoll_wait EPOLL_WAIT
(epoll: ProgramFd, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int, is_on(), {
    add_epoll_errors(epoll, events, EPOLL_WAIT.call()(epoll, events, max, timeout))
});

entry!(epoll_pwait EPOLL_PWAIT
(epoll: ProgramFd, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int,
is_on(), {
    add_epoll_errors(epoll, events, EPOLL_PWAIT.call()(epoll, events, max, timeout, mask))
});

#[cfg(test)]
mod tests {
    use super::*;

    const fn fd(number: c_int) -> ProgramFd {
        ProgramFd::new(number)
    }

    #[test]
    fn what_was_registered_last_is_known_by_its_epoll_and_what_it_tells() {
        let event = |data| epoll_event { events: 1, u64: data };
        // SAFETY: the events are local values; EPOLL_CTL_DEL reads none.
        unsafe {
            on_epoll_ctl(fd(7), libc::EPOLL_CTL_ADD, fd(9), &event(0xffff_0000_1234));
            on_epoll_ctl(fd(8), libc::EPOLL_CTL_MOD, fd(10), &event(5));
            on_epoll_ctl(fd(8), libc::EPOLL_CTL_DEL, fd(10), core::ptr::null());
        }
        assert_eq!(registered(fd(7), 0xffff_0000_1234), Some(fd(9)));
        assert_eq!(
            (registered(fd(8), 5), registered(fd(7), 5), registered(fd(8), 6)),
            (Some(fd(10)), None, None)
        );
    }
}
