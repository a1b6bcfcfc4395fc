//! The time, in ns of CLOCK_MONOTONIC, from the time stamp counter where that counts evenly; and waiting for it to pass.
//!
//! Reading the counter costs 10 ns, the clock by its vDSO 25 (`uncopy bench recording`). The counter is compared with
//! the clock twice: when a recording or the engine begins, and when somebody first wants to know how long something took.

use crate::call::kernel;
#[cfg(not(loom))]
use crate::call::syscall;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counter and the clock when they were first compared.
static FIRST_TICKS: AtomicU64 = AtomicU64::new(0);
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// ns a tick, in units of 2^-32; 0: not known yet, or the clock is asked.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Shortest time between the two comparisons, ns: each is wrong by some 50 ns at most.
const MIN_NS: u64 = 2_000_000;

/// A clock that every kernel has, ns; 0 where a filter refuses it.
#[inline]
fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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

/// Processor time that all threads of the process have used, ns: a system call, not one of the vDSO. Where a filter refuses it, `errno`
/// is changed: for critical sections.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time that all threads of another process have used, ns: a system call. 0 where it has ended. Where a filter refuses it,
/// `errno` is changed: for critical sections.
#[must_use]
pub fn cpu_ns_of(process: u32) -> u64 {
    /// `CPUCLOCK_SCHED` of a process, as `clock_getcpuclockid` makes it (linux/posix-timers.h).
    const SCHED: i32 = 2;
    let Ok(process) = i32::try_from(process) else { return 0 };
    read_ns(!process << 3 | SCHED)
}

/// Lets other threads run, also those of lower priority.
pub fn pause() {
    #[cfg(loom)]
    return loom::thread::yield_now();
    #[cfg(not(loom))]
    {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
        let _errno = crate::errno::Keep::new();
        // SAFETY: the time is valid; the rest is not asked for. The call itself: libc's function would be a
        // point of cancellation, and locks may be held.
        unsafe { kernel!(Sleep, syscall!(libc::SYS_nanosleep, &raw const time, 0)) };
    }
}

/// Waits a while for something that other threads take long for.
pub fn doze() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // SAFETY: the time is valid; the rest is not asked for.
    unsafe { kernel!(Sleep, libc::nanosleep(&time, core::ptr::null_mut())) };
}

/// Milliseconds since some moment, to within a few. A model's time stands still.
#[must_use]
pub fn now_ms() -> u64 {
    if cfg!(loom) {
        return 0;
    }
    read_ns(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
}

/// A moment: ticks of the counter, or ns.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_counter() {
        // SAFETY: the processor has the instruction, and the process may use it: see `is_even`.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    now_ns()
}

/// When a call began, and how long it took, ns, from the two moments. After [`settle`].
#[inline]
pub fn span(start: u64, end: u64) -> (u64, u64) {
    if !is_counter() {
        return (start, end.saturating_sub(start));
    }
    let rate = RATE.load(Relaxed);
    let ns = |ticks: u64| ((u128::from(ticks) * u128::from(rate)) >> 32) as u64;
    let since = start.saturating_sub(FIRST_TICKS.load(Relaxed));
    (FIRST_NS.load(Relaxed) + ns(since), ns(end.saturating_sub(start)))
}

/// How long ago `start` was, ns, where the counter tells: nobody is asked who is slower. `None` for the first
/// moments after [`begin`].
#[inline]
pub fn since_ns(start: u64) -> Option<u64> {
    if start == 0 || (RATE.load(Relaxed) == 0 && !settle_if_due()) {
        return None;
    }
    // Unless it was stopped meanwhile.
    is_counter().then(|| span(start, ticks()).1)
}

/// The start of what [`since_ns`] is asked about; 0: there is no counter, and nobody is asked.
#[inline]
pub fn start() -> u64 {
    if is_counter() { ticks() } else { 0 }
}

/// Nobody reads the counter from here on: the program has made it a fault.
pub fn stop() {
    FIRST_NS.store(0, Relaxed);
}

/// A moment for coarse comparisons, in steps of some 0.1 s.
#[inline]
pub fn coarse(ticks: u64) -> u32 {
    (ticks >> 28) as u32
}

/// Whether moments are the counter's: [`begin`] has found that it counts evenly.
#[inline]
pub fn is_counter() -> bool {
    FIRST_NS.load(Relaxed) != 0
}

#[cfg(target_arch = "x86_64")]
fn compare() -> (u64, u64) {
    // SAFETY: x86-64 has the instruction, and `may_read_counter` has said that the process may use it.
    let counter = || unsafe { core::arch::x86_64::_rdtsc() };
    // The quickest of three: the two were read closest to each other.
    let tries = [(); 3].map(|()| {
        let before = counter();
        let ns = now_ns();
        let took = counter() - before;
        (took, before + took / 2, ns)
    });
    let (_, ticks, ns) = tries.into_iter().min().unwrap_or_default();
    (ticks, ns)
}

/// Whether the counter counts evenly, on all processors and when they sleep (CPUID 0x80000007, EDX bit 8), and the
/// process may read it.
#[cfg(target_arch = "x86_64")]
fn is_even() -> bool {
    // SAFETY: every processor of x86-64 has CPUID.
    let most = core::arch::x86_64::__cpuid(0x8000_0000).eax;
    let is_invariant = most >= 0x8000_0007 && core::arch::x86_64::__cpuid(0x8000_0007).edx & 1 << 8 != 0;
    is_invariant && crate::ids::may_read_counter()
}

/// Compares the two for the first time.
pub fn begin() {
    #[cfg(target_arch = "x86_64")]
    if FIRST_NS.load(Relaxed) == 0 && is_even() {
        let (ticks, ns) = compare();
        FIRST_TICKS.store(ticks, Relaxed);
        FIRST_NS.store(ns, Relaxed);
    }
}

/// Compares the two for the second time, if enough time has gone by. Whether the rate is known now.
#[cold]
fn settle_if_due() -> bool {
    let due = is_counter() && now_ns() >= FIRST_NS.load(Relaxed) + MIN_NS;
    if due {
        settle();
    }
    due
}

/// Compares the two for the second time, before the first event. Waits for [`MIN_NS`] to go by.
pub fn settle() {
    #[cfg(target_arch = "x86_64")]
    if RATE.load(Relaxed) == 0 && is_counter() {
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
