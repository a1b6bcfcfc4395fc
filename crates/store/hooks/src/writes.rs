//! Writes to files that are logged or may be.

use crate::cancellation;
use crate::counts::count_append;
use crate::leaving::settle;
use crate::optimistic::{self, ReceivedSegments};
use core::cell::Cell;
use libc::ssize_t;
use uncopy_engine::call::output::{Output, is_candidate};
use uncopy_store::program::received::Received;
use uncopy_store::program::{self as store, Appended, OngoingWrite, Place};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;

type Real<'a> = &'a dyn Fn(&[Part]) -> ssize_t;

/// Writes to a file: by `passthrough` if it is not logged, else by `real`, capturing the bytes for the next
/// sync.
#[inline(always)]
pub fn write(
    fd: ProgramFd,
    at: Place,
    parts: &[Part],
    real: Real<'_>,
    passthrough: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if store::is_in_log(fd) {
        cancellation::test();
    }
    settle(fd);
    let errno_before = errno::get();
    // No handler of the program may write to the file on top of this thread while it has the file's lock.
    let critical = Critical::enter_briefly();
    match store::begin_write(fd) {
        OngoingWrite::Plain => {
            drop(critical);
            passthrough()
        }
        OngoingWrite::Counted(counted) => {
            drop(critical);
            let written = passthrough();
            counted.note_result(written);
            written
        }
        OngoingWrite::Logged(write) => {
            let written = write_logged(fd, at, parts, real, write);
            let errno_after = errno::get();
            drop(critical);
            errno::set(errno_after);
            written
        }
        OngoingWrite::Mapped(write) => {
            let (appended, referenced_bytes) = append(fd, at, parts, write);
            drop(critical);
            match appended {
                Appended::Written(len_bytes) => {
                    count_append(len_bytes, referenced_bytes);
                    errno::set(errno_before);
                    len_bytes as ssize_t
                }
                _ => write_mapped(fd, at, parts, real),
            }
        }
    }
}

#[cold]
fn write_logged(
    fd: ProgramFd,
    at: Place,
    parts: &[Part],
    real: Real<'_>,
    write: store::LoggedWrite,
) -> ssize_t {
    uninterrupted(|| write_under(fd, at, parts, real, write))
}

/// Appends a write to a mapped log, without a call that a signal could interrupt.
fn append(fd: ProgramFd, at: Place, parts: &[Part], mut write: store::MappedWrite) -> (Appended, usize) {
    let appended = Cell::new(Appended::Leave);
    let call = |parts: &[Part], received: Option<&dyn Received>| {
        appended.set(write.append(at, parts, received));
        if let Appended::Written(len_bytes) = appended.get() { len_bytes as ssize_t } else { -1 }
    };
    write_gathered(fd, parts, call, optimistic::note_logged);
    (appended.get(), write.referenced_bytes())
}

/// Writes to a file in a mapped log that has no room for the write, or that the file has to leave.
#[cold]
fn write_mapped(fd: ProgramFd, at: Place, parts: &[Part], real: Real<'_>) -> ssize_t {
    let mut appended_bytes = None;
    let written = uninterrupted(|| {
        let call = |parts: &[Part], _: Option<&dyn Received>| {
            let result = store::write_mapped(fd, at, parts, real);
            if result.is_in_log {
                appended_bytes = Some(result.written as usize);
            }
            result.written
        };
        write_gathered(fd, parts, call, optimistic::note_logged)
    });
    if let Some(bytes) = appended_bytes {
        let _errno = errno::SavedErrno::new();
        count_append(bytes, 0);
    }
    written
}

/// Makes a call without interruption by signals or cancellation, and keeps the errno that it leaves: a critical section
/// restores the one that it began with.
pub fn uninterrupted(call: impl FnOnce() -> ssize_t) -> ssize_t {
    let (result, errno_after) = {
        let _critical = Critical::enter();
        (cancellation::deferred(call), errno::get())
    };
    errno::set(errno_after);
    result
}

fn write_under(
    fd: ProgramFd,
    at: Place,
    parts: &[Part],
    real: Real<'_>,
    write: store::LoggedWrite,
) -> ssize_t {
    let call = |parts: &[Part], _: Option<&dyn Received>| {
        let written = real(parts);
        if let Ok(len_bytes) = usize::try_from(written) {
            let _errno = errno::SavedErrno::new();
            // SAFETY: the kernel has just read `len_bytes` bytes of `parts`, which are the program's buffers or
            // pages that `output` holds until `finish`.
            unsafe { write.finish(at, parts, len_bytes) };
        }
        written
    };
    write_gathered(fd, parts, call, |_, _| {})
}

/// Calls `call` with the parts' bytes where they lie, and with what arrived in the service's memory: views of the engine
/// are gathered, and `note` is told of them.
fn write_gathered(
    fd: ProgramFd,
    parts: &[Part],
    call: impl FnOnce(&[Part], Option<&dyn Received>) -> ssize_t,
    note: impl FnOnce(&Output, usize),
) -> ssize_t {
    let gathered = if is_candidate(parts) { Output::begin(fd, parts) } else { None };
    let Some(output) = gathered else { return call(parts, None) };
    let received = ReceivedSegments::of(&output);
    let received = received.as_ref().map(|received| -> &dyn Received { received });
    let written = output.call(|parts| call(parts, received));
    match usize::try_from(written) {
        Ok(len_bytes) => {
            note(&output, len_bytes);
            output.finish(len_bytes);
        }
        Err(_) => drop(output),
    }
    written
}
