//! A userfaultfd of the process, by the number that it has for the calling thread.
//!
//! The handler thread has a table of descriptors of its own. When the program is about to use our number, only the
//! descriptor in the program's table gets another one.

use uncopy_sys::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use uncopy_sys::thread;
use uncopy_sys::uffd::Uffd;

/// A userfaultfd that may come, go and change its number.
pub struct Descriptor {
    /// Number in the program's table; -1: there is none.
    program: AtomicI32,
    /// Number in the handler thread's table.
    handler: AtomicI32,
    is_isolated: AtomicBool,
}

impl Descriptor {
    uncopy_sys::constant! {
        /// None yet.
        pub const fn new() -> Self {
            Self {
                program: AtomicI32::new(-1),
                handler: AtomicI32::new(-1),
                is_isolated: AtomicBool::new(false),
            }
        }
    }

    /// The userfaultfd. Where there is none, or it is gone, the kernel answers every request with an error.
    #[inline]
    pub fn uffd(&self) -> Uffd {
        let is_handlers = !cfg!(loom) && thread::is_handler();
        Uffd::from_fd(if is_handlers { self.handler.load(Relaxed) } else { self.program.load(Relaxed) })
    }

    /// The same if there is one.
    pub fn open(&self) -> Option<Uffd> {
        Some(self.uffd()).filter(|uffd| uffd.fd() >= 0)
    }

    /// Sets it, before its handler thread starts.
    pub fn set(&self, uffd: Option<Uffd>) {
        let fd = uffd.map_or(-1, Uffd::fd);
        self.program.store(fd, Relaxed);
        self.handler.store(fd, Relaxed);
        self.is_isolated.store(false, Relaxed);
    }

    /// The handler thread has a table of its own from here on.
    pub fn isolate(&self) {
        self.is_isolated.store(true, Relaxed);
    }

    /// It has another number in the program's table, or is not there any more.
    pub fn renumber(&self, fd: Option<i32>) {
        self.program.store(fd.unwrap_or(-1), Relaxed);
        if !self.is_isolated.load(Relaxed) {
            self.handler.store(fd.unwrap_or(-1), Relaxed);
        }
    }
}
