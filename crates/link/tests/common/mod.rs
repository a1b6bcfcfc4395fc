//! Namespaces and bounded waits for the tests of devices.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Runs a test in a thread with a network namespace of its own, or says that it cannot.
pub fn in_namespace(test: &'static str, run: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let thread = thread::spawn(move || {
        // SAFETY: the network namespace is not what descriptors or memory of other threads depend on.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            eprintln!("skipped: {test}: no network namespace of its own (unshare: {error}); run it as root");
        } else {
            run();
        }
        let _ = done.send(());
    });
    if is_done.recv_timeout(LIMIT * 3) == Err(RecvTimeoutError::Timeout) {
        panic!("{test} hangs: it was not done after {:?}", LIMIT * 3);
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits for what closing a descriptor does. A child that another test starts has a copy of each until it executes its program.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// `None`: it was not within the limit.
pub fn wait_readable_fd(fd: BorrowedFd<'_>, limit: Duration) -> Option<()> {
    let limit = Timespec::try_from(limit).expect("a short time");
    (poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)) == Ok(1)).then_some(())
}

/// Waits until the descriptor is readable, or so long.
pub fn wait_readable(fd: RawFd, limit: Duration) -> bool {
    // SAFETY: descriptors of links, which callers keep.
    wait_readable_fd(unsafe { BorrowedFd::borrow_raw(fd) }, limit).is_some()
}

/// Lets the device stay.
pub fn set_persistent(tun: RawFd) {
    // SAFETY: takes its argument by value.
    assert_eq!(unsafe { libc::ioctl(tun, libc::TUNSETPERSIST, 1) }, 0);
}

/// Makes the calling thread, and only it, a user without privilege.
pub fn drop_privilege() {
    let nobody: libc::uid_t = 65_534;
    // SAFETY: touches no memory. The system call itself, unlike the function of libc, is for one thread.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) }, 0);
}

/// ETHTOOL_STXCSUM of linux/ethtool.h: whether a device is to write checksums; one end of a veth pair does not, and nobody misses them.
fn set_checksum_offload(device: &str, is_on: bool) {
    const SET: u32 = 0x17;
    let mut value = [SET, u32::from(is_on)];
    // SAFETY: an all-zero request is valid; the kernel reads the value during the call.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0);
        let done = libc::ioctl(socket, libc::SIOCETHTOOL, &raw mut request);
        libc::close(socket);
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

/// The kernel writes all checksums of what it sends by this device.
pub fn write_checksums(device: &str) {
    set_checksum_offload(device, false);
}

/// It leaves them to the device.
pub fn leave_checksums(device: &str) {
    set_checksum_offload(device, true);
}
