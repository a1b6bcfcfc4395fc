//! A userfaultfd of the process, by its number in the calling thread's table of descriptors.
//!
//! The handler thread has a table of its own. When the program is about to use the number, only the
//! descriptor in the program's table is moved to another.

use uncopy_sys::sync::atomic::{AtomicI32, Ordering::Relaxed};
use uncopy_sys::thread;
use uncopy_sys::uffd::Uffd;

/// A userfaultfd whose number may change, and which may be absent.
pub struct UffdDescriptor {
    /// Number in the program's table; -1: there is no userfaultfd.
    program: AtomicI32,
    /// Number in the handler thread's own table; -1: the handler shares the program's table.
    handler: AtomicI32,
}

impl UffdDescriptor {
    uncopy_sys::constant! {
        /// A descriptor without a userfaultfd.
        pub const fn new() -> Self {
            Self { program: AtomicI32::new(-1), handler: AtomicI32::new(-1) }
        }
    }

    /// The userfaultfd. If there is none, or it was closed, the kernel answers every request with an error.
    #[inline]
    pub fn uffd(&self) -> Uffd {
        let own = self.handler.load(Relaxed);
        let is_own = !cfg!(loom) && own >= 0 && thread::is_handler();
        Uffd::from_fd(if is_own { own } else { self.program.load(Relaxed) })
    }

    /// The userfaultfd if there is one, for any thread but the handler. Makes no system call.
    #[inline]
    pub fn open(&self) -> Option<Uffd> {
        Some(self.program.load(Relaxed)).filter(|fd| *fd >= 0).map(Uffd::from_fd)
    }

    /// Sets the number in the program's table; `None`: the descriptor is not in that table any more.
    pub fn set_program_fd(&self, uffd: Option<Uffd>) {
        self.program.store(uffd.map_or(-1, Uffd::fd), Relaxed);
    }

    /// Sets the number in the own table of a handler thread that begins; `None`: it shares the program's.
    pub fn set_handler_fd(&self, uffd: Option<Uffd>) {
        self.handler.store(uffd.map_or(-1, Uffd::fd), Relaxed);
    }

    /// Clears both numbers, in a forked child, which has neither userfaultfd nor handler.
    pub fn forget(&self) {
        self.set_program_fd(None);
        self.set_handler_fd(None);
    }
}
