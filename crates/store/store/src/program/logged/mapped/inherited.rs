//! Files of the parent's mapped log, in a forked child.

use crate::program::descriptors::{self, Kind};
use crate::program::session::MAX_WAIT_MS;
use crate::program::{forks, inherited_session, touch};
use crate::state::{HELD, MAX_FILES, SETTLED};
use core::sync::atomic::Ordering::Acquire;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file};

/// Has the parent's keeper take an inherited file out of the parent's mapped log, before this process uses it. The
/// parent does not log the file again while this process lives.
pub fn settle_inherited(fd: ProgramFd) {
    let Kind::Inherited(slot) = descriptors::kind(fd) else { return };
    let Some(session) = inherited_session().filter(|session| session.is_mapped()) else { return };
    let until_ms = clock::now_ms() + MAX_WAIT_MS;
    // Announced before the lease is looked at: the parent's keeper takes the lease, and then the parent looks for
    // announcements.
    forks::pass_on(descriptors::opened_at(fd));
    let slots = if slot == descriptors::NO_SLOT {
        // Breaks a lease that the keeper has taken meanwhile. Without permission to open the file, all files of the
        // parent leave its log.
        match wait_for_lease(fd, until_ms) {
            Ok(()) => 0..0,
            Err(_) => 0..MAX_FILES,
        }
    } else {
        // The flag alone suffices, but the keeper looks at it only from time to time.
        slot..slot + 1
    };
    for slot in slots {
        touch(slot, 0);
        let _ = file::reopen(fd, libc::O_WRONLY | libc::O_NONBLOCK);
        let flags = &session.slot(slot).flags;
        while flags.load(Acquire) & (HELD | SETTLED) == HELD && clock::now_ms() < until_ms {
            clock::sleep_10_ms();
        }
    }
    descriptors::set(fd, Kind::Refused);
}

/// Waits until no lease keeps others from writing to a file.
fn wait_for_lease(fd: ProgramFd, until_ms: u64) -> Result<(), Errno> {
    loop {
        match file::reopen(fd, libc::O_WRONLY | libc::O_NONBLOCK) {
            Err(Errno::EAGAIN) if clock::now_ms() < until_ms => clock::sleep_10_ms(),
            opened => return opened.map(drop),
        }
    }
}
