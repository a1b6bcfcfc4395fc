//! The signal handler's own buffers: a signal may arrive between any two instructions of an
//! operation on the worker's buffers.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use uncopy_tests::calls::{CopyCall, set_nonblocking};
use uncopy_tests::oracle::{self, OracleBytes, errno, raw_write, set_errno};
use uncopy_tests::random::mix;

use crate::channel::pipe;
use crate::model::{pool, pool_offset};

/// Length of each buffer, bytes.
const LEN: usize = 100_000;
/// Number of buffers per worker.
const BUFFERS: usize = 3;

/// A worker's buffers for its signal handler, every byte of which is known.
#[derive(Debug)]
pub struct HandlerBuffers {
    buffers: [Cell<*mut u8>; BUFFERS],
    mirrors: [OracleBytes; BUFFERS],
    pipe: Cell<(c_int, c_int)>,
    busy: AtomicBool,
    state: Cell<u64>,
    handled: AtomicU64,
}

thread_local! {
    static HANDLER_BUFFERS: Cell<*const HandlerBuffers> = const { Cell::new(null()) };
}

const SIGNALS: [c_int; 2] = [libc::SIGALRM, libc::SIGUSR1];

extern "C" fn on_signal(_signal: c_int) {
    let error = errno();
    // SAFETY: `HANDLER_BUFFERS` is null or points to a live `HandlerBuffers`: `new` sets it and `drop` clears it.
    if let Some(handler_buffers) = unsafe { HANDLER_BUFFERS.get().as_ref() }
        && !handler_buffers.busy.swap(true, Relaxed)
    {
        handler_buffers.handle_signal();
        handler_buffers.busy.store(false, Relaxed);
    }
    set_errno(error);
}

/// Runs `work` with the signals of [`install_handler`] blocked in the calling thread.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are initialised (an all-zero `sigset_t` is valid) and live through the calls.
    unsafe {
        let (mut set, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut set);
        for signal in SIGNALS {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

/// Installs the handler for SIGALRM and SIGUSR1.
pub fn install_handler() {
    // SAFETY: an all-zero `sigaction` is valid and has an empty mask; the handler makes only
    // async-signal-safe calls and those under test.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        for signal in SIGNALS {
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0, "sigaction");
        }
    }
}

/// Sends the process a SIGALRM every `microseconds`; 0 stops the timer.
pub fn set_alarm(microseconds: usize) {
    let every = libc::timeval { tv_sec: 0, tv_usec: i64::try_from(microseconds).expect("below a second") };
    let value = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: `value` lives through the call, and setitimer(2) allows a null old value.
    let returned =
        unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &raw const value, null::<c_void>()) };
    assert_eq!(returned, 0, "setitimer");
}

impl HandlerBuffers {
    /// Creates buffers for the calling thread's handler.
    #[must_use]
    pub fn new(seed: usize) -> Box<Self> {
        let handler_buffers = Box::new(Self {
            buffers: std::array::from_fn(|_| Cell::new(std::ptr::null_mut())),
            mirrors: std::array::from_fn(|_| OracleBytes::new(LEN)),
            pipe: Cell::new(nonblocking_pipe()),
            busy: AtomicBool::new(false),
            state: Cell::new(seed as u64),
            handled: AtomicU64::new(0),
        });
        handler_buffers.fill(seed);
        HANDLER_BUFFERS.set(&raw const *handler_buffers);
        handler_buffers
    }

    /// Returns the number of signals handled.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.handled.load(Relaxed)
    }

    /// Refills every buffer from the pipe.
    pub fn fill(&self, seed: usize) {
        self.busy.store(true, Relaxed);
        for (index, buffer) in self.buffers.iter().enumerate() {
            let pool_offset = pool_offset(seed + index, LEN);
            // SAFETY: the pool has `LEN` bytes from `pool_offset` on; a buffer is null or came from
            // malloc with `LEN` bytes; each mirror has `LEN` bytes.
            unsafe {
                if (seed + index).is_multiple_of(3) || buffer.get().is_null() {
                    libc::free(buffer.get().cast());
                    buffer.set(libc::malloc(LEN).cast());
                    assert!(!buffer.get().is_null(), "malloc");
                }
                let written = raw_write(self.pipe.get().1, pool().at(pool_offset), LEN);
                let written = written.expect("an empty pipe takes some");
                let got = libc::read(self.pipe.get().0, buffer.get().cast(), LEN);
                assert_eq!(usize::try_from(got), Ok(written), "read from the handler's pipe");
                oracle::copy(self.mirrors[index].pointer(), pool().at(pool_offset), written);
                oracle::copy(buffer.get().add(written), pool().at(pool_offset), LEN - written);
                oracle::copy(self.mirrors[index].at(written), pool().at(pool_offset), LEN - written);
            }
        }
        self.busy.store(false, Relaxed);
    }

    /// Replaces the pipe that a forked child shares with its parent.
    pub fn unshare_from_parent(&self) {
        self.busy.store(true, Relaxed);
        let (reader, writer) = self.pipe.replace(nonblocking_pipe());
        // SAFETY: `self` owned both descriptors, which `replace` removed.
        unsafe {
            libc::close(reader);
            libc::close(writer);
        }
        self.busy.store(false, Relaxed);
    }

    /// Returns a random number below `limit`.
    fn below(&self, limit: usize) -> usize {
        self.state.set(self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        usize::try_from(mix(self.state.get()) >> 32).unwrap_or(0) % limit
    }

    /// Body of the handler, which must not allocate.
    fn handle_signal(&self) {
        self.handled.fetch_add(1, Relaxed);
        let one = self.below(BUFFERS);
        let two = (one + 1 + self.below(BUFFERS - 1)) % BUFFERS;
        let len = 1 + self.below(if self.below(2) == 0 { LEN } else { 9000 });
        let (at, to) = (self.below(LEN - len + 1), self.below(LEN - len + 1));
        let (one_at, two_to) =
            (self.buffers[one].get().wrapping_add(at), self.buffers[two].get().wrapping_add(to));
        // SAFETY: both ranges are inside their buffers and mirrors, which only this thread uses.
        unsafe {
            match self.below(8) {
                0..3 => {
                    let call = CopyCall::ALL[self.below(CopyCall::ALL.len())];
                    call.copy(two_to, one_at, len);
                    oracle::copy(self.mirrors[two].at(to), self.mirrors[one].at(at), len);
                }
                3 => {
                    let call = CopyCall::OVERLAPPING[self.below(CopyCall::OVERLAPPING.len())];
                    call.copy(self.buffers[one].get().add(to), one_at, len);
                    oracle::copy_overlapping(self.mirrors[one].at(to), self.mirrors[one].at(at), len);
                }
                4 => {
                    let short = len.min(50);
                    oracle::set(one_at, short, to.to_le_bytes()[0]);
                    oracle::set(self.mirrors[one].at(at), short, to.to_le_bytes()[0]);
                }
                5 => {
                    let sent = libc::write(self.pipe.get().1, one_at.cast(), len);
                    let got = libc::read(self.pipe.get().0, two_to.cast(), len);
                    if sent < 1 || sent != got {
                        fail_and_exit(b"machine: signal handler: the pipe did not give what it took\n");
                    }
                    let got = usize::try_from(got).unwrap_or(0);
                    oracle::copy(self.mirrors[two].at(to), self.mirrors[one].at(at), got);
                }
                6 => self.check(one, at, len.min(5000)),
                _ => self.check(one, at, len),
            }
        }
    }

    fn check(&self, index: usize, at: usize, len: usize) {
        let start = self.buffers[index].get().wrapping_add(at);
        // SAFETY: the range is inside the buffer and its mirror.
        if unsafe { oracle::first_difference(start, self.mirrors[index].at(at), len) }.is_some() {
            fail_and_exit(b"machine: DIFFERENCE in a buffer of the signal handler\n");
        }
    }

    /// Compares every byte of the buffers with the model.
    pub fn check_all(&self) {
        self.busy.store(true, Relaxed);
        for index in 0..BUFFERS {
            self.check(index, 0, LEN);
        }
        self.busy.store(false, Relaxed);
    }
}

impl Drop for HandlerBuffers {
    fn drop(&mut self) {
        HANDLER_BUFFERS.set(null());
        for buffer in &self.buffers {
            // SAFETY: `buffer` came from malloc, and nothing uses it after this.
            unsafe { libc::free(buffer.get().cast()) };
        }
        // SAFETY: this value owns both descriptors, and nothing uses them after this.
        unsafe {
            libc::close(self.pipe.get().0);
            libc::close(self.pipe.get().1);
        }
    }
}

fn nonblocking_pipe() -> (c_int, c_int) {
    let ends = pipe();
    set_nonblocking(ends.0, true);
    set_nonblocking(ends.1, true);
    ends
}

/// Writes a message and ends the process; async-signal-safe.
fn fail_and_exit(message: &[u8]) -> ! {
    // SAFETY: `message` is readable for its length; `_exit` takes an integer only.
    unsafe {
        let _ = raw_write(2, message.as_ptr(), message.len());
        libc::_exit(3)
    }
}
