//! Beginning to log a file.

use super::descriptors::{self, Kind};
use super::logged::{self, Logged, file_at};
use super::session::Session;
use super::{ADOPTER, ADOPTION, HAS_STOPPED, find_session, forks, is_named};
use crate::mark;
use crate::messages::{ADOPT, ADOPTED, REFUSED};
use crate::state::{HELD, MAX_FILES, TOUCHED};
use core::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use logged::mapped::EnteringFile;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file};

/// Begins to log a candidate. Returns the result of the sync that this includes; `None`: the file is neither
/// logged nor synced.
pub fn adopt(fd: ProgramFd) -> Option<Result<(), Errno>> {
    let _adoption = ADOPTION.try_lock().ok()?;
    ADOPTER.store(std::process::id(), Relaxed);
    if HAS_STOPPED.load(Relaxed) {
        descriptors::set(fd, Kind::Refused);
        return None;
    }
    let now_ms = clock::now_ms();
    if descriptors::is_paused(fd, now_ms) {
        return None;
    }
    let session = find_session()?;
    let Some((status, identity)) = eligible_file(session, fd) else {
        descriptors::pause(fd, now_ms);
        return None;
    };
    // `TOUCHED` may be left over from a child that wrote to an earlier file of this slot.
    let has_room = |slot: &usize| session.slot(*slot).flags.load(Acquire) & !TOUCHED == 0;
    let slot = (0..MAX_FILES).find(|slot| has_room(slot) && file_at(*slot).is_free())?;
    let tracked = file_at(slot);
    let mut inner = tracked.lock();
    let entering = match session.mapped() {
        Some(log) => Some(tracked.enter_mapped(log, fd, session.slot(slot), &status, &identity)?),
        None => None,
    };
    tracked.begin(file::flags(fd).is_ok_and(|flags| flags & libc::O_APPEND != 0));
    if !descriptors::adopt(fd, slot, forks::has_others) {
        tracked.end(slot, Kind::Candidate);
        descriptors::pause(fd, now_ms);
        return None;
    }
    session.slot(slot).flags.store(HELD, Release);
    let registration = entering.as_ref().map_or([0; 2], EnteringFile::words);
    match session.request_with_file(&[ADOPT, slot as u64, registration[0], registration[1]], Some(fd)) {
        Ok([ADOPTED, error, ..]) => {
            *inner = Some(Logged::new(status, identity));
            if let Some(mut entering) = entering {
                entering.finish(fd, session.slot(slot));
                drop(entering);
                // A child that has announced its use meanwhile may not have found the keeper's lease.
                if forks::has_others(descriptors::opened_at(fd)) {
                    let left = tracked.leave_mapped(fd, &mut inner, true);
                    descriptors::pause(fd, now_ms);
                    return left.err().map(Err);
                }
            }
            Some(if error == 0 { Ok(()) } else { Err(Errno(error as i32)) })
        }
        refused => {
            // Another process has the file, or the path has changed; both may be temporary.
            tracked.end(slot, Kind::Candidate);
            descriptors::pause(fd, now_ms);
            session.slot(slot).clear();
            // A third word says that the keeper's sync failed, whose error the kernel reports once per open file.
            match refused {
                Ok([REFUSED, errno, 1, ..]) => Some(Err(Errno(errno as i32))),
                _ => None,
            }
        }
    }
}

/// Returns the status and identity of a file that can be logged.
fn eligible_file(session: &Session, fd: ProgramFd) -> Option<(file::Status, crate::layout::Identity)> {
    let status = file::status(fd).ok().filter(|status| status.is_regular() && status.links == 1)?;
    let flags = file::flags(fd).ok()?;
    let is_eligible = flags & (libc::O_DIRECT | libc::O_DSYNC) == 0
        && match session.mapped() {
            Some(log) => logged::mapped::is_eligible(log, fd, &status),
            None => mark::supports_logging(fd),
        };
    let identity = mark::identity(fd, &status).filter(|identity| is_named(&identity.path))?;
    is_eligible.then_some((status, identity))
}
