//! The hidden program `uncopy bench soak`: on each processor a thread that spins and dirties cache lines at idle priority
//! (SCHED_IDLE, man 7 sched), and counts how often it did. Whatever else runs, in a program, in the kernel or in an
//! interrupt, takes from that.
//!
//! ```text
//! file of counters, one cache line for each processor:
//!   │ work done on processor 0 │ work done on processor 1 │ …
//! ```
//!
//! A unit of work is a spin of fixed length, a chain of multiplications each of which waits for the one before it: what
//! another thread of the same core does hardly changes how long that takes. `--lines` lines are dirtied in a second, so
//! that a unit also costs what memory costs; 0 dirties lines only, as fast as can be.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use clap::Args;
use rustix::thread::CpuSet;

use crate::kit::processes::signals::Requests;
use crate::kit::{Experiment, Failure, Outcome, Result, While};

/// Bytes from one counter to the next: two lines, because processors fetch lines in pairs.
pub const STRIDE_BYTES: usize = 128;
/// Multiplications of a spin: a microsecond, about.
const SPIN: u32 = 1000;
/// Spins that are timed to learn how long one takes; the shortest of so many times counts.
const TIMED_SPINS: u32 = 1000;
const TIMES: usize = 5;
/// Memory whose lines are dirtied in turn, bytes; `load`'s mail does not say how much there was.
const DIRTY_BYTES: usize = 1 << 20;
const LINE_BYTES: usize = 64;
/// Lines that are a unit of work where nothing is spun.
const LINES_OF_A_UNIT: usize = 64;

/// Use up all processor time that nobody else wants
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Soak {
    /// Descriptor of the file of counters
    #[arg(long, value_name = "FD")]
    pub counters: RawFd,
    /// Cache lines that each thread dirties in a second; 0: as many as it can
    #[arg(long, value_name = "LINES")]
    pub lines: u64,
}

impl Experiment for Soak {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        run(self).map(|()| Outcome::Status(0))
    }
}

/// The counters, shared with the program that started this one.
#[derive(Debug)]
pub struct Counters {
    begin: *const AtomicU64,
    count: usize,
}

// SAFETY: the pointer is to shared memory that stays mapped as long as the value lives, whichever thread drops it.
unsafe impl Send for Counters {}
// SAFETY: through a shared reference the memory is reached as atomics only.
unsafe impl Sync for Counters {}

impl Counters {
    /// Maps `count` counters of `file`, which is long enough.
    ///
    /// # Errors
    /// The kernel's.
    pub fn map(file: &OwnedFd, count: usize) -> std::io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (len_bytes, fd) = (count * STRIDE_BYTES, file.as_raw_fd());
        // SAFETY: a mapping at an address of the kernel's choice changes no other memory.
        let begin = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, fd, 0) };
        if begin == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { begin: begin.cast(), count })
    }

    /// Number of counters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The counter of the processor at `place` in the order of their numbers.
    #[must_use]
    pub fn at(&self, place: usize) -> &AtomicU64 {
        assert!(place < self.count, "counter {place} of {}", self.count);
        // SAFETY: inside the mapping, aligned (a multiple of 128 from a page on), and atomic wherever it is used.
        unsafe { &*self.begin.byte_add(place * STRIDE_BYTES) }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference is left.
        unsafe { libc::munmap(self.begin.cast_mut().cast(), self.count * STRIDE_BYTES) };
    }
}

/// The processors that this program may use, by number.
///
/// # Errors
/// [`Failure`] when the system does not tell.
pub fn processors() -> Result<Vec<usize>> {
    let all = rustix::thread::sched_getaffinity(None).doing("asking for the processors")?;
    Ok((0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number)).collect())
}

/// Runs it until a signal ends it.
///
/// # Errors
/// [`Failure`] when a thread cannot be had, bound to its processor, or given idle priority.
pub fn run(arguments: &Soak) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    // SAFETY: the one who starts this program passes the descriptor for it alone; nothing else here has it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(arguments.counters) });
    let processors = processors()?;
    let len_bytes = file.metadata().doing("looking at the counters")?.len();
    if len_bytes != (processors.len() * STRIDE_BYTES) as u64 {
        return Err(Failure::new(format!("a file of {len_bytes} bytes is none of counters")));
    }
    let counters = Counters::map(&file.into(), processors.len()).doing("mapping the counters")?;
    // Until the process ends.
    let counters: &'static Counters = Box::leak(Box::new(counters));
    static READY: AtomicUsize = AtomicUsize::new(0);
    let (failed, failures) = std::sync::mpsc::channel();
    for (place, processor) in processors.iter().copied().enumerate() {
        let (counter, lines, failed) = (counters.at(place), arguments.lines, failed.clone());
        let work = move || match settle(processor) {
            Ok(()) => {
                READY.fetch_add(1, Ordering::Release);
                drop(failed);
                soak(counter, lines)
            }
            Err(failure) => {
                let _ = failed.send(failure);
            }
        };
        std::thread::Builder::new()
            .name(format!("soaker {processor}"))
            .spawn(work)
            .doing("starting a thread")?;
    }
    drop(failed);
    // Ends when every thread has dropped its end.
    if let Ok(failure) = failures.recv() {
        return Err(failure);
    }
    let mut stdout = std::io::stdout().lock();
    let ready = READY.load(Ordering::Acquire);
    writeln!(stdout, "soaking {ready}").and_then(|()| stdout.flush()).doing("telling so")?;
    drop(stdout);
    requests.wait(None).map(drop).doing("waiting for a signal")
}

/// Binds this thread to `processor` and gives it idle priority.
fn settle(processor: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    rustix::thread::sched_setaffinity(None, &only)
        .doing(format_args!("binding a soaker to processor {processor}"))?;
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is this thread; the structure is valid for the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } != 0 {
        return Err(std::io::Error::last_os_error()).doing("giving a soaker idle priority");
    }
    Ok(())
}

fn soak(counter: &AtomicU64, lines_per_s: u64) -> ! {
    let mut memory = vec![0u8; DIRTY_BYTES];
    let mut line = 0;
    let mut dirty = |lines: usize| {
        for _ in 0..lines {
            memory[line] = memory[line].wrapping_add(1);
            line = (line + LINE_BYTES) % DIRTY_BYTES;
        }
        black_box(&mut memory);
    };
    let (mut work, mut value) = (0u64, 1);
    if lines_per_s == 0 {
        loop {
            dirty(LINES_OF_A_UNIT);
            work += 1;
            counter.store(work, Ordering::Relaxed);
        }
    }
    // Between two lines; not by the clock, so that a unit is the same work whatever disturbs it.
    let spins = (1_000_000_000 / lines_per_s / spin_ns().max(1)).max(1);
    loop {
        for _ in 0..spins {
            value = spin(value);
            work += 1;
            counter.store(work, Ordering::Relaxed);
        }
        dirty(1);
    }
}

/// How long a spin takes when nothing disturbs it, ns.
fn spin_ns() -> u64 {
    let time = |_| {
        let begin = Instant::now();
        black_box((0..TIMED_SPINS).fold(1, |value, _| spin(value)));
        begin.elapsed().as_nanos() / u128::from(TIMED_SPINS)
    };
    (0..TIMES).map(time).min().and_then(|ns| u64::try_from(ns).ok()).unwrap_or(1)
}

fn spin(mut value: u64) -> u64 {
    for _ in 0..SPIN {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    }
    value
}
