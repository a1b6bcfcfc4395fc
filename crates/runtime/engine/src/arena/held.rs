//! Bytes of segments that were received by reference: they lie in pipes, and are read into their pages of
//! the arena when somebody needs them (docs/design/holding.md).
//!
//! ```text
//!           receive                     read out (touched, copied, old, before a fork)
//!  ready ───────────► held, sent ─────────────────────────────────────────────────────► ready
//!    ▲  │                │   ▲ sent again: a duplicate goes to the socket
//!    │  └── created,     │   └─┘
//!    │      adopted      └── last reference to the segment gone: discarded ──► ready
//!    └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Each pipe holds one run of bytes, which belongs to a run of the arena's pages that a draft has taken. The
//! pages stay present and taken all the while, so that reading out needs no memory and cannot fail.
//!
//! - `bytes of a run = those in the pipe + those already in the arena`; a run only loses bytes at its start.
//! - A run is published after its bytes are in the pipe, and withdrawn after they are in the arena.
//! - Only a thread that has the pipe's lock moves bytes out of it. Nothing faults and nothing waits for another
//!   lock under that lock, which is the last in the order of locks.
//!
//! A pipe has a number in the program's table of descriptors, hidden from the program, and one in the handler
//! thread's own table. A thread that finds the number closed or replaced lets the handler read.

use crate::arena::pages::ARENA;
use crate::state::{bell, clock, counters};
use smallvec::SmallVec;
use uncopy_core::stats::Counter;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::filter;
use uncopy_sys::guarded::{Guarded, GuardedRef};
use uncopy_sys::holding_pipe::HoldingPipe;
use uncopy_sys::lock::Critical;
use uncopy_sys::pipe::Pipe;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use uncopy_sys::{mem, thread};

/// Number of pipes. All pipes of a user together may have 64 MiB (`/proc/sys/fs/pipe-user-pages-soft`), of
/// which these are a sixteenth.
const PIPES: usize = if cfg!(loom) { 1 } else { 16 };
/// Bound on the bytes held at a time.
const MAX_BYTES: usize = 32 << 20;
/// Failures to create a pipe after which no more is created.
const MAX_FAILURES: u32 = 4;
/// Tries of a read that the kernel refuses, and of asking the handler.
const TRIES: u32 = 10_000;
/// Runs not sent for more rounds of upkeep than this are read out, because they keep socket buffers.
const AGE: u32 = 1;

struct Run {
    /// Address in the arena of the first held byte; 0: the pipe is empty.
    start: AtomicUsize,
    /// Address after the last held byte.
    end: AtomicUsize,
    /// Round of upkeep in which the bytes arrived or were last sent.
    round: AtomicU32,
    /// Number of the pipe in the program's table, which the program must find closed; -1: none.
    program_number: AtomicI32,
    pipe: Guarded<Numbers>,
}

/// A pipe's descriptors. Both are needed before it holds bytes.
#[derive(Default)]
struct Numbers {
    program: Option<HoldingPipe>,
    /// In the handler thread's own table, or `program` if the handler has none.
    handler: Option<HoldingPipe>,
}

uncopy_sys::statics! {
    static RUNS: [Run; PIPES] = runs();
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    static FAILURES: AtomicU32 = AtomicU32::new(0);
    /// Whether a pipe was ever made: most programs never have one, and ask for the descriptors often.
    static HAS_PIPES: AtomicBool = AtomicBool::new(false);
    /// True while the handler is to adopt or close descriptors.
    static HAS_NEWS: AtomicBool = AtomicBool::new(false);
    /// True while the handler is to read out every run.
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
}

uncopy_sys::constant! {
    const fn runs() -> [Run; PIPES] {
        #[cfg(not(loom))]
        return [const { Run::new() }; PIPES];
        #[cfg(loom)]
        core::array::from_fn(|_| Run::new())
    }
}

/// A part of a segment: address in the arena, length, and whether the bytes are held.
pub type Stretch = (usize, usize, bool);

impl Numbers {
    /// The pipe by the calling thread's number; `None` if that was closed or replaced.
    fn usable(&self) -> Option<HoldingPipe> {
        let own = if thread::is_handler() { self.handler } else { self.program };
        own.filter(|pipe| pipe.is_ours())
    }
}

impl Run {
    uncopy_sys::constant! {
        const fn new() -> Self {
            Self {
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                round: AtomicU32::new(0),
                program_number: AtomicI32::new(-1),
                pipe: Guarded::new(Numbers { program: None, handler: None }),
            }
        }
    }

    /// The held addresses. Without the lock a moment's view, in which no byte is missing that the caller has
    /// a reference to: `end` is replaced only while `start` is 0, after the bytes are in the arena.
    fn addresses(&self) -> Option<(usize, usize)> {
        let start = self.start.load(Acquire);
        (start != 0).then(|| (start, self.end.load(Acquire)))
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        self.addresses().is_some_and(|held| held.0 < end && start < held.1)
    }

    fn publish(&self, start: usize, end: usize) {
        self.round.store(clock::now().round(), Relaxed);
        self.end.store(end, Release);
        self.start.store(start, Release);
        BYTES.fetch_add(end - start, Relaxed);
    }

    /// Records that the bytes before `start` are in the arena.
    fn advance(&self, start: usize) {
        let (old, end) = (self.start.load(Relaxed), self.end.load(Relaxed));
        BYTES.fetch_sub(start - old, Release);
        self.start.store(if start == end { 0 } else { start }, Release);
    }

    /// Reads the bytes before address `until` out of `pipe`. Returns whether no held byte is before it.
    fn read_until(&self, pipe: HoldingPipe, until: usize) -> bool {
        let Some((mut at, end)) = self.addresses() else { return true };
        let until = until.min(end);
        if at >= until {
            return true;
        }
        for _ in 0..TRIES {
            // SAFETY: the run's bytes belong to pages of the arena that a draft has taken and that are
            // present; nobody reads these before they are withdrawn from the run, and the lock excludes other writers.
            match unsafe { pipe.read(at, until - at) } {
                Ok(got @ 1..) => {
                    at += got;
                    self.advance(at);
                    if at == until {
                        return true;
                    }
                }
                Ok(_) | Err(_) => thread::pause(),
            }
        }
        false
    }

    fn held_bytes(&self) -> usize {
        self.addresses().map_or(0, |(start, end)| end - start)
    }

    /// Reads the bytes before address `until` out. Returns whether no held byte is before it.
    fn read_out(&self, numbers: &Numbers, until: usize) -> bool {
        let before = self.held_bytes();
        let is_out = before == 0 || numbers.usable().is_some_and(|pipe| self.read_until(pipe, until));
        counters::add(Counter::ReadOutBytes, before - self.held_bytes());
        is_out
    }

    /// Forgets the run and empties the pipe. A pipe that cannot be emptied is given up.
    fn discard(&self, numbers: &mut Numbers) {
        let Some((start, end)) = self.addresses() else { return };
        self.advance(end);
        let pipe = numbers.usable();
        if !pipe.is_some_and(|pipe| pipe.drain(end - start)) {
            self.give_up(numbers);
        }
    }

    /// Adopts or closes the handler's descriptor.
    fn update_handler(&self, numbers: &mut Numbers, is_isolated: bool) {
        match (numbers.program, numbers.handler) {
            (Some(pipe), None) if is_isolated => numbers.handler = pipe.adopt().ok(),
            (Some(pipe), None) => numbers.handler = Some(pipe),
            (None, Some(pipe)) if self.addresses().is_none() => {
                numbers.handler = None;
                // In a shared table `give_up` has closed the number.
                if is_isolated {
                    pipe.close();
                }
            }
            _ => {}
        }
    }

    /// Closes the program's descriptor of an empty pipe, and lets the handler close its own.
    fn give_up(&self, numbers: &mut Numbers) {
        FAILURES.fetch_add(1, Relaxed);
        self.program_number.store(-1, Relaxed);
        if let Some(pipe) = numbers.program.take()
            && !(thread::is_handler() && numbers.handler != Some(pipe))
        {
            pipe.close();
        }
        HAS_NEWS.store(true, Release);
    }
}

/// Whether any bytes are held.
#[inline]
pub(crate) fn is_any() -> bool {
    BYTES.load(Acquire) != 0
}

/// Whether bytes at these addresses of the arena are held.
pub(crate) fn overlaps(address: usize, len_bytes: usize) -> bool {
    is_any() && RUNS.iter().any(|run| run.overlaps(address, address + len_bytes))
}

/// Splits a range of the arena into held and other parts, in order.
pub(crate) fn split(address: usize, len_bytes: usize) -> SmallVec<[Stretch; 8]> {
    let end = address + len_bytes;
    let mut held: SmallVec<[(usize, usize); 4]> = RUNS
        .iter()
        .filter_map(Run::addresses)
        .map(|(first, last)| (first.max(address), last.min(end)))
        .filter(|(first, last)| first < last)
        .collect();
    held.sort_unstable();
    let mut stretches = SmallVec::new();
    let mut at = address;
    for (first, last) in held {
        // Two moments' views of one pipe may overlap; sending finds out what is still there.
        let first = first.max(at);
        if first > at {
            stretches.push((at, first - at, false));
        }
        if last > first {
            stretches.push((first, last - first, true));
        }
        at = last.max(at);
    }
    if end > at {
        stretches.push((at, end - at, false));
    }
    stretches
}

/// Receives up to `len_bytes` bytes of a stream socket by reference. The first `head_bytes` are read to
/// `address` at once, the others are held for the addresses behind. Returns the number of bytes received; 0:
/// nothing was, and the caller receives as usual.
///
/// # Safety
/// The addresses must be those of present pages that a draft has taken and not filled.
pub(crate) unsafe fn receive(
    socket: ProgramFd,
    address: usize,
    len_bytes: usize,
    head_bytes: usize,
) -> usize {
    if BYTES.load(Relaxed) + len_bytes > MAX_BYTES {
        return 0;
    }
    let Some((run, mut numbers)) = free_run().or_else(|| if open() { free_run() } else { None }) else {
        return 0;
    };
    let Some(pipe) = numbers.usable() else {
        run.give_up(&mut numbers);
        return 0;
    };
    let Ok(got @ 1..) = pipe.receive(socket, len_bytes) else { return 0 };
    run.publish(address, address + got);
    let is_short = got < 2 * head_bytes;
    run.read_until(pipe, address + if is_short { got } else { head_bytes });
    let held_bytes = run.held_bytes();
    counters::add(Counter::HeldBytes, held_bytes);
    drop(numbers);
    bell::request_upkeep();
    got
}

/// Returns an empty pipe that is ready for use.
fn free_run() -> Option<(&'static Run, GuardedRef<'static, Numbers>)> {
    let runs: &'static [Run; PIPES] = &RUNS;
    runs.iter().find_map(|run| {
        let is_free = |numbers: &GuardedRef<'_, Numbers>| {
            run.addresses().is_none() && numbers.program.is_some() && numbers.handler.is_some()
        };
        let numbers = if run.addresses().is_none() { run.pipe.try_lock() } else { None };
        numbers.filter(is_free).map(|numbers| (run, numbers))
    })
}

/// Creates a pipe, and waits until the handler has adopted it. Returns whether it is ready.
fn open() -> bool {
    if FAILURES.load(Relaxed) >= MAX_FAILURES || filter::is_filtered() || !thread::has_handler() {
        return false;
    }
    let is_unused =
        |numbers: &GuardedRef<'_, Numbers>| numbers.program.is_none() && numbers.handler.is_none();
    let Some((run, mut numbers)) =
        RUNS.iter().find_map(|run| run.pipe.try_lock().filter(is_unused).map(|numbers| (run, numbers)))
    else {
        return false;
    };
    HAS_PIPES.store(true, Release);
    let made = HoldingPipe::open().ok();
    run.program_number.store(made.map_or(-1, HoldingPipe::number), Relaxed);
    numbers.program = made;
    drop(numbers);
    HAS_NEWS.store(true, Release);
    let is_ready =
        made.is_some() && ARENA.uffd().wake_handler(|_| ()).is_ok() && run.pipe.lock().handler.is_some();
    if !is_ready {
        run.give_up(&mut run.pipe.lock());
    }
    is_ready
}

/// Reads the held bytes of a range out, and those before it in the same pipe, so that they are in the arena. Returns
/// whether there were any.
pub fn make_present(address: usize, len_bytes: usize) -> bool {
    let end = address + len_bytes;
    let mut had_any = false;
    for run in RUNS.iter().filter(|run| run.overlaps(address, end)) {
        let numbers = run.pipe.lock();
        if run.overlaps(address, end) {
            had_any = true;
            let is_out = run.read_out(&numbers, end);
            drop(numbers);
            if !is_out {
                let_handler_read(run, address, end);
            }
        }
    }
    had_any
}

/// Waits until the handler has read a run out whose number in this thread's table was closed or replaced.
#[cold]
fn let_handler_read(run: &Run, address: usize, end: usize) {
    for _ in 0..if thread::is_handler() { 0 } else { TRIES } {
        IS_WANTED.store(true, Release);
        if ARENA.uffd().wake_handler(|_| ()).is_err() {
            break;
        }
        if !run.overlaps(address, end) {
            return;
        }
        thread::pause();
    }
    let lost = "uncopy: received bytes are lost, because the program closed a descriptor of uncopy's by a system call of its own; run it with UNCOPY_POLICY=never";
    mem::write_stderr(format_args!("{lost}\n"));
    std::process::abort();
}

/// Puts references to up to `len_bytes` held bytes at `address` into a pipe. Returns the number of earlier
/// bytes that were put there before them, and the number of all bytes; `None` if the bytes are not held
/// any more, or not all earlier bytes fit.
#[must_use]
pub fn duplicate(address: usize, len_bytes: usize, to: Pipe) -> Option<(usize, usize)> {
    let run = RUNS.iter().find(|run| run.overlaps(address, address + 1))?;
    let numbers = run.pipe.lock();
    let (start, end) = run.addresses().filter(|held| held.0 <= address && address < held.1)?;
    let skipped_bytes = address - start;
    let wanted_bytes = skipped_bytes + len_bytes.min(end - address);
    let put = numbers.usable()?.duplicate_to(to, wanted_bytes);
    run.round.store(clock::now().round(), Relaxed);
    match put {
        Ok(put_bytes) if put_bytes > skipped_bytes => Some((skipped_bytes, put_bytes)),
        Ok(put_bytes) => {
            // Not to be sent: the caller finds them in the pipe and discards them.
            Some((put_bytes, put_bytes))
        }
        Err(Errno(_)) => None,
    }
}

/// Discards the held bytes of a range whose pages are about to be given back.
pub(crate) fn discard(address: usize, len_bytes: usize) {
    if is_any() {
        let end = address + len_bytes;
        for run in RUNS.iter().filter(|run| run.overlaps(address, end)) {
            let mut numbers = run.pipe.lock();
            if run.overlaps(address, end) {
                run.discard(&mut numbers);
            }
        }
    }
}

/// Reads all runs out, before a fork, and before the handler ends.
pub(crate) fn read_out_all() {
    if is_any() {
        for run in RUNS.iter() {
            if let Some((start, end)) = run.addresses() {
                make_present(start, end - start);
            }
        }
    }
}

/// Reads the runs out that were not used for a while. Called by the handler.
pub(crate) fn read_out_idle() {
    let round = clock::now().round();
    for run in RUNS.iter().filter(|run| run.addresses().is_some()) {
        if let Some(numbers) = run.pipe.try_lock()
            && round.wrapping_sub(run.round.load(Relaxed)) > AGE
        {
            run.read_out(&numbers, usize::MAX);
        }
    }
}

/// Does the handler's part: adopts and closes descriptors, and reads out what other threads cannot.
/// `is_isolated`: the handler has its own table of descriptors.
pub(crate) fn serve(is_isolated: bool) {
    if HAS_NEWS.load(Relaxed) && HAS_NEWS.swap(false, AcqRel) {
        for run in RUNS.iter() {
            match run.pipe.try_lock() {
                Some(mut numbers) => run.update_handler(&mut numbers, is_isolated),
                None => HAS_NEWS.store(true, Release),
            }
        }
    }
    if IS_WANTED.load(Relaxed) && IS_WANTED.swap(false, AcqRel) {
        for run in RUNS.iter() {
            if let Some(numbers) = run.pipe.try_lock() {
                run.read_out(&numbers, usize::MAX);
            }
        }
    }
}

/// Forgets the numbers in the table of a handler that has ended. Nothing may be held.
pub(crate) fn forget_handler() {
    for run in RUNS.iter() {
        run.pipe.lock().handler = None;
    }
    HAS_NEWS.store(true, Release);
}

/// Takes the locks of all pipes, to be held across a fork.
pub(crate) fn lock_all() {
    RUNS.iter().for_each(|run| run.pipe.raw().lock());
}

pub(crate) fn unlock_all() {
    RUNS.iter().for_each(|run| run.pipe.raw().unlock());
}

/// Gives the parent's pipes up in a forked child. `has_own_descriptors`: the table is not the parent's.
pub(crate) fn in_child(has_own_descriptors: bool) {
    for run in RUNS.iter() {
        run.program_number.store(-1, Relaxed);
        let numbers = core::mem::take(&mut *run.pipe.lock());
        if let Some(pipe) = numbers.program.filter(|_| has_own_descriptors) {
            pipe.close();
        }
        run.start.store(0, Relaxed);
    }
    BYTES.store(0, Relaxed);
}

/// Descriptors of the pipes in the program's table, which must look closed to the program.
pub fn descriptors() -> impl Iterator<Item = ProgramFd> {
    let runs: &'static [Run; PIPES] = &RUNS;
    let made = if HAS_PIPES.load(Acquire) { &runs[..] } else { &[] };
    made.iter().map(|run| ProgramFd::new(run.program_number.load(Relaxed))).filter(|fd| fd.is_valid())
}

/// Moves a pipe to another number, because the program is about to use this one. False: no pipe has the
/// number. If no other number is free, the handler reads the bytes out.
pub fn relocate_descriptor(fd: ProgramFd) -> bool {
    if !fd.is_valid() || !descriptors().any(|own| own == fd) {
        return false;
    }
    let _critical = Critical::enter();
    for run in RUNS.iter() {
        let mut numbers = run.pipe.lock();
        if let Some(pipe) = numbers.program.filter(|pipe| pipe.as_program() == fd) {
            let moved = pipe.renumbered();
            if numbers.handler == Some(pipe) {
                numbers.handler = moved;
            }
            numbers.program = moved;
            run.program_number.store(moved.map_or(-1, HoldingPipe::number), Relaxed);
            pipe.close();
            return true;
        }
    }
    false
}
