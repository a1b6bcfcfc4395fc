//! Time in nanoseconds of CLOCK_MONOTONIC, from the time stamp counter if that is invariant; and sleeping.
//!
//! Reading the counter takes 10 ns, the clock by its vDSO 25 (`uncopy-bench echo recording`). The counter is
//! compared with the clock twice: when a recording or the engine begins, and when a duration is first needed.

use crate::call::kernel;
#[cfg(not(loom))]
use crate::call::syscall;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counter and clock at the first comparison.
static FIRST_TICKS: AtomicU64 = AtomicU64::new(0);
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick, in units of 2^-32; 0 if not known yet, or if the clock is used.
static RATE: AtomicU64 = AtomicU64::new(0);

pub(crate) const NS_PER_S: u64 = 1_000_000_000;
/// Minimum time between the two comparisons, nanoseconds: each is off by at most some 50 ns.
const MIN_NS: u64 = 2_000_000;

/// Reads a clock that every kernel has, nanoseconds; 0 if a filter refuses it.
#[inline]
fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one value of the type of `time`, which lives through the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * NS_PER_S + time.tv_nsec as u64
}

/// CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, ns since 1970.
#[must_use]
pub fn wall_ns() -> u64 {
    read_ns(libc::CLOCK_REALTIME)
}

/// CLOCK_REALTIME as of the last tick, ns since 1970: the kernel's time stamps of files come from it.
#[must_use]
pub fn coarse_wall_ns() -> u64 {
    read_ns(libc::CLOCK_REALTIME_COARSE)
}

/// Splits a time in nanoseconds into seconds, and the nanoseconds of the last one.
#[must_use]
pub const fn split_ns(time_ns: u64) -> (i64, u32) {
    ((time_ns / NS_PER_S) as i64, (time_ns % NS_PER_S) as u32)
}

/// Processor time that all threads of the process have used, nanoseconds. A system call, not the
/// vDSO; `errno` is changed if a filter refuses it. For critical sections, which restore `errno`.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time that all threads of another process have used, nanoseconds; 0 if it has ended. A system
/// call; `errno` is changed if a filter refuses it. For critical sections, which restore `errno`.
#[must_use]
pub fn cpu_ns_of(process: u32) -> u64 {
    /// `CPUCLOCK_SCHED` of a process, as in clock_getcpuclockid(3) (linux/posix-timers.h).
    const SCHED: i32 = 2;
    let Ok(process) = i32::try_from(process) else { return 0 };
    read_ns(!process << 3 | SCHED)
}

/// Sleeps 20 µs, so that other threads, also those of lower priority, can run.
pub fn pause() {
    #[cfg(loom)]
    return loom::thread::yield_now();
    #[cfg(not(loom))]
    {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
        let _errno = crate::errno::SavedErrno::new();
        // SAFETY: nanosleep(2) reads `time`, which lives through the call, and writes no remainder. A direct
        // system call, because libc's function is a cancellation point, and locks may be held.
        unsafe { kernel!(Sleep, syscall!(libc::SYS_nanosleep, &raw const time, 0)) };
    }
}

/// Sleeps 10 ms, to wait for slow work of other threads.
pub fn sleep_10_ms() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // SAFETY: nanosleep(2) reads `time`, which lives through the call, and writes no remainder.
    unsafe { kernel!(Sleep, libc::nanosleep(&time, core::ptr::null_mut())) };
}

/// Milliseconds since an arbitrary time, exact to within a few. Constant in models.
#[must_use]
pub fn now_ms() -> u64 {
    if cfg!(loom) {
        return 0;
    }
    read_ns(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
}

/// Reads the current time: ticks of the counter, or nanoseconds of the clock.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if uses_counter() {
        // SAFETY: the processor has the instruction, and the process may use it: `is_even` has checked both.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    now_ns()
}

/// Converts two readings to the time when a call began and how long it took, nanoseconds. Needs
/// [`finish_calibration`] first.
#[inline]
pub fn start_and_duration_ns(start: u64, end: u64) -> (u64, u64) {
    if !uses_counter() {
        return (start, end.saturating_sub(start));
    }
    let rate = RATE.load(Relaxed);
    let ns = |ticks: u64| ((u128::from(ticks) * u128::from(rate)) >> 32) as u64;
    let since = start.saturating_sub(FIRST_TICKS.load(Relaxed));
    (FIRST_NS.load(Relaxed) + ns(since), ns(end.saturating_sub(start)))
}

/// Returns the time since `start`, nanoseconds. `None` without the counter, because the clock is
/// too slow for this, and in the first moments after [`begin_calibration`].
#[inline]
pub fn since_ns(start: u64) -> Option<u64> {
    if start == 0 || (RATE.load(Relaxed) == 0 && !settle_if_due()) {
        return None;
    }
    // The counter may have been stopped meanwhile.
    uses_counter().then(|| start_and_duration_ns(start, ticks()).1)
}

/// Returns a start time for [`since_ns`]; 0 if there is no counter.
#[inline]
pub fn start() -> u64 {
    if uses_counter() { ticks() } else { 0 }
}

/// Stops the use of the counter, because the program makes reading it a fault.
pub fn disable_counter() {
    FIRST_NS.store(0, Relaxed);
}

/// Converts a reading to one for coarse comparisons, in steps of some 0.1 s.
#[inline]
pub fn coarse_ticks(ticks: u64) -> u32 {
    (ticks >> 28) as u32
}

/// Whether readings are of the counter: [`begin_calibration`] has found it invariant.
#[inline]
pub fn uses_counter() -> bool {
    FIRST_NS.load(Relaxed) != 0
}

#[cfg(target_arch = "x86_64")]
fn compare() -> (u64, u64) {
    // SAFETY: x86-64 has the instruction, and `may_read_tsc` has found that the process may use it.
    let counter = || unsafe { core::arch::x86_64::_rdtsc() };
    // The quickest of three, in which counter and clock were read closest to each other.
    let tries = [(); 3].map(|()| {
        let before = counter();
        let ns = now_ns();
        let took = counter() - before;
        (took, before + took / 2, ns)
    });
    let (_, ticks, ns) = tries.into_iter().min().unwrap_or_default();
    (ticks, ns)
}

/// Whether the counter is invariant, on all processors and in sleep states (CPUID 0x80000007, EDX
/// bit 8), and the process may read it.
#[cfg(target_arch = "x86_64")]
fn is_even() -> bool {
    // SAFETY: every x86-64 processor has the CPUID instruction.
    let most = core::arch::x86_64::__cpuid(0x8000_0000).eax;
    let is_invariant = most >= 0x8000_0007 && core::arch::x86_64::__cpuid(0x8000_0007).edx & 1 << 8 != 0;
    is_invariant && crate::ids::may_read_tsc()
}

/// Compares counter and clock for the first time.
pub fn begin_calibration() {
    #[cfg(target_arch = "x86_64")]
    if FIRST_NS.load(Relaxed) == 0 && is_even() {
        let (ticks, ns) = compare();
        FIRST_TICKS.store(ticks, Relaxed);
        FIRST_NS.store(ns, Relaxed);
    }
}

/// Compares counter and clock for the second time, if enough time has passed. True if the rate is known.
#[cold]
fn settle_if_due() -> bool {
    let due = uses_counter() && now_ns() >= FIRST_NS.load(Relaxed) + MIN_NS;
    if due {
        finish_calibration();
    }
    due
}

/// Compares counter and clock for the second time, after waiting until 2 ms have passed.
/// Called before the first event.
pub fn finish_calibration() {
    #[cfg(target_arch = "x86_64")]
    if RATE.load(Relaxed) == 0 && uses_counter() {
        let (first_ticks, first_ns) = (FIRST_TICKS.load(Relaxed), FIRST_NS.load(Relaxed));
        loop {
            let (ticks, ns) = compare();
            if ns < first_ns + MIN_NS {
                core::hint::spin_loop();
                continue;
            }
            let rate =
                (u128::from(ns - first_ns) << 32) / u128::from(ticks.saturating_sub(first_ticks).max(1));
            RATE.store((rate as u64).max(1), Relaxed);
            return;
        }
    }
}
