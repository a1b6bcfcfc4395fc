//! A userfaultfd for loom models, which replaces the module `uffd` there: pages of ordinary memory are marked
//! absent or present, and threads that access an absent page wait until a handler places it and wakes them.
//!
//! Every request is one atomic step, as it is in the kernel for one page.

use crate::PAGE_BYTES;
use crate::control::Control;
use crate::descriptor::{OwnFd, ProgramFd};
use crate::errno::Errno;
pub use crate::messages::{Change, Fault, Message, Placed, Ready, Reports};
use loom::sync::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};

/// Byte that fills memory which was moved away or never filled.
const GONE: u8 = 0xEE;

/// A userfaultfd of this process.
#[derive(Clone, Copy, Debug)]
pub struct Uffd {
    fd: i32,
}

/// Error of opening a userfaultfd.
pub type OpenError = Errno;

#[derive(Debug, Default)]
struct State {
    last_fd: i32,
    open: BTreeSet<i32>,
    /// Descriptor with which each page is registered.
    registered: BTreeMap<usize, i32>,
    present: BTreeSet<usize>,
    /// Faults that no handler has read yet.
    unread: Vec<(i32, Fault)>,
    /// Changes of mappings that no handler has read yet.
    changes: Vec<(i32, Change)>,
    /// For each thread that changes mappings, the descriptor, until its change is read and it has continued.
    changing: BTreeMap<u32, i32>,
    /// The page that each waiting thread waits for.
    waiting: BTreeMap<u32, usize>,
}

#[derive(Default)]
struct Kernel {
    state: Mutex<State>,
    /// Signalled when a message arrives, for handlers.
    arrived: Condvar,
    /// Signalled when threads are woken that wait for a page.
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

/// Calls `f` with the simulated kernel's state, as one atomic step.
fn with_state<T>(f: impl FnOnce(&mut State) -> T) -> T {
    f(&mut KERNEL.state.lock().expect("a model's lock"))
}

/// Notes that pages were returned to the kernel, or are present.
pub fn set_present(address: usize, len_bytes: usize, present: bool) {
    with_state(|state| {
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
    with_state(|state| state.is_absent(address / PAGE_BYTES * PAGE_BYTES))
}

/// Accesses every page of some ranges, as a load or store would: waits for the absent ones.
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

/// Returns pages, registered with a descriptor that reports changes, to the kernel as `madvise`
/// does: they vanish once a handler has read the change.
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
        // SAFETY: the model's own committed memory, which no other thread of the model uses in this step.
        unsafe { core::ptr::write_bytes(page as *mut u8, 0, PAGE_BYTES) };
    }
}

/// Reads one byte as the program does.
#[must_use]
pub fn load(address: usize) -> u8 {
    touch(&[(address, 1)]);
    // SAFETY: the model passes an address in its own committed memory.
    unsafe { (address as *const u8).read_volatile() }
}

/// Writes one byte as the program does.
pub fn store(address: usize, byte: u8) {
    touch(&[(address, 1)]);
    // SAFETY: the model passes an address in its own committed memory.
    unsafe { (address as *mut u8).write_volatile(byte) };
}

impl From<OwnFd> for Uffd {
    fn from(fd: OwnFd) -> Self {
        Self { fd: fd.leave_open() }
    }
}

impl Uffd {
    /// Opens a simulated userfaultfd.
    ///
    /// # Errors
    /// None: this cannot fail.
    pub fn open(_inherited_device: Option<ProgramFd>, _reports: Reports) -> Result<Self, OpenError> {
        Ok(with_state(|state| {
            state.last_fd += 1;
            state.open.insert(state.last_fd);
            Self { fd: state.last_fd }
        }))
    }

    /// The userfaultfd with this descriptor number.
    #[must_use]
    pub const fn from_fd(fd: i32) -> Self {
        Self { fd }
    }

    /// Number of the descriptor.
    #[must_use]
    pub const fn fd(self) -> i32 {
        self.fd
    }

    /// The descriptor as the program would name it.
    #[must_use]
    pub const fn as_program(self) -> ProgramFd {
        ProgramFd::new(self.fd)
    }

    /// Closes the descriptor: its registrations are dropped and its handler ends.
    pub fn close(self) {
        with_state(|state| {
            state.open.remove(&self.fd);
            state.registered.retain(|_, fd| *fd != self.fd);
        });
        KERNEL.arrived.notify_all();
    }

    /// Closes the descriptor, which no model's program has closed before.
    pub fn close_if_ours(self) {
        self.close();
    }

    /// Registers a range of pages.
    ///
    /// # Errors
    /// EBADF if the descriptor is closed.
    pub fn register(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        with_state(|state| {
            if !state.open.contains(&self.fd) {
                return Err(Errno(libc::EBADF));
            }
            for page in pages(address, len_bytes) {
                state.registered.insert(page, self.fd);
            }
            Ok(())
        })
    }

    /// Unregisters a range of pages: those of any descriptor are forgotten, and the threads that wait for them
    /// are woken.
    ///
    /// # Errors
    /// None: this cannot fail.
    pub fn unregister(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        with_state(|state| {
            for page in pages(address, len_bytes) {
                state.registered.remove(&page);
            }
            state.wake(address, len_bytes);
        });
        KERNEL.woken.notify_all();
        Ok(())
    }

    /// Wakes the threads that wait on these pages.
    pub fn wake(self, address: usize, len_bytes: usize) -> bool {
        with_state(|state| state.wake(address, len_bytes));
        KERNEL.woken.notify_all();
        true
    }

    fn place(self, destination: usize, source: usize, len_bytes: usize, moves: bool) -> Placed {
        let placed = with_state(|state| {
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
                // SAFETY: the model passes whole pages of its own committed memory, which do not overlap.
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

    /// Fills absent pages with copies of the bytes at `source` and wakes the threads that wait for them.
    ///
    /// # Safety
    /// See `uffd::Uffd::copy`.
    #[must_use]
    pub unsafe fn copy(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        self.place(destination, source, len_bytes, false)
    }

    /// Moves pages into absent ones and wakes the threads that wait for them.
    ///
    /// # Safety
    /// See `uffd::Uffd::move_pages`.
    #[must_use]
    pub unsafe fn move_pages(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        self.place(destination, source, len_bytes, true)
    }

    /// Fills one absent page with zeroes and wakes the threads that wait for it.
    ///
    /// # Errors
    /// See [`Uffd::copy`].
    pub fn zero_page(self, address: usize) -> Result<(), Errno> {
        static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        match self.place(address, ZEROES.as_ptr() as usize, PAGE_BYTES, false).error {
            None => Ok(()),
            Some(errno) => Err(errno),
        }
    }

    /// Passes all pending faults, then all changes, to `each`, without waiting. Returns false if
    /// the descriptor is closed.
    pub fn read(self, mut each: impl FnMut(Message)) -> bool {
        let read: Option<Vec<Message>> = with_state(|state| {
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

    /// Whether a thread is changing mappings: its change was not read, or the thread has not continued yet.
    #[must_use]
    pub fn is_changing(self) -> bool {
        with_state(|state| state.is_changing(self.fd))
    }

    /// Always fails, because no model uses the bell.
    ///
    /// # Errors
    /// ENOSYS in every case.
    pub fn wake_handler(self, _announce: impl FnOnce(usize)) -> Result<(), Errno> {
        Err(Errno(libc::ENOSYS))
    }
}

/// Whether pages are moved: always, in models.
#[must_use]
pub fn can_move_pages() -> bool {
    true
}

/// Does nothing: every model moves pages.
pub fn disable_moves() {}

/// Waits for faults: without limit if the timeout is negative, else not at all.
pub fn wait(
    first: Uffd,
    second: Option<Uffd>,
    _control: Control,
    _program: Option<&OwnFd>,
    timeout_ms: i32,
) -> Ready {
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
