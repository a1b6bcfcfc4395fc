//! Locks that know their owner, and the signal mask that guards what they protect.
//!
//! A signal handler may call memcpy or recv, and may touch a viewed buffer. On top of a thread that
//! holds one of these locks it would deadlock with that thread. So a [`Critical`] must be entered
//! before a lock is taken: no handler of the program runs in it.
//!
//! The owner is a thread id, as in the kernel's priority-inheritance futexes, so that the handler
//! thread can see that the thread whose fault it serves holds the lock.

use crate::signal_mask::{BLOCKED, set_mask};
use crate::sync::atomic::Ordering;
use crate::sync::{Futex, SPINS, spin_loop};
use core::cell::Cell;

const WAITERS: u32 = 1 << 31;

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
crate::locals! {
    static THREAD_ID: Cell<u32> = Cell::new(0);
}

#[cfg(not(loom))]
fn kernel_id() -> u32 {
    // SAFETY: gettid has no preconditions and accesses no memory of the caller.
    let id = unsafe { crate::call::syscall!(libc::SYS_gettid) };
    u32::try_from(id).unwrap_or(1)
}

#[cfg(loom)]
static LAST_ID: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

#[cfg(loom)]
fn kernel_id() -> u32 {
    LAST_ID.fetch_add(1, core::sync::atomic::Ordering::Relaxed) + 1
}

#[cfg(loom)]
pub(crate) fn begin_model() {
    LAST_ID.store(0, core::sync::atomic::Ordering::Relaxed);
}

/// Returns the calling thread's kernel thread id.
#[inline]
#[must_use]
pub fn thread_id() -> u32 {
    let id = remembered_id();
    if id != 0 {
        return id;
    }
    let id = kernel_id();
    remember_id(id);
    id
}

/// Forgets the cached thread id. Must be called in a forked child.
pub fn forget_thread_id() {
    remember_id(0);
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline]
fn remembered_id() -> u32 {
    crate::thread_words::thread_words().id.load(Ordering::Relaxed)
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
fn remember_id(id: u32) {
    crate::thread_words::thread_words().id.store(id, Ordering::Relaxed);
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
fn remembered_id() -> u32 {
    THREAD_ID.with(Cell::get)
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
fn remember_id(id: u32) {
    THREAD_ID.with(|cached| cached.set(id));
}

/// A mutual exclusion lock. All-zero bytes are an unlocked lock.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Lock(Futex);

impl Lock {
    crate::constant! {
        /// Returns an unlocked lock.
        #[must_use]
        pub const fn new() -> Self {
            Self(Futex::new(0))
        }
    }

    /// Acquires the lock if it is free.
    #[must_use]
    pub fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, thread_id(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits for the lock and acquires it.
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            spin_loop();
            if self.0.load(Ordering::Relaxed) == 0 && self.try_lock() {
                return;
            }
        }
        let me = thread_id();
        loop {
            let value = self.0.load(Ordering::Relaxed);
            if value == 0 {
                // Other threads may still sleep: WAITERS stays set.
                if self.0.compare_exchange(0, me | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            if value & WAITERS == 0
                && self
                    .0
                    .compare_exchange(value, value | WAITERS, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            self.0.wait(value | WAITERS);
        }
    }

    /// Releases the lock.
    ///
    /// The calling thread must hold it; after a fork, the child's only thread may release the locks
    /// that the forking thread held.
    pub fn unlock(&self) {
        if self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            self.0.wake(1);
        }
    }

    /// Thread id of the owner; 0 if the lock is free.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !WAITERS
    }

    /// Acquires the lock until the guard is dropped.
    #[must_use]
    pub fn guard(&self) -> Guard<'_> {
        self.lock();
        Guard(self)
    }
}

/// Guard that releases a lock when dropped.
pub struct Guard<'a>(&'a Lock);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// A section in which no signal handler of the program runs, except for a synchronous fault.
/// Dropping it restores `errno` and runs the deferred handlers.
pub struct Critical {
    held: Held,
    errno: Cell<i32>,
}

/// Method that keeps signal handlers from running.
enum Held {
    /// Signals are blocked; holds the mask to restore.
    Mask(Cell<u64>),
    /// Handlers are deferred; holds the previous `inside` word.
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    Word(u32),
}

impl Critical {
    /// Begins a section by blocking signals.
    #[must_use]
    pub fn enter() -> Self {
        let errno = crate::errno::get();
        let mut mask = 0;
        set_mask(BLOCKED, Some(&mut mask));
        Self { held: Held::Mask(Cell::new(mask)), errno: Cell::new(errno) }
    }

    /// Begins a section by deferring handlers without a system call if possible
    /// ([`crate::deferral`]), else by blocking signals. For sections that wait only for locks and
    /// make no system call that a signal could interrupt.
    #[inline]
    #[must_use]
    pub fn enter_briefly() -> Self {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        if crate::deferral::is_on() {
            let errno = crate::errno::get();
            return Self { held: Held::Word(crate::deferral::enter()), errno: Cell::new(errno) };
        }
        Self::enter()
    }

    fn leave(&self) {
        match &self.held {
            Held::Mask(mask) => set_mask(mask.get(), None),
            #[cfg(all(target_arch = "x86_64", not(loom)))]
            Held::Word(before) => crate::deferral::leave(*before),
        }
        crate::errno::set(self.errno.get());
    }

    /// Runs `section`, a system call of the program's, with handlers enabled. The `errno` that
    /// `section` leaves is restored at the end of the critical section.
    pub fn run_outside<T>(&self, section: impl FnOnce() -> T) -> T {
        self.leave();
        let result = section();
        self.errno.set(crate::errno::get());
        match &self.held {
            Held::Mask(old) => {
                // A signal handler may have changed the mask: the new one is restored at the end.
                let mut mask = 0;
                set_mask(BLOCKED, Some(&mut mask));
                old.set(mask);
            }
            #[cfg(all(target_arch = "x86_64", not(loom)))]
            Held::Word(_) => _ = crate::deferral::enter(),
        }
        result
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}

/// Makes the system calls of a [`Critical`], to test whether a filter allows them.
pub(crate) fn probe_mask_calls() {
    drop(Critical::enter());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_counter_under_the_lock_loses_nothing() {
        struct Shared(Lock, core::cell::UnsafeCell<u64>);
        // SAFETY: the counter is accessed only under the lock.
        unsafe impl Sync for Shared {}
        // SAFETY: `Lock` and the counter may be used by any thread, one at a time.
        unsafe impl Send for Shared {}
        let shared = Arc::new(Shared(Lock::new(), core::cell::UnsafeCell::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = shared.0.guard();
                        // SAFETY: this thread holds the lock, so no other accesses the counter.
                        unsafe { *shared.1.get() += 1 };
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("thread ends");
        }
        // SAFETY: all threads that access the counter have been joined.
        assert_eq!(unsafe { *shared.1.get() }, 80_000);
        assert_eq!(shared.0.owner(), 0);
    }

    #[test]
    fn the_owner_is_the_thread_that_holds_it() {
        let lock = Lock::new();
        let _guard = lock.guard();
        assert_eq!(lock.owner(), thread_id());
        assert!(!lock.try_lock());
    }

    #[test]
    fn signals_wait_until_the_critical_section_ends_and_errno_is_kept() {
        use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
        static HITS: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count(_signal: i32) {
            HITS.fetch_add(1, SeqCst);
        }
        // SAFETY: `count` has the signature of a handler and only adds to an atomic.
        unsafe { libc::signal(libc::SIGUSR2, count as *const () as usize) };
        crate::errno::set(77);
        {
            let critical = Critical::enter();
            // SAFETY: pthread_self is a live thread, and SIGUSR2 has a handler.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(HITS.load(SeqCst), 0);
            critical.run_outside(|| assert_eq!(HITS.load(SeqCst), 1));
            // SAFETY: pthread_self is a live thread, and SIGUSR2 has a handler.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(HITS.load(SeqCst), 1);
            crate::errno::set(1);
        }
        assert_eq!(HITS.load(SeqCst), 2);
        assert_eq!(crate::errno::get(), 77);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, UnsafeCell, check, spawn};
    use crate::uffd;

    struct Guarded {
        lock: Lock,
        count: UnsafeCell<u32>,
    }

    // SAFETY: the count is accessed only under the lock, as loom checks.
    unsafe impl Sync for Guarded {}
    // SAFETY: `Lock` and the count may be used by any thread, one at a time.
    unsafe impl Send for Guarded {}

    fn guarded() -> Arc<Guarded> {
        Arc::new(Guarded { lock: Lock::new(), count: UnsafeCell::new(0) })
    }

    fn count_one(shared: &Guarded) {
        let _guard = shared.lock.guard();
        assert_eq!(shared.lock.owner(), thread_id(), "whoever is inside is the owner");
        // SAFETY: this thread holds the lock, so no other accesses the count.
        unsafe { *shared.count.get() += 1 };
    }

    /// A lost wake-up would leave a thread asleep for ever, which loom reports.
    #[test]
    fn three_threads_take_turns_and_none_sleeps_for_ever() {
        check(3, || {
            let shared = guarded();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    spawn(move || count_one(&shared))
                })
                .collect();
            count_one(&shared);
            others.into_iter().for_each(|other| other.join().expect("thread"));
            assert_eq!(shared.lock.owner(), 0);
            // SAFETY: the other threads have been joined.
            assert_eq!(unsafe { *shared.count.get() }, 3);
        });
    }

    #[test]
    fn a_thread_that_comes_back_for_the_lock_gets_it() {
        check(3, || {
            let shared = guarded();
            let other = {
                let shared = Arc::clone(&shared);
                spawn(move || (0..2).for_each(|_| count_one(&shared)))
            };
            (0..2).for_each(|_| count_one(&shared));
            other.join().expect("thread");
            // SAFETY: the other thread has been joined.
            assert_eq!(unsafe { *shared.count.get() }, 4);
        });
    }

    /// `try_lock` never waits and never takes a lock that another thread holds.
    #[test]
    fn who_only_tries_never_enters_while_others_are_inside() {
        check(3, || {
            let shared = guarded();
            let holders: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    spawn(move || count_one(&shared))
                })
                .collect();
            let mut expected = 2;
            if shared.lock.try_lock() {
                // SAFETY: `try_lock` succeeded, so no other thread accesses the count.
                unsafe { *shared.count.get() += 1 };
                shared.lock.unlock();
                expected += 1;
            }
            holders.into_iter().for_each(|other| other.join().expect("thread"));
            // SAFETY: the other threads have been joined.
            assert_eq!(unsafe { *shared.count.get() }, expected);
        });
    }

    /// The handler thread reads the owner without the lock: it finds the thread that waits for a
    /// page if and only if that thread holds the lock, however often it held the lock before.
    #[test]
    fn the_owner_that_the_fault_service_sees_is_the_waiting_thread_only_if_it_is() {
        check(3, || {
            let lock = Arc::new(Lock::new());
            let kernel = uffd::Uffd::open(None, uffd::Reports::Faults).expect("simulated");
            let memory = crate::mem::Reservation::new(2 * 4096).expect("addresses");
            memory.commit(memory.base(), 2 * 4096).expect("memory");
            kernel.register(memory.base(), 2 * 4096).expect("registered");
            let (outside, inside) = (memory.base(), memory.base() + 4096);
            let toucher = {
                let lock = Arc::clone(&lock);
                spawn(move || {
                    drop(lock.guard());
                    uffd::touch(&[(outside, 1)]);
                    let _guard = lock.guard();
                    uffd::touch(&[(inside, 1)]);
                })
            };
            let other = {
                let lock = Arc::clone(&lock);
                spawn(move || drop(lock.guard()))
            };
            let mut served = 0;
            while served < 2 {
                uffd::wait(kernel, None, crate::control::Control::NONE, None, -1);
                kernel.read(|message| {
                    let uffd::Message::Fault(fault) = message else { return };
                    if lock.try_lock() {
                        assert_eq!(fault.address, outside, "the lock is held by the thread that waits");
                        lock.unlock();
                    } else if fault.address == inside {
                        assert_eq!(lock.owner(), fault.thread_id);
                    } else {
                        assert_ne!(lock.owner(), fault.thread_id);
                    }
                    uffd::set_present(fault.address, 4096, true);
                    kernel.wake(fault.address, 4096);
                    served += 1;
                });
            }
            toucher.join().expect("thread");
            other.join().expect("thread");
        });
    }
}
