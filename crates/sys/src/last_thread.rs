//! The end of the program's last thread, as threads of ours learn of it.
//!
//! A process ends when its last thread does. A thread that ends by itself (an `exit` instruction of the program's own, a
//! seccomp filter that kills threads, strict mode) runs no code of ours, so our threads have to notice. The program's
//! threads share one table of descriptors, and ours have tables of their own: the kernel closes the program's table with
//! the last thread that uses it. So one end of a pipe lies in the program's table, and the thread of ours waits for the
//! other end to hang up, together with what it waits for anyway. Nothing wakes it before.
//!
//! ```text
//! program's table: held ───────────► watched :table of the thread of ours
//!                    closed by the program ──► is a thread left? (/proc) ──► yes: /proc is asked again, once a second at last
//!                    closed by its end     ──►                          ──► no: the thread of ours ends
//! ```
//!
//! The process's exit status is the one that it would have had without us, see [`end_process`].

use crate::call::syscall;
use crate::fd::duplicate_high;
use crate::filter;
use crate::lifeline::{self, Lifeline};
use crate::thread;
pub use crate::thread::Role;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

/// How often `/proc` is asked where no pipe tells, ms.
const ASK_MS: i32 = 1000;

/// Numbers of a pipe's ends in the program's table; -1: not there.
struct Ends {
    held: AtomicI32,
    watched: AtomicI32,
}

static ENDS: [Ends; 3] = [const { Ends { held: AtomicI32::new(-1), watched: AtomicI32::new(-1) } }; 3];

fn close(fd: i32) {
    if fd >= 0 {
        lifeline::close(fd);
    }
}

/// Another process uses the program's table (CLONE_FILES): the end of this one does not close it.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Notes that a process is made that shares the program's table. Threads of ours that are started from here on ask.
pub fn share_table() {
    IS_SHARED.store(true, Relaxed);
}

/// Makes the pipe, before the thread of ours is started. One start at a time for each role.
pub(crate) fn prepare(role: Role) {
    if cfg!(loom) || IS_SHARED.load(Relaxed) {
        return;
    }
    let line = Lifeline::make().ok();
    let ends = &ENDS[role as usize];
    close(ends.held.swap(line.map_or(-1, |line| line.held), Relaxed));
    close(ends.watched.swap(line.map_or(-1, |line| line.watched), Relaxed));
}

/// The thread of ours has begun, or has not: the watched end leaves the program's table, and without a table of the
/// thread's own the held end tells nothing.
pub(crate) fn settle(role: Role, is_isolated: bool) {
    let ends = &ENDS[role as usize];
    close(ends.watched.swap(-1, Relaxed));
    if !is_isolated {
        close(ends.held.swap(-1, Relaxed));
    }
}

/// The watched end, for the thread of ours to keep; -1: there is none.
pub(crate) fn watched(role: Role) -> i32 {
    ENDS[role as usize].watched.load(Relaxed)
}

/// The thread of ours has ended, and the program goes on.
pub fn forget(role: Role) {
    thread::forget(role);
    close(ENDS[role as usize].held.swap(-1, Relaxed));
}

/// In a forked child, which has no such thread. `has_own_descriptors`: its table is not shared with the parent.
pub fn in_child(role: Role, has_own_descriptors: bool) {
    thread::forget(role);
    thread::first_is_new();
    WAS_OUTLIVED.store(false, Relaxed);
    let held = ENDS[role as usize].held.swap(-1, Relaxed);
    if has_own_descriptors {
        close(held);
        IS_SHARED.store(false, Relaxed);
    }
}

/// The descriptors in the program's table.
pub fn descriptors() -> impl Iterator<Item = i32> {
    ENDS.iter().map(|ends| ends.held.load(Relaxed)).filter(|fd| *fd >= 0)
}

/// Gives a descriptor of these another number, because the program is about to use this one; false: it is not one of them.
pub fn renumber(fd: i32) -> bool {
    let Some(ends) = ENDS.iter().find(|ends| fd >= 0 && ends.held.load(Relaxed) == fd) else { return false };
    // Without another number the pipe hangs up, and `/proc` is asked.
    ends.held.store(duplicate_high(fd).unwrap_or(-1), Relaxed);
    close(fd);
    true
}

/// What a thread of ours knows of the program's threads.
#[derive(Debug)]
pub struct LastThread {
    /// The watched end in this thread's table; -1: `/proc` is asked instead.
    watched: i32,
    /// When it is asked next; `None`: never.
    due_ms: Option<u64>,
    /// How long after that it is asked again, ms.
    interval_ms: i32,
}

impl LastThread {
    /// For the thread of ours that runs this, which has a table of its own that holds the watched end, or shares the
    /// program's.
    pub(crate) fn new(role: Role, is_isolated: bool) -> Self {
        let watched = if is_isolated { watched(role) } else { -1 };
        let may_ask = watched < 0 && may_ask();
        Self { watched, due_ms: may_ask.then(|| thread::now_ms() + ASK_MS as u64), interval_ms: ASK_MS }
    }

    /// The descriptor to wait for; -1: none.
    #[must_use]
    pub const fn fd(&self) -> i32 {
        self.watched
    }

    /// How long to wait where something else asks for `wanted_ms` (-1: without limit).
    #[must_use]
    pub const fn timeout_ms(&self, wanted_ms: i32) -> i32 {
        let is_sooner = wanted_ms >= 0 && wanted_ms < self.interval_ms;
        if self.due_ms.is_none() || is_sooner { wanted_ms } else { self.interval_ms }
    }

    /// True if no thread of the program is left. `is_ready`: something was found at the descriptor.
    pub fn has_ended(&mut self, is_ready: bool) -> bool {
        if is_ready && self.watched >= 0 {
            // A thread that ends closes its descriptors before it is seen to have ended: it is asked again, soon at first.
            close(core::mem::replace(&mut self.watched, -1));
            (self.due_ms, self.interval_ms) = (Some(0), 1);
        }
        let Some(due_ms) = self.due_ms else { return false };
        let now_ms = thread::now_ms();
        if now_ms < due_ms {
            return false;
        }
        if !thread::others_may_live() {
            return true;
        }
        let goes_on = self.interval_ms < ASK_MS || may_ask();
        self.due_ms = goes_on.then_some(now_ms + self.interval_ms as u64);
        self.interval_ms = (2 * self.interval_ms).min(ASK_MS);
        false
    }
}

/// Not where a seccomp filter would end the process for asking: as long as there may be a thread of the program.
fn may_ask() -> bool {
    !cfg!(loom) && filter::allows(filter::Feature::Proc)
}

/// The process's first thread has ended by itself while others of the program lived.
static WAS_OUTLIVED: AtomicBool = AtomicBool::new(false);

/// Notes that the process's first thread ends by itself, and others of the program live.
pub fn first_is_outlived() {
    WAS_OUTLIVED.store(true, Relaxed);
}

/// Whether every thread of ours learns of the program's end.
#[must_use]
pub fn is_watched() -> bool {
    let roles = [Role::Faults, Role::Twin, Role::Lanes];
    !IS_SHARED.load(Relaxed)
        && roles.into_iter().all(|role| !thread::has(role) || ENDS[role as usize].held.load(Relaxed) >= 0)
}

/// Ends the calling thread of ours, and with it the process: no thread of the program is left.
///
/// A process's exit status is that of the thread that ends last, before Linux 6.0 that of its first thread. So this
/// thread ends as the program's last one has: as the first thread, unless others were seen to live longer, which end
/// with 0 as a rule.
pub fn end_process() -> ! {
    let status = if WAS_OUTLIVED.load(Relaxed) { 0 } else { first_threads_status() };
    let signal = status & 0x7F;
    if signal != 0 {
        die_by(signal);
    }
    loop {
        // SAFETY: ends this thread; libc, which would run what the program does at its end, has no part in it.
        unsafe { syscall!(libc::SYS_exit, status >> 8 & 0xFF) };
    }
}

/// How the first thread, which is in the list of threads until the process is gone, has ended, as wait(2) tells it; 0 if
/// that cannot be told.
fn first_threads_status() -> i32 {
    // The last of 52 numbers, none longer than 20 digits (proc_pid_stat(5)).
    let mut text = [0u8; 52 * 21 + 64];
    let got_bytes = crate::fd::read_start(c"/proc/self/stat", &mut text);
    let line = core::str::from_utf8(&text[..got_bytes]).unwrap_or_default();
    let behind_name = line.rsplit_once(')').map_or("", |(_, rest)| rest);
    let status = behind_name.split_ascii_whitespace().nth(52 - 3);
    status.and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Ends the process by a signal, as the kernel would do by a fault of the program: no handler of the program runs.
fn die_by(signal: i32) {
    let (default, none) = ([0usize; 4], 0u64);
    // SAFETY: an action and a set of signals as the kernel takes them; the thread is one of this process.
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
        assert_eq!(first_threads_status(), 0);
    }

    #[test]
    fn a_descriptor_of_these_gets_another_number() {
        prepare(Role::Twin);
        settle(Role::Twin, true);
        let number = || ENDS[Role::Twin as usize].held.load(Relaxed);
        let held = number();
        assert!(held >= 0 && descriptors().any(|fd| fd == held), "a pipe was made");
        assert!(renumber(held));
        let other = number();
        assert!(other >= 0 && other != held);
        assert!(!renumber(held));
        in_child(Role::Twin, true);
        assert_eq!((number(), crate::fd::closes_on_exec(other)), (-1, None));
    }

    #[test]
    fn a_pipe_that_hangs_up_while_threads_live_is_not_believed() {
        let line = Lifeline::make().expect("a pipe");
        let mut last_thread = LastThread { watched: line.watched, due_ms: None, interval_ms: ASK_MS };
        close(line.held);
        let stop = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| stop.wait());
            assert!(!last_thread.has_ended(true));
            stop.wait();
        });
        assert_eq!(last_thread.fd(), -1);
        assert!((1..ASK_MS).contains(&last_thread.timeout_ms(-1)), "it is asked again soon");
        assert_eq!(last_thread.timeout_ms(0), 0);
    }
}
