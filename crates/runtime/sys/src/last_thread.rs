//! Detection of the end of the program's last thread by threads of the library.
//!
//! A process ends when its last thread does. A thread that ends by itself (a direct `exit` system
//! call, a seccomp filter that kills threads, strict mode) runs no code of the library, whose
//! threads therefore have to notice. The program's threads share one table of descriptors, and the
//! library's have their own: the kernel closes the program's table with the last thread that uses
//! it. So one end of a pipe is in the program's table, and the library's thread polls the other end
//! for a hang-up, together with its other descriptors. Nothing wakes it before that.
//!
//! ```text
//! program's table: held ───────────► watched :table of the library's thread
//!                    closed by the program ──► is a thread left? (/proc) ──► yes: query /proc again, finally once a second
//!                    closed by its end     ──►                          ──► no: the library's thread ends
//! ```
//!
//! The process's exit status is the same as without the library, see [`end_process`].

use crate::call::syscall;
use crate::descriptor::{Descriptor, OwnFd, OwnSlot, ProgramFd};
use crate::fd::duplicate_high;
use crate::filter;
use crate::lifeline::Lifeline;
use crate::thread;
pub use crate::thread::Role;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Interval of queries of `/proc` without a pipe, milliseconds.
const QUERY_INTERVAL_MS: i32 = 1000;

/// Both ends of a pipe in the program's table.
struct Ends {
    held: OwnSlot,
    watched: OwnSlot,
}

static ENDS: [Ends; 3] = [const { Ends { held: OwnSlot::empty(), watched: OwnSlot::empty() } }; 3];

/// Whether another process uses the program's table (CLONE_FILES), so that this one's end does not close it.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Notes that a process is created that shares the program's table. Later threads query `/proc`.
pub fn note_shared_table() {
    IS_SHARED.store(true, Relaxed);
}

/// Creates the pipe, before the library's thread is started. One start at a time for each role.
pub(crate) fn prepare(role: Role) {
    if cfg!(loom) || IS_SHARED.load(Relaxed) {
        return;
    }
    let (held, watched) = Lifeline::make().ok().map(|line| (line.held, line.watched)).unzip();
    let ends = &ENDS[role as usize];
    drop((ends.held.replace(held), ends.watched.replace(watched)));
}

/// Completes the start of the library's thread, successful or not: removes the watched end from the
/// program's table, and the held end if the thread has no table of its own, which makes it useless.
pub(crate) fn finish_start(role: Role, is_isolated: bool) {
    let ends = &ENDS[role as usize];
    drop(ends.watched.take());
    if !is_isolated {
        drop(ends.held.take());
    }
}

/// Returns the watched end, for the library's thread to keep; -1 if there is none.
pub(crate) fn watched(role: Role) -> i32 {
    ENDS[role as usize].watched.get().map_or(-1, Descriptor::number)
}

/// Notes that the library's thread has ended while the program continues.
pub fn forget(role: Role) {
    thread::forget(role);
    drop(ENDS[role as usize].held.take());
}

/// Resets the state in a forked child, which has no such thread. `has_own_descriptors` is false if
/// the child shares its parent's table.
pub fn reset_in_child(role: Role, has_own_descriptors: bool) {
    thread::forget(role);
    thread::reset_first_thread();
    WAS_OUTLIVED.store(false, Relaxed);
    if let Some(held) = ENDS[role as usize].held.take() {
        held.close_in_child(has_own_descriptors);
    }
    if has_own_descriptors {
        IS_SHARED.store(false, Relaxed);
    }
}

/// Returns the descriptors in the program's table.
pub fn descriptors() -> impl Iterator<Item = ProgramFd> {
    ENDS.iter().filter_map(|ends| ends.held.as_program())
}

/// Moves one of these descriptors to another number, because the program is about to use its
/// number. False if `fd` is none of them.
pub fn relocate_descriptor(fd: ProgramFd) -> bool {
    let Some(ends) = ENDS.iter().find(|ends| ends.held.as_program() == Some(fd)) else { return false };
    // If no other number is free, the pipe hangs up, and `/proc` is queried.
    drop(ends.held.replace(duplicate_high(fd)));
    true
}

/// State of a library's thread that watches for the end of the program's threads.
#[derive(Debug)]
pub struct LastThread {
    /// The watched end in this thread's table; `None` if `/proc` is queried instead.
    watched: Option<OwnFd>,
    /// Time of the next query; `None` for never.
    due_ms: Option<u64>,
    /// Interval until the query after that, milliseconds.
    interval_ms: i32,
}

impl LastThread {
    /// Returns the state for the calling thread of the library, which has a table of its own with
    /// the watched end, or shares the program's.
    pub(crate) fn new(role: Role, is_isolated: bool) -> Self {
        let watched = Some(watched(role)).filter(|number| is_isolated && *number >= 0).map(OwnFd::new);
        let may_query = watched.is_none() && may_query();
        Self {
            watched,
            due_ms: may_query.then(|| thread::now_ms() + QUERY_INTERVAL_MS as u64),
            interval_ms: QUERY_INTERVAL_MS,
        }
    }

    /// The descriptor to poll, if there is one.
    #[must_use]
    pub const fn fd(&self) -> Option<&OwnFd> {
        self.watched.as_ref()
    }

    /// Returns the timeout to use if other work asks for `wanted_ms` (-1: without limit).
    #[must_use]
    pub const fn timeout_ms(&self, wanted_ms: i32) -> i32 {
        let is_sooner = wanted_ms >= 0 && wanted_ms < self.interval_ms;
        if self.due_ms.is_none() || is_sooner { wanted_ms } else { self.interval_ms }
    }

    /// Whether no thread of the program is left. `is_ready` tells that the descriptor was readable.
    pub fn has_ended(&mut self, is_ready: bool) -> bool {
        if is_ready && self.watched.is_some() {
            // A thread closes its descriptors shortly before it disappears: the first queries follow quickly.
            self.watched = None;
            (self.due_ms, self.interval_ms) = (Some(0), 1);
        }
        let Some(due_ms) = self.due_ms else { return false };
        let now_ms = thread::now_ms();
        if now_ms < due_ms {
            return false;
        }
        if !thread::may_have_other_threads() {
            return true;
        }
        let goes_on = self.interval_ms < QUERY_INTERVAL_MS || may_query();
        self.due_ms = goes_on.then_some(now_ms + self.interval_ms as u64);
        self.interval_ms = (2 * self.interval_ms).min(QUERY_INTERVAL_MS);
        false
    }
}

/// Whether `/proc` may be queried while a thread of the program may exist: not under a seccomp
/// filter that would kill the process.
fn may_query() -> bool {
    !cfg!(loom) && filter::allows(filter::CallGroup::Proc)
}

/// Whether the process's first thread has ended by itself while others of the program lived.
static WAS_OUTLIVED: AtomicBool = AtomicBool::new(false);

/// Notes that the process's first thread ends by itself while others of the program live.
pub fn note_first_thread_ended() {
    WAS_OUTLIVED.store(true, Relaxed);
}

/// Whether every thread of the library detects the program's end.
#[must_use]
pub fn is_watched() -> bool {
    let roles = [Role::Faults, Role::Twin, Role::Lanes];
    !IS_SHARED.load(Relaxed)
        && roles.into_iter().all(|role| !thread::has(role) || ENDS[role as usize].held.get().is_some())
}

/// Ends the calling thread of the library, and with it the process, because no thread of the program is left.
///
/// A process's exit status is that of its last thread, before Linux 6.0 that of its first. So this
/// thread exits with the status of the program's last thread: that of the first one, or 0 if others
/// were seen to outlive it, since those usually exit with 0.
pub fn end_process() -> ! {
    let status = if WAS_OUTLIVED.load(Relaxed) { 0 } else { first_thread_status() };
    let signal = status & 0x7F;
    if signal != 0 {
        kill_by(signal);
    }
    loop {
        // SAFETY: exit(2) ends this thread alone, without running the program's exit handlers as libc would.
        unsafe { syscall!(libc::SYS_exit, status >> 8 & 0xFF) };
    }
}

/// Returns the first thread's wait status, as in wait(2); 0 if unknown. That thread stays in the
/// list of threads until the process is gone.
fn first_thread_status() -> i32 {
    // Room for 52 numbers of at most 20 digits, of which the status is the last (proc_pid_stat(5)).
    let mut text = [0u8; 52 * 21 + 64];
    let got_bytes = crate::file::read_start(c"/proc/self/stat", &mut text).unwrap_or(0);
    let line = core::str::from_utf8(&text[..got_bytes]).unwrap_or_default();
    let behind_name = line.rsplit_once(')').map_or("", |(_, rest)| rest);
    let status = behind_name.split_ascii_whitespace().nth(52 - 3);
    status.and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Kills the process by a signal, as the kernel does after a fault: no handler of the program runs.
fn kill_by(signal: i32) {
    let (default, none) = ([0usize; 4], 0u64);
    // SAFETY: `default` is a kernel sigaction and `none` a kernel signal set, which live through
    // the calls; tgkill(2) takes integers.
    unsafe {
        syscall!(libc::SYS_rt_sigaction, signal, default.as_ptr(), 0, 8);
        syscall!(libc::SYS_tgkill, std::process::id(), crate::lock::thread_id(), signal);
        syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_thread_that_lives_is_none() {
        assert_eq!(first_thread_status(), 0);
    }

    #[test]
    fn a_descriptor_of_these_gets_another_number() {
        prepare(Role::Twin);
        finish_start(Role::Twin, true);
        let number = || ENDS[Role::Twin as usize].held.as_program();
        let held = number().expect("a pipe was made");
        assert!(descriptors().any(|fd| fd == held));
        assert!(relocate_descriptor(held));
        let other = number().expect("it is still there");
        assert!(other != held);
        assert!(!relocate_descriptor(held));
        reset_in_child(Role::Twin, true);
        assert_eq!((number(), crate::fd::closes_on_exec(other)), (None, None));
    }

    #[test]
    fn a_pipe_that_hangs_up_while_threads_live_is_not_believed() {
        let line = Lifeline::make().expect("a pipe");
        let mut last_thread =
            LastThread { watched: Some(line.watched), due_ms: None, interval_ms: QUERY_INTERVAL_MS };
        drop(line.held);
        let stop = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| stop.wait());
            assert!(!last_thread.has_ended(true));
            stop.wait();
        });
        assert_eq!(last_thread.fd(), None);
        assert!((1..QUERY_INTERVAL_MS).contains(&last_thread.timeout_ms(-1)), "it is asked again soon");
        assert_eq!(last_thread.timeout_ms(0), 0);
    }
}
