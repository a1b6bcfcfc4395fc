//! Network namespaces and bounded waits for tests of devices.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::Ipv6Addr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};

pub const LIMIT: Duration = Duration::from_secs(20);

/// Runs a test in a thread with its own network namespace, or reports the test as skipped.
pub fn in_namespace(test: &'static str, run: impl FnOnce() + Send + 'static) {
    let (done, done_receiver) = channel();
    let thread = thread::spawn(move || {
        // SAFETY: CLONE_NEWNET does not unshare the descriptor table or memory, on which other
        // threads could rely.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            eprintln!("skipped: {test}: no network namespace of its own (unshare: {error}); run it as root");
        } else {
            run();
        }
        let _ = done.send(());
    });
    if done_receiver.recv_timeout(LIMIT * 3) == Err(RecvTimeoutError::Timeout) {
        panic!("{test} hangs: it was not done after {:?}", LIMIT * 3);
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Polls for the effect of closing a descriptor, which a child of another test may still hold until
/// it calls exec.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the kernel receives packets for an IPv6 address that `ip` has added in this namespace, as
/// `device::set_up` does for its own: the kernel inserts the route in a work queue (`addrconf_dad_work`).
pub fn wait_for_local_route(address: Ipv6Addr) {
    let digits: String = address.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let entry = format!("{digits} 80 ");
    wait_until("the route of the address", || {
        std::fs::read_to_string("/proc/thread-self/net/ipv6_route")
            .expect("the kernel has IPv6")
            .lines()
            .any(|line| line.starts_with(&entry))
    });
}

/// Waits until the descriptor is readable. `None` after `limit`.
pub fn wait_readable_fd(fd: BorrowedFd<'_>, limit: Duration) -> Option<()> {
    let limit = Timespec::try_from(limit).expect("a short time");
    (poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)) == Ok(1)).then_some(())
}

/// Waits until the descriptor is readable. Returns false after `limit`.
pub fn wait_readable(fd: RawFd, limit: Duration) -> bool {
    // SAFETY: callers pass the descriptor of a link that they keep open during the call.
    wait_readable_fd(unsafe { BorrowedFd::borrow_raw(fd) }, limit).is_some()
}

/// Keeps the device when its descriptor is closed.
pub fn set_persistent(tun: RawFd) {
    // SAFETY: TUNSETPERSIST takes its argument by value, so no memory is accessed.
    assert_eq!(unsafe { libc::ioctl(tun, libc::TUNSETPERSIST, 1) }, 0);
}

/// Drops the privileges of the calling thread only.
pub fn drop_privilege() {
    let nobody: libc::uid_t = 65_534;
    // SAFETY: setresuid(2) takes integers. Unlike libc's wrapper, the system call changes one thread only.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) }, 0);
}

/// Switches checksum offload by ETHTOOL_STXCSUM (linux/ethtool.h). With offload, a veth pair
/// carries no checksums.
fn set_checksum_offload(device: &str, is_on: bool) {
    const SET: u32 = 0x17;
    let mut value = [SET, u32::from(is_on)];
    // SAFETY: all-zero bytes are a valid `ifreq`. The kernel accesses `request` and `value` during
    // the call only.
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

/// Has the kernel compute all checksums of packets sent by this device.
pub fn write_checksums(device: &str) {
    set_checksum_offload(device, false);
}

pub fn leave_checksums(device: &str) {
    set_checksum_offload(device, true);
}
