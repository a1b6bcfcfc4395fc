//! The hidden program `uncopy-bench soak`: a thread on each processor, at idle priority (SCHED_IDLE, man 7
//! sched), spins, dirties cache lines and counts its iterations. All other activity, in programs, in the kernel
//! or in interrupts, reduces the count.
//!
//! ```text
//! file of counters, one cache line for each processor:
//!   │ work done on processor 0 │ work done on processor 1 │ …
//! ```
//!
//! A unit of work is a spin of fixed length: a chain of multiplications, each of which depends on the one before it, so
//! that another thread of the same core hardly changes its duration. `--lines` lines are dirtied per second, so that a
//! unit also depends on the speed of memory; with 0, a unit consists of dirtying lines only, at full speed.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use clap::Args;

use crate::kit::processes::signals::Requests;
use crate::kit::processors::{available, bind_thread, set_idle_priority, single};
use crate::kit::{Experiment, Failure, Outcome, Result, While, print};

/// Bytes from one counter to the next: two lines, because processors fetch lines in pairs.
pub const STRIDE_BYTES: usize = 128;
/// Multiplications of a spin, which take about a microsecond.
const SPIN_MULTIPLICATIONS: u32 = 1000;
/// Number of spins timed together to determine the length of one, and of repetitions, of which the shortest counts.
const TIMED_SPINS: u32 = 1000;
const TIMED_RUNS: usize = 5;
/// Memory whose lines are dirtied in turn, bytes; `load`'s mail does not give its size.
const DIRTY_BYTES: usize = 1 << 20;
const LINE_BYTES: usize = 64;
/// Number of lines that make a unit of work without spins.
const LINES_PER_UNIT: usize = 64;

/// Use all processor time that is otherwise idle
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Soak {
    /// Descriptor of the file with the counters
    #[arg(long, value_name = "FD")]
    pub counters: RawFd,
    /// Cache lines that each thread writes per second; 0: no limit
    #[arg(long, value_name = "LINES")]
    pub lines: u64,
}

impl Experiment for Soak {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        run(self).map(|()| Outcome::Status(0))
    }
}

/// Counters in memory shared with the program that started this one.
#[derive(Debug)]
pub struct Counters {
    begin: *const AtomicU64,
    count: usize,
}

// SAFETY: the pointer is to shared memory that stays mapped as long as the value lives, whichever thread drops it.
unsafe impl Send for Counters {}
// SAFETY: through a shared reference the memory is only accessed as atomics.
unsafe impl Sync for Counters {}

impl Counters {
    /// Maps `count` counters of `file`, which must be long enough.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn map(file: &OwnedFd, count: usize) -> std::io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (len_bytes, fd) = (count * STRIDE_BYTES, file.as_raw_fd());
        // SAFETY: without MAP_FIXED, mmap(2) chooses unused addresses, so that no other memory changes.
        let begin = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, fd, 0) };
        if begin == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { begin: begin.cast(), count })
    }

    /// Returns the number of counters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the counter of the processor at `index` in the order of their numbers.
    #[must_use]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "counter {index} of {}", self.count);
        // SAFETY: `index` is below `count`, so that the counter is inside the mapping, which lives as long as `self`.
        // Counters are aligned, as multiples of 128 bytes from the start of a page, and only accessed as atomics.
        unsafe { &*self.begin.byte_add(index * STRIDE_BYTES) }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this length at `begin`, and references from `at` do not outlive `self`.
        unsafe { libc::munmap(self.begin.cast_mut().cast(), self.count * STRIDE_BYTES) };
    }
}

/// Runs the soakers until a signal ends the process.
///
/// # Errors
/// [`Failure`] when a thread cannot be started, bound to its processor, or given idle priority.
pub fn run(arguments: &Soak) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    // SAFETY: the parent opened the descriptor for this process only, and no other value here owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(arguments.counters) });
    let processors = available();
    let len_bytes = file.metadata().doing("reading the size of the counters' file")?.len();
    if len_bytes != (processors.len() * STRIDE_BYTES) as u64 {
        return Err(Failure::new(format!("a file of {len_bytes} bytes does not hold the counters")));
    }
    let counters = Counters::map(&file.into(), processors.len()).doing("mapping the counters")?;
    // The counters are used until the process ends.
    let counters: &'static Counters = Box::leak(Box::new(counters));
    static READY: AtomicUsize = AtomicUsize::new(0);
    let (failed, failures) = std::sync::mpsc::channel();
    for (index, processor) in processors.iter().copied().enumerate() {
        let (counter, lines, failed) = (counters.at(index), arguments.lines, failed.clone());
        let work = move || match prepare_thread(processor) {
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
    // Receiving fails once every thread has dropped its sender.
    if let Ok(failure) = failures.recv() {
        return Err(failure);
    }
    print(&format!("soaking {}\n", READY.load(Ordering::Acquire)))?;
    requests.wait(None).map(drop).doing("waiting for a signal")
}

/// Binds this thread to `processor` and gives the thread idle priority.
fn prepare_thread(processor: usize) -> Result<()> {
    bind_thread(Some(single(processor)))?;
    set_idle_priority().doing("giving a soaker idle priority")
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
            dirty(LINES_PER_UNIT);
            work += 1;
            counter.store(work, Ordering::Relaxed);
        }
    }
    // Number of spins between two lines. A count, not a time, so that a unit is the same work under any disturbance.
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

/// Returns the length of an undisturbed spin, ns.
fn spin_ns() -> u64 {
    let time = |_| {
        let begin = Instant::now();
        black_box((0..TIMED_SPINS).fold(1, |value, _| spin(value)));
        begin.elapsed().as_nanos() / u128::from(TIMED_SPINS)
    };
    (0..TIMED_RUNS).map(time).min().and_then(|ns| u64::try_from(ns).ok()).unwrap_or(1)
}

fn spin(mut value: u64) -> u64 {
    for _ in 0..SPIN_MULTIPLICATIONS {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    }
    value
}
