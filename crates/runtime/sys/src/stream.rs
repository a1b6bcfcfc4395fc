//! Progress of a stream socket: the bytes sent and received so far, as the kernel counts them.

use crate::call::{kernel, syscall};
use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};

/// Offsets in `struct tcp_info` (linux/tcp.h), which only ever grows at its end.
mod tcp_info {
    pub const STATE: usize = 0;
    pub const BYTES_RECEIVED: usize = 128;
    pub const NOTSENT_BYTES: usize = 144;
    pub const BYTES_SENT: usize = 200;
    pub const BYTES_RETRANS: usize = 208;
    /// Length up to the end of `bytes_retrans`, the last member that is needed (Linux 4.19).
    pub const LEN: usize = 216;
}

/// States in which the peer has closed its side, whose FIN the kernel counts as one byte (net/tcp_states.h).
const ENDED: [u8; 5] = [6, 7, 8, 9, 11];

/// `SIOCATMARK` (asm/sockios.h), the request of sockatmark(3).
const AT_MARK: libc::c_ulong = 0x8905;

/// Bytes that a TCP socket has sent and received since the start of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes passed to the socket for sending.
    pub sent_bytes: u64,
    /// Bytes received in order, read or not.
    pub received_bytes: u64,
}

/// Returns the progress of a TCP socket.
///
/// # Errors
/// Errors of getsockopt(2); ENOTSUP if the kernel's `tcp_info` is too short.
pub fn progress(fd: impl Descriptor) -> Result<Progress, Errno> {
    let mut info = [0u8; 256];
    let mut len_bytes = info.len() as u32;
    // SAFETY: getsockopt(2) writes at most `len_bytes` bytes, the size of `info`.
    check(unsafe {
        kernel!(
            Ask,
            syscall!(
                libc::SYS_getsockopt,
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr(),
                &raw mut len_bytes
            )
        )
    })?;
    if (len_bytes as usize) < tcp_info::LEN {
        return Err(Errno(libc::ENOTSUP));
    }
    let word = |at: usize| -> u64 { info[at..at + 8].try_into().map_or(0, u64::from_ne_bytes) };
    let notsent: u32 = info[tcp_info::NOTSENT_BYTES..][..4].try_into().map_or(0, u32::from_ne_bytes);
    let has_ended = ENDED.contains(&info[tcp_info::STATE]);
    Ok(Progress {
        sent_bytes: word(tcp_info::BYTES_SENT).wrapping_sub(word(tcp_info::BYTES_RETRANS))
            + u64::from(notsent),
        received_bytes: word(tcp_info::BYTES_RECEIVED) - u64::from(has_ended),
    })
}

fn count(fd: impl Descriptor, request: libc::c_ulong) -> Result<usize, Errno> {
    let mut bytes = 0i32;
    // SAFETY: these requests of ioctl(2) write one int to `bytes`, which lives through the call.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_ioctl, fd, request, &raw mut bytes)) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Returns the number of bytes that can be read at once (SIOCINQ).
///
/// # Errors
/// Errors of ioctl(2).
pub fn unread(fd: impl Descriptor) -> Result<usize, Errno> {
    count(fd, libc::FIONREAD)
}

/// Whether the next byte follows one that was sent out of band (SIOCATMARK, sockatmark(3)).
/// [`unread`] returns 0 there, and a receive continues after the mark.
///
/// # Errors
/// Errors of ioctl(2).
pub fn is_at_mark(fd: impl Descriptor) -> Result<bool, Errno> {
    Ok(count(fd, AT_MARK)? != 0)
}

/// Returns the number of sent bytes, as the kernel counts them, that the peer has not read (UNIX
/// sockets) or acknowledged (SIOCOUTQ).
///
/// # Errors
/// Errors of ioctl(2).
pub fn unsent(fd: impl Descriptor) -> Result<usize, Errno> {
    count(fd, libc::TIOCOUTQ)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptor::ProgramFd;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_ends_of_a_connection_agree_whatever_is_under_way() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let mut server = listener.accept().expect("accepted").0;
        let (near, far) = (ProgramFd::of(&client), ProgramFd::of(&server));
        let mut sent = 0u64;
        let mut buffer = vec![1u8; 300_000];
        for (write, read) in [(1, 0), (100_000, 30_000), (200_000, 170_000), (5, 0)] {
            client.write_all(&buffer[..write]).expect("sent");
            sent += write as u64;
            server.read_exact(&mut buffer[..read]).expect("received");
            assert_eq!(progress(near).expect("TCP").sent_bytes, sent);
        }
        let begin = std::time::Instant::now();
        while progress(far).expect("TCP").received_bytes < sent {
            assert!(begin.elapsed().as_secs() < 10, "{:?}", progress(far));
            std::thread::yield_now();
        }
        assert_eq!(unread(far), Ok(sent as usize - 200_000));
        client.shutdown(std::net::Shutdown::Write).expect("shut down");
        let begin = std::time::Instant::now();
        server.read_exact(&mut buffer[..100_000]).expect("received");
        while server.peek(&mut buffer[..1]).expect("readable") == 1 || !has_peer_ended(far) {
            assert!(begin.elapsed().as_secs() < 10);
            let _ = server.read(&mut buffer);
        }
        assert_eq!(progress(far).expect("TCP").received_bytes, sent, "the end is no byte");
    }

    fn has_peer_ended(fd: ProgramFd) -> bool {
        crate::socket::has_peer_ended(fd)
    }
}
