//! Lanes before changes of descriptors, of memory or of the process's rights.

use crate::startup::{forbid_start, is_on, switch_off};
use uncopy_fdtable::{self as fdtable, FdCallbacks, Feature, MAX_TRACKED_FDS};
use uncopy_lanes::handover;
use uncopy_lanes::process::{self, process};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::owner::is_owner;
use uncopy_sys::presence::Section;

/// Stops references at a descriptor.
pub fn end(fd: ProgramFd) {
    let _errno = errno::SavedErrno::new();
    if let Some(_section) = Section::enter() {
        process::end(fd);
    }
}

/// Callbacks for changes of the descriptors of streams.
pub static FD_CALLBACKS: FdCallbacks = FdCallbacks {
    // Descriptors with higher numbers are never lanes.
    on_close: |fd| {
        if fd.index().is_some_and(|index| index < MAX_TRACKED_FDS) {
            in_section(|| process::closed(fd));
        }
    },
    on_dup: |from, to| {
        if fdtable::is_tracked(Feature::Lanes, from) {
            in_section(|| process::duplicated(from, to));
        }
    },
    on_pass: |fd| with_errno_saved(|| handover::hand_over(fd)),
};

fn in_section(work: impl FnOnce()) {
    // A vfork child has its own descriptors, although it shares this memory.
    if is_on()
        && is_owner()
        && let Some(_section) = Section::enter()
    {
        let _errno = errno::SavedErrno::new();
        work();
    }
}

/// Stops trusting copies of twin memory in a range that changes without the write protection noticing.
pub fn invalidate_copies(address: usize, len_bytes: usize) {
    if is_on()
        && uncopy_twin::overlaps(address, len_bytes)
        && let Some(process) = process()
    {
        let _errno = errno::SavedErrno::new();
        let _critical = Critical::enter();
        process.forget_stamps();
    }
}

/// Runs `work`, which is not the engine's, with `errno` saved.
fn with_errno_saved(work: impl FnOnce()) {
    if is_on() {
        let _errno = errno::SavedErrno::new();
        // If a fork takes too long, `work` runs outside a section: nobody waits for what it needs.
        let _section = Section::enter();
        work();
    }
}

/// Hands over streams before this process, or a vfork child that shares its memory, executes another program.
pub fn before_exec() {
    with_errno_saved(|| handover::before_exec(is_owner()));
}

/// Hands over streams before the program spawns another by a libc function without a hooked exec.
pub fn before_spawn() {
    with_errno_saved(handover::before_spawn);
}

/// Stops references for good. No stream is examined any more.
pub fn end_all() {
    with_errno_saved(handover::end_all);
    switch_off();
}

/// Ends all lanes and all shared memory before the process changes its user or loses rights. What was sent to this
/// process can still be received.
pub fn before_privilege_change() {
    with_errno_saved(|| {
        forbid_start();
        handover::detach();
    });
}

/// Ends all lanes as [`before_privilege_change`] does, if this process has started them.
pub fn end_if_started() {
    if process().is_some() {
        before_privilege_change();
    }
}
