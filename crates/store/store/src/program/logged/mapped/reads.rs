//! Reads of files in the mapped log, from which the kernel lacks the last records.

use super::super::{Place, file_at};
use super::{MappedFile, leave};
use crate::lock;
use crate::messages::MAKE_ROOM;
use crate::program::descriptors::{self, Kind};
use crate::program::session;
use crate::program::session::Session;
use crate::state::FileSlot;
use core::sync::atomic::{Ordering::Acquire, Ordering::Release};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::{self, SavedErrno};
use uncopy_sys::{clock, file};

/// Number of reads that wait for a digest, after which the kernel has the file for a while: each makes the file durable.
const MAX_WAITS: u32 = 16;

/// Preparation of a read.
enum Before {
    /// Nothing: the kernel makes the read, at its offset.
    Nothing,
    /// Wait for a digest, and look again.
    Digest,
    /// Take the file out of the log. True: and keep it out for a while.
    Leave(bool),
    /// Nothing more: the read was made, with this result.
    Made(isize),
}

/// Reads from a file that may be in the mapped log by `real`, when the kernel has all that the program has written.
pub fn read_mapped(fd: ProgramFd, at: Place, real: &dyn Fn() -> isize) -> isize {
    loop {
        let (Kind::Logged(slot), Some(session)) = (descriptors::kind(fd), session()) else { return real() };
        match prepare(session, fd, slot, at, real) {
            Before::Nothing => return real(),
            Before::Made(result) => return result,
            Before::Digest => {
                let _errno = SavedErrno::new();
                // Without a keeper the file leaves the log at the next look.
                let _ = session.request(&[MAKE_ROOM]);
            }
            Before::Leave(is_paused) => {
                if let Err(why) = leave(fd) {
                    errno::set(why.0);
                    return -1;
                }
                if is_paused {
                    descriptors::pause(fd, clock::now_ms());
                }
                // Counted, so that no other thread's sync takes the file into the log again before the read.
                if let Some(_outside) = descriptors::begin_write(fd) {
                    return real();
                }
            }
        }
    }
}

fn prepare(session: &Session, fd: ProgramFd, slot: usize, at: Place, real: &dyn Fn() -> isize) -> Before {
    let Some(log) = session.mapped() else { return Before::Nothing };
    let mut mapped = lock(&file_at(slot).mapped);
    let known = match mapped.as_mut() {
        Some(known) if descriptors::kind(fd) == Kind::Logged(slot) => known,
        // It has left meanwhile.
        _ => return Before::Leave(false),
    };
    match file::status(fd) {
        Ok(now) if known.is_named_by(fd, &now) => {}
        _ => return Before::Nothing,
    }
    let state = session.slot(slot);
    if !state.is_usable() || session.has_lost_keeper() {
        return Before::Leave(false);
    }
    if known.end > log.fill_level().tail {
        known.waits += 1;
        return if known.waits > MAX_WAITS { Before::Leave(true) } else { Before::Digest };
    }
    match at {
        Place::Offset(_) => Before::Nothing,
        Place::Position => read_at_position(fd, state, known, real),
    }
}

/// Reads at the file offset, which the kernel does not know. The caller has the file's lock, which is taken as a token.
fn read_at_position(fd: ProgramFd, state: &FileSlot, _lock: &MappedFile, real: &dyn Fn() -> isize) -> Before {
    // The keeper takes the offset over after the end of all appends.
    let Some(_append) = state.begin_append() else { return Before::Leave(false) };
    if file::set_position(fd, state.position.load(Acquire)).is_err() {
        return Before::Leave(false);
    }
    let result = real();
    let _errno = SavedErrno::new();
    if let Ok(now) = file::position(fd) {
        state.position.store(now, Release);
    }
    Before::Made(result)
}
