//! The peer of a UNIX socket, queried by netlink (sock_diag(7), linux/unix_diag.h).

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd};
use crate::errno::{Errno, check};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// The cookie that matches any socket with the inode.
const NO_COOKIE: u32 = u32::MAX;

#[repr(C)]
struct Request {
    len_bytes: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    protocol: u8,
    padding: u16,
    states: u32,
    inode: u32,
    show: u32,
    cookie: [u32; 2],
}

/// Length of the head of a netlink message, bytes.
const NLMSG_HEAD_BYTES: usize = 16;
/// Length of that head and the head of a UNIX socket's description, bytes.
const HEAD_BYTES: usize = NLMSG_HEAD_BYTES + 16;

fn inode(fd: impl Descriptor) -> Result<u32, Errno> {
    // SAFETY: `stat` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: fstat(2) writes one `stat` to `found`, which lives through the call.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) })?;
    u32::try_from(found.st_ino).map_err(|_| Errno(libc::EOVERFLOW))
}

/// Returns the inodes of a connected UNIX socket and of its peer.
///
/// # Errors
/// ENOTCONN if there is no peer, ENOENT if the socket belongs to another network namespace, EPROTONOSUPPORT
/// if the kernel lacks `unix_diag`; else errors of socket(2), sendto(2) and recvfrom(2).
pub fn unix_inodes(fd: impl Descriptor) -> Result<[u64; 2], Errno> {
    let own = inode(fd)?;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let protocol = libc::NETLINK_SOCK_DIAG;
    // SAFETY: socket(2) takes only integers and returns a new descriptor.
    let netlink = OwnFd::from_result(unsafe {
        kernel!(Open, syscall!(libc::SYS_socket, libc::AF_NETLINK, kind, protocol))
    })?;
    let (bytes, len_bytes) = ask(&netlink, own)?;
    let peer = peer(&bytes[..len_bytes])?;
    Ok([u64::from(own), u64::from(peer)])
}

fn ask(netlink: &OwnFd, inode: u32) -> Result<([u8; 512], usize), Errno> {
    let request = Request {
        len_bytes: size_of::<Request>() as u32,
        kind: SOCK_DIAG_BY_FAMILY,
        flags: NLM_F_REQUEST,
        sequence: 1,
        port: 0,
        family: libc::AF_UNIX as u8,
        protocol: 0,
        padding: 0,
        states: u32::MAX,
        inode,
        show: UDIAG_SHOW_PEER,
        cookie: [NO_COOKIE; 2],
    };
    let mut answer = [0u8; 512];
    // SAFETY: sendto(2) reads the request for its size, and recvfrom(2) writes at most the answer's
    // size; the kernel answers at once.
    unsafe {
        check(kernel!(
            Ask,
            syscall!(libc::SYS_sendto, netlink, &raw const request, size_of::<Request>(), 0, 0, 0)
        ))?;
        let flags = libc::MSG_DONTWAIT;
        let got = kernel!(
            Ask,
            syscall!(libc::SYS_recvfrom, netlink, answer.as_mut_ptr(), answer.len(), flags, 0, 0)
        );
        check(got).map(|got| (answer, got as usize))
    }
}

/// Returns the peer's inode in an answer; ENOTCONN if there is none.
fn peer(answer: &[u8]) -> Result<u32, Errno> {
    let none = Errno(libc::ENOTCONN);
    let half = |at: usize| answer.get(at..at + 2).map(|two| u16::from_ne_bytes([two[0], two[1]]));
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let end = (word(0).ok_or(none)? as usize).min(answer.len());
    if half(4) == Some(NLMSG_ERROR) {
        let error_number = word(NLMSG_HEAD_BYTES).map_or(0, |error| (error as i32).saturating_neg());
        return Err(if error_number > 0 { Errno(error_number) } else { none });
    }
    let mut at = HEAD_BYTES;
    while at + 4 <= end {
        let len_bytes = half(at).ok_or(none)? as usize;
        if half(at + 2) == Some(UNIX_DIAG_PEER) && len_bytes >= 8 {
            return word(at + 4).filter(|inode| *inode != 0).ok_or(none);
        }
        at += len_bytes.max(4).next_multiple_of(4);
    }
    Err(none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn both_ends_name_each_other() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let [own, peer] = unix_inodes(one.as_fd()).expect("connected");
        assert_ne!(own, peer);
        assert_eq!(unix_inodes(other.as_fd()), Ok([peer, own]));
        drop(other);
        assert_eq!(unix_inodes(one.as_fd()), Err(Errno(libc::ENOTCONN)));
    }

    #[test]
    fn what_is_cut_or_wrong_is_no_answer() {
        for len in 0..64 {
            assert_eq!(peer(&vec![0; len]), Err(Errno(libc::ENOTCONN)));
            assert_eq!(peer(&vec![0xff; len]), Err(Errno(libc::ENOTCONN)));
        }
        let error = |number: i32| {
            let mut answer = [0; 36];
            answer[..4].copy_from_slice(&36u32.to_ne_bytes());
            answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            answer[16..20].copy_from_slice(&number.to_ne_bytes());
            peer(&answer)
        };
        assert_eq!(error(-libc::ENOENT), Err(Errno(libc::ENOENT)));
        assert_eq!((error(0), error(i32::MIN)), (Err(Errno(libc::ENOTCONN)), Err(Errno(i32::MAX))));
    }
}
