//! userfaultfd as models see it: pages of ordinary memory are called absent or present, and threads that
//! touch an absent one wait until somebody puts it there and wakes them.
//!
//! Stands in for `uffd` under loom. Every request is one step, as it is in the kernel for one page.

use crate::PAGE_BYTES;
use crate::control::Control;
use crate::errno::Errno;
pub use crate::messages::{Change, Fault, Message, Placed, Ready, Reports};
use loom::sync::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};

/// What memory holds that was moved away or never filled.
const GONE: u8 = 0xEE;

/// A userfaultfd of this process.
#[derive(Clone, Copy, Debug)]
pub struct Uffd {
    fd: i32,
}

/// Why there is no userfaultfd.
pub type OpenError = Errno;

#[derive(Debug, Default)]
struct State {
    last_fd: i32,
    open: BTreeSet<i32>,
    /// The descriptor that each page is registered with.
    registered: BTreeMap<usize, i32>,
    present: BTreeSet<usize>,
    /// Faults that no handler has read.
    unread: Vec<(i32, Fault)>,
    /// Changes of mappings that no handler has read.
    changes: Vec<(i32, Change)>,
    /// Descriptor of each thread whose change was not read, or that does not yet go on after that.
    changing: BTreeMap<u32, i32>,
    /// Page that each waiting thread waits for.
    waiting: BTreeMap<u32, usize>,
}

#[derive(Default)]
struct Kernel {
    state: Mutex<State>,
    /// Handlers wait here.
    arrived: Condvar,
    /// Threads that touched an absent page wait here.
    woken: Condvar,
}

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel::default();
}

fn pages(address: usize, len_bytes: usize) -> impl Iterator<Item = usize> {
    (address / PAGE_BYTES..(address + len_bytes).div_ceil(PAGE_BYTES)).map(|page| page * PAGE_BYTES)
}

impl State {
    fn is_absent(&self, page: usize) -> bool {
        self.registered.contains_key(&page) && !self.present.contains(&page)
    }

    fn is_changing(&self, fd: i32) -> bool {
        self.changing.values().any(|changing| *changing == fd)
    }

    fn wake(&mut self, address: usize, len_bytes: usize) {
        self.waiting.retain(|_, page| *page < address || *page >= address + len_bytes);
    }
}

fn with<T>(change: impl FnOnce(&mut State) -> T) -> T {
    change(&mut KERNEL.state.lock().expect("a model's lock"))
}

/// Notes that pages were given back to the kernel, or are there.
pub fn set_present(address: usize, len_bytes: usize, present: bool) {
    with(|state| {
        for page in pages(address, len_bytes) {
            if present {
                state.present.insert(page);
            } else {
                state.present.remove(&page);
            }
        }
    });
}

/// Whether a page is registered and absent.
#[must_use]
pub fn is_absent(address: usize) -> bool {
    with(|state| state.is_absent(address / PAGE_BYTES * PAGE_BYTES))
}

/// Touches every page of some ranges, as a load or store would: waits for those that are absent.
pub fn touch(ranges: &[(usize, usize)]) {
    let me = crate::lock::thread_id();
    let mut state = KERNEL.state.lock().expect("a model's lock");
    for page in ranges.iter().flat_map(|(address, len_bytes)| pages(*address, *len_bytes)) {
        while state.is_absent(page) {
            let fd = state.registered[&page];
            state.unread.push((fd, Fault { address: page, thread_id: me }));
            state.waiting.insert(me, page);
            KERNEL.arrived.notify_all();
            while state.waiting.contains_key(&me) {
                state = KERNEL.woken.wait(state).expect("a model's lock");
            }
        }
        state.present.insert(page);
    }
}

/// Gives pages that are registered with one descriptor, which reports changes, back to the kernel, as `madvise` does: they
/// vanish once a handler has read that.
pub fn drop_pages(address: usize, len_bytes: usize) {
    let me = crate::lock::thread_id();
    let mut state = KERNEL.state.lock().expect("a model's lock");
    if let Some(fd) = state.registered.get(&address).copied() {
        let change = Change { start: address, end: address + len_bytes, moved_to: None };
        state.changes.push((fd, change));
        state.changing.insert(me, fd);
        KERNEL.arrived.notify_all();
        while state.changes.contains(&(fd, change)) {
            state = KERNEL.woken.wait(state).expect("a model's lock");
        }
        state.changing.remove(&me);
    }
    for page in pages(address, len_bytes) {
        state.present.remove(&page);
        // SAFETY: models give back committed memory of their own.
        unsafe { core::ptr::write_bytes(page as *mut u8, 0, PAGE_BYTES) };
    }
}

/// Reads one byte as the program does.
#[must_use]
pub fn load(address: usize) -> u8 {
    touch(&[(address, 1)]);
    // SAFETY: models read committed memory of their own.
    unsafe { (address as *const u8).read_volatile() }
}

/// Writes one byte as the program does.
pub fn store(address: usize, byte: u8) {
    touch(&[(address, 1)]);
    // SAFETY: models write to committed memory of their own.
    unsafe { (address as *mut u8).write_volatile(byte) };
}

impl Uffd {
    /// Opens one.
    ///
    /// # Errors
    /// Never.
    pub fn open(_inherited_device: Option<i32>, _reports: Reports) -> Result<Self, OpenError> {
        Ok(with(|state| {
            state.last_fd += 1;
            state.open.insert(state.last_fd);
            Self { fd: state.last_fd }
        }))
    }

    /// The userfaultfd with this descriptor.
    #[must_use]
    pub const fn from_fd(fd: i32) -> Self {
        Self { fd }
    }

    /// The descriptor's number.
    #[must_use]
    pub const fn fd(self) -> i32 {
        self.fd
    }

    /// Closes the descriptor: its registrations are forgotten and its handler ends.
    pub fn close(self) {
        with(|state| {
            state.open.remove(&self.fd);
            state.registered.retain(|_, fd| *fd != self.fd);
        });
        KERNEL.arrived.notify_all();
    }

    /// The same.
    pub fn close_if_ours(self) {
        self.close();
    }

    /// Registers pages.
    ///
    /// # Errors
    /// EBADF on a closed descriptor.
    pub fn register(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        with(|state| {
            if !state.open.contains(&self.fd) {
                return Err(Errno(libc::EBADF));
            }
            for page in pages(address, len_bytes) {
                state.registered.insert(page, self.fd);
            }
            Ok(())
        })
    }

    /// Takes the registration back.
    ///
    /// # Errors
    /// Never.
    pub fn unregister(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        with(|state| {
            for page in pages(address, len_bytes) {
                state.registered.remove(&page);
            }
            state.wake(address, len_bytes);
        });
        KERNEL.woken.notify_all();
        Ok(())
    }

    /// Wakes threads that wait on these pages.
    pub fn wake(self, address: usize, len_bytes: usize) -> bool {
        with(|state| state.wake(address, len_bytes));
        KERNEL.woken.notify_all();
        true
    }

    fn place(self, destination: usize, source: usize, len_bytes: usize, moves: bool) -> Placed {
        let placed = with(|state| {
            let mut done_bytes = 0;
            let mut error = None;
            while done_bytes < len_bytes {
                let (to, from) = (destination + done_bytes, source + done_bytes);
                error = if !state.open.contains(&self.fd) {
                    Some(Errno(libc::EBADF))
                } else if state.is_changing(self.fd) {
                    Some(Errno(libc::EAGAIN))
                } else if state.registered.get(&to) != Some(&self.fd) {
                    Some(Errno(libc::ENOENT))
                } else if state.present.contains(&to) {
                    Some(Errno(libc::EEXIST))
                } else if moves && !state.present.contains(&from) {
                    Some(Errno(libc::ENOENT))
                } else {
                    None
                };
                if error.is_some() {
                    break;
                }
                assert!(
                    moves || pages(from, PAGE_BYTES).all(|page| !state.is_absent(page)),
                    "copied from nowhere"
                );
                // SAFETY: models place pages of committed memory of their own.
                unsafe {
                    core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, PAGE_BYTES);
                    if moves {
                        core::ptr::write_bytes(from as *mut u8, GONE, PAGE_BYTES);
                        state.present.remove(&from);
                    }
                }
                state.present.insert(to);
                done_bytes += PAGE_BYTES;
            }
            state.wake(destination, done_bytes);
            Placed { done_bytes, error }
        });
        KERNEL.woken.notify_all();
        placed
    }

    /// Puts copies of `source`'s bytes into absent pages and wakes whoever waits for them.
    ///
    /// # Safety
    /// As for the real one.
    #[must_use]
    pub unsafe fn copy(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        self.place(destination, source, len_bytes, false)
    }

    /// Moves pages into absent ones and wakes whoever waits for them.
    ///
    /// # Safety
    /// As for the real one.
    #[must_use]
    pub unsafe fn move_pages(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        self.place(destination, source, len_bytes, true)
    }

    /// Puts a page of zeroes in place.
    ///
    /// # Errors
    /// As for a copy.
    pub fn zero_page(self, address: usize) -> Result<(), Errno> {
        static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        match self.place(address, ZEROES.as_ptr() as usize, PAGE_BYTES, false).error {
            None => Ok(()),
            Some(errno) => Err(errno),
        }
    }

    /// Hands the faults that there are, and then changes, to `each`; waits for nothing. False when the descriptor is closed.
    pub fn read(self, mut each: impl FnMut(Message)) -> bool {
        let read: Option<Vec<Message>> = with(|state| {
            state.open.contains(&self.fd).then(|| {
                let faults = state.unread.extract_if(.., |(fd, _)| *fd == self.fd);
                let mut messages: Vec<_> = faults.map(|(_, fault)| Message::Fault(fault)).collect();
                let changes = state.changes.extract_if(.., |(fd, _)| *fd == self.fd);
                messages.extend(changes.map(|(_, change)| Message::Change(change)));
                messages
            })
        });
        if read.as_ref().is_some_and(|all| all.iter().any(|message| matches!(message, Message::Change(_)))) {
            KERNEL.woken.notify_all();
        }
        let is_open = read.is_some();
        read.into_iter().flatten().for_each(&mut each);
        is_open
    }

    /// Whether a thread's change was not read, or it does not yet go on after that.
    #[must_use]
    pub fn is_changing(self) -> bool {
        with(|state| state.is_changing(self.fd))
    }

    /// As the real one; no model needs it.
    ///
    /// # Errors
    /// Always.
    pub fn ring(self, _announce: impl FnOnce(usize)) -> Result<(), Errno> {
        Err(Errno(libc::ENOSYS))
    }
}

/// Models move pages.
#[must_use]
pub fn moves() -> bool {
    true
}

/// No model does without.
pub fn leave_moves() {}

/// Waits for faults: without limit if the timeout is negative, else not at all.
pub fn wait(first: Uffd, second: Option<Uffd>, _control: Control, _program: i32, timeout_ms: i32) -> Ready {
    let mut state = KERNEL.state.lock().expect("a model's lock");
    loop {
        let has = |uffd: Uffd| {
            state.unread.iter().any(|(fd, _)| *fd == uffd.fd)
                || state.changes.iter().any(|(fd, _)| *fd == uffd.fd)
        };
        let ready = Ready {
            first: has(first),
            second: second.is_some_and(has),
            control: false,
            program: false,
            is_closed: !state.open.contains(&first.fd),
        };
        if ready != Ready::default() || timeout_ms >= 0 {
            return ready;
        }
        state = KERNEL.arrived.wait(state).expect("a model's lock");
    }
}
