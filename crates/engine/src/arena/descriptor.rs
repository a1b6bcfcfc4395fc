//! A userfaultfd of the process, by the number that it has for the calling thread.
//!
//! The handler thread has a table of descriptors of its own. When the program is about to use our number, only the
//! descriptor in the program's table gets another one.

use uncopy_sys::sync::atomic::{AtomicI32, Ordering::Relaxed};
use uncopy_sys::thread;
use uncopy_sys::uffd::Uffd;

/// A userfaultfd that may come, go and change its number.
pub struct Descriptor {
    /// Number in the program's table; -1: there is none.
    program: AtomicI32,
    /// Number in the handler thread's own table; -1: it has none, and shares the program's.
    handler: AtomicI32,
}

impl Descriptor {
    uncopy_sys::constant! {
        /// None yet.
        pub const fn new() -> Self {
            Self { program: AtomicI32::new(-1), handler: AtomicI32::new(-1) }
        }
    }

    /// The userfaultfd. Where there is none, or it is gone, the kernel answers every request with an error.
    #[inline]
    pub fn uffd(&self) -> Uffd {
        let own = self.handler.load(Relaxed);
        let is_own = !cfg!(loom) && own >= 0 && thread::is_handler();
        Uffd::from_fd(if is_own { own } else { self.program.load(Relaxed) })
    }

    /// The same if there is one, for any thread but the handler. A load: no system call, whoever asks.
    #[inline]
    pub fn open(&self) -> Option<Uffd> {
        Some(self.program.load(Relaxed)).filter(|fd| *fd >= 0).map(Uffd::from_fd)
    }

    /// It has this number in the program's table from here on; `None`: it is not there any more.
    pub fn renumber(&self, uffd: Option<Uffd>) {
        self.program.store(uffd.map_or(-1, Uffd::fd), Relaxed);
    }

    /// The handler thread that begins has a table of its own, in which it has this number; `None`: it shares the program's.
    pub fn isolate(&self, uffd: Option<Uffd>) {
        self.handler.store(uffd.map_or(-1, Uffd::fd), Relaxed);
    }

    /// There is none any more, nor a handler: in a forked child.
    pub fn forget(&self) {
        self.renumber(None);
        self.isolate(None);
    }
}
