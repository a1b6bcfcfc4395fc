//! The primitives that locks, hooks, the handler thread and forks share: atomics, cells, futexes,
//! reference counts, and statics that hold them.
//!
//! In the library these are the processor's and the kernel's, at no cost. With `--cfg loom` they
//! are loom's, which runs a model for every interleaving of its threads and every value that a load
//! may return; `scripts/test` runs the models, which are beside the code (`mod models`). Modelled
//! code takes its primitives only from here.

/// Defines statics, which under loom live as long as one run of the model.
#[cfg(not(loom))]
#[macro_export]
macro_rules! statics {
    ($($statics:item)*) => { $($statics)* };
}

/// Defines statics, which under loom live as long as one run of the model.
#[cfg(loom)]
#[macro_export]
macro_rules! statics {
    ($(#[$attribute:meta])* pub static $name:ident: $type:ty = $value:expr; $($rest:tt)*) => {
        $crate::sync::loom::lazy_static! { $(#[$attribute])* pub static ref $name: $type = $value; }
        $crate::statics! { $($rest)* }
    };
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr; $($rest:tt)*) => {
        $crate::sync::loom::lazy_static! { $(#[$attribute])* static ref $name: $type = $value; }
        $crate::statics! { $($rest)* }
    };
    () => {};
}

/// Defines thread-local variables. No destructors, which would allocate from the program's heap.
#[macro_export]
macro_rules! locals {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        #[cfg(not(loom))]
        thread_local! { $($(#[$attribute])* static $name: $type = const { $value };)* }
        $(
            #[cfg(loom)]
            $crate::sync::loom::thread_local! { $(#[$attribute])* static $name: $type = $value; }
        )*
    };
}

/// Defines functions that are `const`, except under loom, whose primitives are created while a model runs.
#[macro_export]
macro_rules! constant {
    ($($(#[$attribute:meta])* $visibility:vis const fn $name:ident($($argument:ident: $of:ty),*) -> $type:ty $body:block)*) => {
        $(
            #[cfg(not(loom))]
            $(#[$attribute])*
            $visibility const fn $name($($argument: $of),*) -> $type $body
            #[cfg(loom)]
            $(#[$attribute])*
            $visibility fn $name($($argument: $of),*) -> $type $body
        )*
    };
}

#[cfg(not(loom))]
mod native {
    use core::sync::atomic::AtomicU32;

    pub use core::cell::UnsafeCell;
    pub use core::hint::spin_loop;
    pub use core::sync::atomic;
    pub use core::sync::atomic::AtomicU64 as Tally;
    pub use std::sync::Arc;

    /// Rounds of spinning before a thread sleeps.
    pub const SPINS: u32 = 200;

    /// Read access to a cell that is no longer written.
    pub trait Peek<T> {
        /// Returns a pointer to the cell's contents.
        fn peek(&self) -> *const T;
    }

    impl<T> Peek<T> for UnsafeCell<T> {
        fn peek(&self) -> *const T {
            self.get()
        }
    }

    /// A word on which threads can sleep (futex(2)). All-zero bytes are valid.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// Returns a futex with this value.
        #[must_use]
        pub const fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps until woken, unless the word has another value than this. Wake-ups may be spurious.
        pub fn wait(&self, value: u32) {
            crate::call::kernel!(Futex, self.call(libc::FUTEX_WAIT, value));
        }

        /// Wakes up to `threads` threads.
        pub fn wake(&self, threads: u32) {
            self.call(libc::FUTEX_WAKE, threads);
        }

        fn call(&self, operation: i32, value: u32) -> i64 {
            let operation = operation | libc::FUTEX_PRIVATE_FLAG;
            let _errno = crate::errno::SavedErrno::new();
            // SAFETY: the word outlives the call; FUTEX_WAIT reads it, FUTEX_WAKE uses only its address.
            unsafe {
                crate::call::syscall!(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    operation,
                    value,
                    core::ptr::null::<libc::timespec>(),
                )
            }
        }
    }

    impl core::ops::Deref for Futex {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.0
        }
    }
}

#[cfg(loom)]
mod modelled {
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed};
    use loom::sync::atomic::AtomicU32;

    pub use loom;
    pub use loom::hint::spin_loop;
    pub use loom::sync::{Arc, atomic};

    /// Rounds of spinning before a thread sleeps: loom explores every order without spinning.
    pub const SPINS: u32 = 1;

    /// A cell whose accesses must all be ordered.
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Returns a cell that holds `value`.
        pub fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        /// Returns a pointer to the contents; counts as a write.
        pub fn get(&self) -> *mut T {
            self.0.with_mut(|value| value)
        }
    }

    /// Read access to a cell that is no longer written.
    pub trait Peek<T> {
        /// Returns a pointer to the cell's contents; counts as a read.
        fn peek(&self) -> *const T;
    }

    impl<T> Peek<T> for UnsafeCell<T> {
        fn peek(&self) -> *const T {
            self.0.with(|value| value)
        }
    }

    /// A word on which threads can sleep. As in the kernel, the comparison and going to sleep are
    /// atomic with respect to wakers.
    #[derive(Debug, Default)]
    pub struct Futex {
        word: AtomicU32,
        queue: loom::sync::Mutex<()>,
        sleepers: loom::sync::Condvar,
    }

    impl Futex {
        /// Returns a futex with this value.
        pub fn new(value: u32) -> Self {
            Self { word: AtomicU32::new(value), ..Self::default() }
        }

        /// Sleeps until woken, unless the word has another value than this.
        pub fn wait(&self, value: u32) {
            let queue = self.queue.lock().expect("a model's lock");
            if self.word.load(Ordering::SeqCst) == value {
                drop(self.sleepers.wait(queue).expect("a model's lock"));
            }
        }

        /// Wakes up to `threads` threads.
        pub fn wake(&self, threads: u32) {
            let _queue = self.queue.lock().expect("a model's lock");
            if threads == 1 {
                self.sleepers.notify_one();
            } else {
                self.sleepers.notify_all();
            }
        }
    }

    impl core::ops::Deref for Futex {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.word
        }
    }

    /// Whether counters are part of the model.
    static TALLIES: AtomicBool = AtomicBool::new(false);

    /// A counter that may be part of a model.
    #[derive(Debug)]
    pub enum Tally {
        /// A counter outside the model.
        Plain(AtomicU64),
        /// A counter inside the model.
        Modelled(atomic::AtomicU64),
    }

    macro_rules! either {
        ($($name:ident($($argument:ident),*) -> $result:ty;)*) => {
            $(
                #[allow(missing_docs)]
                pub fn $name(&self, $($argument: u64,)* order: Ordering) -> $result {
                    match self {
                        Self::Plain(plain) => plain.$name($($argument,)* order),
                        Self::Modelled(modelled) => modelled.$name($($argument,)* order),
                    }
                }
            )*
        };
    }

    impl Tally {
        /// Returns a counter with this value.
        pub fn new(value: u64) -> Self {
            if TALLIES.load(Relaxed) {
                Self::Modelled(atomic::AtomicU64::new(value))
            } else {
                Self::Plain(AtomicU64::new(value))
            }
        }

        either! {
            load() -> u64;
            store(value) -> ();
            swap(value) -> u64;
            fetch_add(value) -> u64;
            fetch_sub(value) -> u64;
            fetch_max(value) -> u64;
        }
    }

    /// Runs `model` for every interleaving of its threads with at most `preemptions` preemptions.
    pub fn check(preemptions: usize, model: fn()) {
        check_all(preemptions, false, model);
    }

    /// Does the same as [`check`] with the counters as part of the model. There are many, which
    /// elsewhere would only multiply the interleavings.
    pub fn check_with_tallies(preemptions: usize, model: fn()) {
        check_all(preemptions, true, model);
    }

    fn check_all(preemptions: usize, tallies: bool, model: fn()) {
        // State that models share outside of loom (addresses, thread ids) is used by one model at a time.
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one = ONE_AT_A_TIME.lock();
        TALLIES.store(tallies, Relaxed);
        let mut builder = loom::model::Builder::new();
        builder.max_branches = 100_000;
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        let runs = std::sync::Arc::new(core::sync::atomic::AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&runs);
        builder.check(move || {
            counted.fetch_add(1, Relaxed);
            DETACHED.lock().expect("not poisoned").clear();
            crate::mem::begin_model();
            crate::lock::begin_model();
            // A separate thread, because the first one of a model has a small stack.
            let thread = spawn(model);
            thread.join().expect("a model's thread");
            loop {
                let detached = DETACHED.lock().expect("not poisoned").pop();
                let Some(thread) = detached else { break };
                thread.join().expect("a model's thread");
            }
        });
        let runs = runs.load(Relaxed);
        assert!(runs > 1, "there is only one order: nothing was checked");
        println!("{runs} orders tried");
    }

    /// Detached threads, which a model must make end.
    static DETACHED: std::sync::Mutex<Vec<loom::thread::JoinHandle<()>>> = std::sync::Mutex::new(Vec::new());

    pub(crate) fn spawn_detached(body: impl FnOnce() + Send + 'static) {
        let thread = spawn(body);
        DETACHED.lock().expect("not poisoned").push(thread);
    }

    /// Starts a thread of a model.
    pub fn spawn<T: Send + 'static>(
        body: impl FnOnce() -> T + Send + 'static,
    ) -> loom::thread::JoinHandle<T> {
        loom::thread::Builder::new().stack_size(256 << 10).spawn(body).expect("a model's thread")
    }
}

/// A value that shares no cache line with its neighbours. Processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> core::ops::Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(loom)]
pub use modelled::*;
#[cfg(not(loom))]
pub use native::*;
