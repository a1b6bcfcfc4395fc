//! Descriptors that epoll watches before it is decided what they are (nginx does so before it connects). Epoll watches the open file,
//! so when another one comes in its place it is told again.

use super::client;
use crate::exit;
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use libc::epoll_event;
use smallvec::SmallVec;
use uncopy_net::client::Known;
use uncopy_sys::errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::lock::Critical;
use uncopy_sys::tcp;

/// Registrations that are remembered, at most: programs connect at once, so few are.
const MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registration {
    fd: c_int,
    epoll: c_int,
    events: u32,
    data: u64,
}

struct Table {
    count: usize,
    all: [Registration; MAX],
}

static TABLE: Guarded<Table> = Guarded::new(Table::new());
/// How many are in it, for those who do not want to lock it.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Table {
    const fn new() -> Self {
        Self { count: 0, all: [Registration { fd: -1, epoll: -1, events: 0, data: 0 }; MAX] }
    }

    fn used(&mut self) -> &mut [Registration] {
        &mut self.all[..self.count.min(MAX)]
    }

    fn find(&mut self, fd: c_int, epoll: c_int) -> Option<&mut Registration> {
        self.used().iter_mut().find(|found| found.fd == fd && found.epoll == epoll)
    }

    fn add(&mut self, registration: Registration) {
        if let Some(found) = self.find(registration.fd, registration.epoll) {
            *found = registration;
        } else if let Some(slot) = self.all.get_mut(self.count) {
            *slot = registration;
            self.count += 1;
        }
    }

    fn remove(&mut self, is_gone: impl Fn(&Registration) -> bool) {
        let mut at = 0;
        while at < self.count.min(MAX) {
            if is_gone(&self.all[at]) {
                self.count -= 1;
                self.all[at] = self.all[self.count];
            } else {
                at += 1;
            }
        }
    }
}

fn with_table<T>(work: impl FnOnce(&mut Table) -> T) -> T {
    let _critical = Critical::enter();
    let mut table = TABLE.lock();
    let result = work(&mut table);
    COUNT.store(table.count, Relaxed);
    result
}

/// Whether another open file may come in a descriptor's place.
fn may_be_replaced(fd: c_int) -> bool {
    let ask = |name| tcp::option(fd, libc::SOL_SOCKET, name);
    match ask(libc::SO_DOMAIN) {
        Ok(libc::AF_UNIX) => {
            ask(libc::SO_ACCEPTCONN) == Ok(0)
                && matches!(client().and_then(|client| client.known(fd)), Some(Known::Bound(_)))
        }
        Ok(_) => tcp::undecided(fd).is_some(),
        Err(_) => false,
    }
}

/// Notes what epoll was told.
///
/// # Safety
/// As epoll_ctl, which has taken it.
pub unsafe fn note(epoll: c_int, operation: c_int, fd: c_int, event: *const epoll_event) {
    let _errno = errno::Keep::new();
    match operation {
        libc::EPOLL_CTL_ADD if may_be_replaced(fd) => {
            // SAFETY: the kernel has just read it.
            let event = unsafe { event.read_unaligned() };
            let registration = Registration { fd, epoll, events: event.events, data: event.u64 };
            with_table(|table| table.add(registration));
        }
        libc::EPOLL_CTL_MOD if COUNT.load(Relaxed) != 0 => {
            // SAFETY: as above.
            let event = unsafe { event.read_unaligned() };
            with_table(|table| {
                if let Some(found) = table.find(fd, epoll) {
                    (found.events, found.data) = (event.events, event.u64);
                }
            });
        }
        libc::EPOLL_CTL_DEL if COUNT.load(Relaxed) != 0 => {
            with_table(|table| table.remove(|found| found.fd == fd && found.epoll == epoll));
        }
        _ => {}
    }
}

/// Another open file has come in a descriptor's place: epoll is told. What may still be replaced is remembered.
pub fn renew(fd: c_int) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let _errno = errno::Keep::new();
    let is_last = !may_be_replaced(fd);
    let of_it: SmallVec<[Registration; 4]> = with_table(|table| {
        let found = table.used().iter().filter(|found| found.fd == fd).copied().collect();
        if is_last {
            table.remove(|found| found.fd == fd);
        }
        found
    });
    for Registration { epoll, events, data, .. } in of_it {
        let _ = tcp::watch(epoll, fd, events, data);
    }
}

/// A descriptor is about to be closed.
pub fn closed(fd: c_int) {
    if COUNT.load(Relaxed) != 0 && exit::is_owner() {
        with_table(|table| table.remove(|found| found.fd == fd || found.epoll == fd));
    }
}

/// Those from `first` to `last` are.
pub fn closed_range(first: u32, last: u32) {
    if COUNT.load(Relaxed) != 0 && exit::is_owner() {
        let is_in = |fd: c_int| u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
        with_table(|table| table.remove(|found| is_in(found.fd) || is_in(found.epoll)));
    }
}

/// In a forked child: a thread that it does not have may have been at work.
pub fn in_child() {
    TABLE.raw().unlock();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_are_found_by_descriptor_and_epoll_and_bounded() {
        let mut table = Table::new();
        let registration = |fd, epoll| Registration { fd, epoll, events: 5, data: fd as u64 };
        for fd in 0..MAX as c_int + 9 {
            table.add(registration(fd, 7));
        }
        assert_eq!(table.count, MAX);
        table.add(Registration { events: 6, ..registration(3, 7) });
        assert_eq!(table.find(3, 7).map(|found| found.events), Some(6));
        assert_eq!(table.find(3, 8), None);
        table.remove(|found| found.fd % 2 == 0);
        assert_eq!(table.count, MAX / 2);
        assert!(table.find(4, 7).is_none() && table.find(5, 7).is_some());
        table.remove(|found| found.epoll == 7);
        assert_eq!(table.count, 0);
    }
}
