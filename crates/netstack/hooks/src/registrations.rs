//! Registrations with epoll of descriptors whose sockets may still be replaced (nginx registers before it
//! connects). Epoll watches the open file, so the replacement must be registered again.

use super::service::client;
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use libc::epoll_event;
use smallvec::SmallVec;
use uncopy_fdtable::{self as fdtable, FdCallbacks, Feature};
use uncopy_net::client::ServiceSocket;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::lock::Critical;
use uncopy_sys::owner::is_owner;
use uncopy_sys::tcp;

/// Maximum number of stored registrations. Programs connect soon after registering, so there are few.
const MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registration {
    fd: ProgramFd,
    epoll: ProgramFd,
    events: u32,
    data: u64,
}

struct Table {
    count: usize,
    all: [Registration; MAX],
}

static TABLE: Guarded<Table> = Guarded::new(Table::new());
/// Number of registrations in the table, readable without its lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Table {
    const fn new() -> Self {
        let none = Registration { fd: ProgramFd::NONE, epoll: ProgramFd::NONE, events: 0, data: 0 };
        Self { count: 0, all: [none; MAX] }
    }

    fn used(&mut self) -> &mut [Registration] {
        &mut self.all[..self.count.min(MAX)]
    }

    fn find(&mut self, fd: ProgramFd, epoll: ProgramFd) -> Option<&mut Registration> {
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

/// Returns whether a descriptor's open file may be replaced later.
fn may_be_replaced(fd: ProgramFd) -> bool {
    let ask = |name| tcp::option(fd, libc::SOL_SOCKET, name);
    match ask(libc::SO_DOMAIN) {
        Ok(libc::AF_UNIX) => {
            ask(libc::SO_ACCEPTCONN) == Ok(0)
                && matches!(
                    client().and_then(|client| client.service_socket(fd)),
                    Some(ServiceSocket::Bound(_))
                )
        }
        Ok(_) => tcp::unconnected_domain(fd).is_some(),
        Err(_) => false,
    }
}

/// Stores, changes or removes a registration.
///
/// # Safety
/// epoll_ctl(2) has succeeded with these arguments.
pub unsafe fn on_epoll_ctl(epoll: ProgramFd, operation: c_int, fd: ProgramFd, event: *const epoll_event) {
    let _errno = errno::SavedErrno::new();
    match operation {
        libc::EPOLL_CTL_ADD if may_be_replaced(fd) => {
            // SAFETY: epoll_ctl(2) has just read `event` successfully for EPOLL_CTL_ADD.
            let event = unsafe { event.read_unaligned() };
            let registration = Registration { fd, epoll, events: event.events, data: event.u64 };
            with_table(|table| table.add(registration));
            fdtable::track(Feature::Service, fd);
            fdtable::track(Feature::Service, epoll);
        }
        libc::EPOLL_CTL_MOD if COUNT.load(Relaxed) != 0 => {
            // SAFETY: epoll_ctl(2) has just read `event` successfully for EPOLL_CTL_MOD.
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

/// Registers a replaced descriptor again. The registrations are kept if it may be replaced once more.
pub fn reregister(fd: ProgramFd) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let _errno = errno::SavedErrno::new();
    let is_last = !may_be_replaced(fd);
    let of_it: SmallVec<[Registration; 4]> = with_table(|table| {
        let found = table.used().iter().filter(|found| found.fd == fd).copied().collect();
        if is_last {
            table.remove(|found| found.fd == fd);
        }
        found
    });
    for Registration { epoll, events, data, .. } in of_it {
        let _ = tcp::epoll_add(epoll, fd, events, data);
    }
}

/// Callbacks for descriptors that are registered with epoll.
pub static FD_CALLBACKS: FdCallbacks = FdCallbacks {
    on_close: |fd| {
        if COUNT.load(Relaxed) == 0 || !is_owner() {
            return;
        }
        fdtable::untrack(Feature::Service, fd);
        with_table(|table| table.remove(|found| found.fd == fd || found.epoll == fd));
    },
    on_dup: |_, _| {},
    on_pass: |_| {},
};

/// Releases the table's lock in a forked child: a thread that the child lacks may have held it.
pub fn in_child() {
    TABLE.raw().unlock();
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn fd(number: c_int) -> ProgramFd {
        ProgramFd::new(number)
    }

    #[test]
    fn registrations_are_found_by_descriptor_and_epoll_and_bounded() {
        let mut table = Table::new();
        let registration =
            |number, epoll| Registration { fd: fd(number), epoll: fd(epoll), events: 5, data: number as u64 };
        for number in 0..MAX as c_int + 9 {
            table.add(registration(number, 7));
        }
        assert_eq!(table.count, MAX);
        table.add(Registration { events: 6, ..registration(3, 7) });
        assert_eq!(table.find(fd(3), fd(7)).map(|found| found.events), Some(6));
        assert_eq!(table.find(fd(3), fd(8)), None);
        table.remove(|found| found.fd.index().is_some_and(|number| number % 2 == 0));
        assert_eq!(table.count, MAX / 2);
        assert!(table.find(fd(4), fd(7)).is_none() && table.find(fd(5), fd(7)).is_some());
        table.remove(|found| found.epoll == fd(7));
        assert_eq!(table.count, 0);
    }
}
