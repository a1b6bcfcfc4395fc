//! The primitives that locks, hooks, the fault service and forks meet at: atomics, cells, futexes,
//! reference counts, and statics that hold them.
//!
//! In the library they are those of the processor and the kernel, at no cost. Built with `--cfg loom`
//! they are loom's, which runs a model again for every order in which its threads can interleave
//! and every value that a load may give: `scripts/test` runs the models beside the code (`mod models`).
//! Code under model takes its primitives from here and from nowhere else.

/// Defines statics. A static of loom's lives as long as one run of the model.
#[cfg(not(loom))]
#[macro_export]
macro_rules! statics {
    ($($statics:item)*) => { $($statics)* };
}

/// Defines statics. A static of loom's lives as long as one run of the model.
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

/// Defines what each thread has of its own. No destructors: they would allocate from the program's heap.
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

/// Defines functions that are `const`, except under loom: its primitives are made while a model runs.
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

    /// Reading a cell that nobody writes any more.
    pub trait Peek<T> {
        /// Pointer to what the cell holds.
        fn peek(&self) -> *const T;
    }

    impl<T> Peek<T> for UnsafeCell<T> {
        fn peek(&self) -> *const T {
            self.get()
        }
    }

    /// A word that threads can sleep on. All-zero bytes are one.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// A word of this value.
        #[must_use]
        pub const fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps until woken, unless the word has another value than this. May wake for no reason.
        pub fn wait(&self, value: u32) {
            crate::call::kernel!(Futex, self.call(libc::FUTEX_WAIT, value));
        }

        /// Wakes up to so many threads.
        pub fn wake(&self, threads: u32) {
            self.call(libc::FUTEX_WAKE, threads);
        }

        fn call(&self, operation: i32, value: u32) -> i64 {
            let operation = operation | libc::FUTEX_PRIVATE_FLAG;
            let _errno = crate::errno::Keep::new();
            // SAFETY: the word outlives the call; the kernel reads it (WAIT) or only its address (WAKE).
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

    /// Rounds of spinning before a thread sleeps: loom tries every order without it.
    pub const SPINS: u32 = 1;

    /// A cell whose every access must be ordered after the one before.
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        /// Pointer to what the cell holds; counts as a write.
        pub fn get(&self) -> *mut T {
            self.0.with_mut(|value| value)
        }
    }

    /// Reading a cell that nobody writes any more.
    pub trait Peek<T> {
        /// Pointer to what the cell holds; counts as a read.
        fn peek(&self) -> *const T;
    }

    impl<T> Peek<T> for UnsafeCell<T> {
        fn peek(&self) -> *const T {
            self.0.with(|value| value)
        }
    }

    /// A word that threads can sleep on. As in the kernel, comparing and going to sleep are one step
    /// as far as wakers are concerned.
    #[derive(Debug, Default)]
    pub struct Futex {
        word: AtomicU32,
        queue: loom::sync::Mutex<()>,
        sleepers: loom::sync::Condvar,
    }

    impl Futex {
        /// A word of this value.
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

        /// Wakes up to so many threads.
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

    /// Whether the counters are part of the model.
    static TALLIES: AtomicBool = AtomicBool::new(false);

    /// A counter.
    #[derive(Debug)]
    pub enum Tally {
        /// Not part of the model.
        Plain(AtomicU64),
        /// Part of the model.
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
        /// A counter of this value.
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

    /// Runs `model` in every order of its threads' steps that has at most so many preemptions.
    pub fn check(preemptions: usize, model: fn()) {
        check_all(preemptions, false, model);
    }

    /// The same, with the counters as part of the model: there are many of them, and elsewhere they would
    /// only multiply the orders to try.
    pub fn check_with_tallies(preemptions: usize, model: fn()) {
        check_all(preemptions, true, model);
    }

    fn check_all(preemptions: usize, tallies: bool, model: fn()) {
        // What models share outside of loom (addresses, thread ids) is one model's at a time.
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
            // A model's first thread has a small stack.
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

    /// Threads that nobody waits for: a model must see to it that they end.
    static DETACHED: std::sync::Mutex<Vec<loom::thread::JoinHandle<()>>> = std::sync::Mutex::new(Vec::new());

    /// Starts a thread that nobody waits for.
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

/// Something that shares no cache line with what lies next to it. Processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> core::ops::Deref for Apart<T> {
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
