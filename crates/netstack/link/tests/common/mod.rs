//! Network namespaces and bounded waits for tests of devices.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use uncopy_link::checksum::Sum;
use uncopy_link::packet::Layout;

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

/// Returns an echo request, and the type of its answer.
pub fn echo_request(from: &str, to: &str, body: &[u8]) -> (Vec<u8>, u8) {
    let icmp_bytes = u16::try_from(8 + body.len()).unwrap();
    let (mut packet, kind, answer) = match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let (from, to) = (from.octets(), to.octets());
            let mut ip =
                etherparse::Ipv4Header::new(icmp_bytes, 64, etherparse::IpNumber::ICMP, from, to).unwrap();
            ip.header_checksum = ip.calc_header_checksum();
            (ip.to_bytes().to_vec(), 8, 0)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = etherparse::Ipv6Header {
                payload_length: icmp_bytes,
                next_header: etherparse::IpNumber::IPV6_ICMP,
                hop_limit: 64,
                source: from.octets(),
                destination: to.octets(),
                ..etherparse::Ipv6Header::default()
            };
            (ip.to_bytes().to_vec(), 128, 129)
        }
        _ => unreachable!(),
    };
    let at = packet.len();
    packet.extend([kind, 0, 0, 0, 1, 2, 3, 4]);
    packet.extend(body);
    let layout = Layout::of(&packet).unwrap();
    let mut sum = if to.contains(':') { layout.pseudo_header(&packet) } else { Sum::default() };
    sum.add(&packet[at..]);
    packet[at + 2..at + 4].copy_from_slice(&sum.checksum().to_be_bytes());
    (packet, answer)
}
