//! Where a stream socket stands: how many bytes were ever sent and received, by the kernel's own count.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};

/// Offsets in `struct tcp_info` (linux/tcp.h), which only ever grows at its end.
mod tcp_info {
    pub const STATE: usize = 0;
    pub const BYTES_RECEIVED: usize = 128;
    pub const NOTSENT_BYTES: usize = 144;
    pub const BYTES_SENT: usize = 200;
    pub const BYTES_RETRANS: usize = 208;
    /// With `bytes_retrans`, its last member that is needed (Linux 4.19).
    pub const LEN: usize = 216;
}

/// States in which the other end has ended its side, which the kernel counts as one byte (net/tcp_states.h).
const ENDED: [u8; 5] = [6, 7, 8, 9, 11];

/// SIOCATMARK (asm/sockios.h).
const AT_MARK: libc::c_ulong = 0x8905;

/// What a TCP socket has sent and received, bytes, from the connection's first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were given to it to be sent.
    pub sent_bytes: u64,
    /// Bytes that came in order, read or not.
    pub received_bytes: u64,
}

/// Asks a TCP socket how far it is.
///
/// # Errors
/// What getsockopt says; ENOTSUP where the kernel does not tell enough.
pub fn progress(fd: i32) -> Result<Progress, Errno> {
    let mut info = [0u8; 256];
    let mut len_bytes = info.len() as u32;
    // SAFETY: room for as many bytes as is said.
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

fn count(fd: i32, request: libc::c_ulong) -> Result<usize, Errno> {
    let mut bytes = 0i32;
    // SAFETY: the kernel stores an integer.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_ioctl, fd, request, &raw mut bytes)) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Bytes that can be read at once (SIOCINQ).
///
/// # Errors
/// What ioctl says.
pub fn unread(fd: i32) -> Result<usize, Errno> {
    count(fd, libc::FIONREAD)
}

/// Whether the next byte follows one that was sent out of band (SIOCATMARK, sockatmark(3)): [`unread`] says 0 there, and a receive
/// goes on behind the mark.
///
/// # Errors
/// What ioctl says.
pub fn is_at_mark(fd: i32) -> Result<bool, Errno> {
    Ok(count(fd, AT_MARK)? != 0)
}

/// Bytes, as the kernel counts them, that were sent and that the other end has not read (UNIX sockets) or confirmed
/// (SIOCOUTQ).
///
/// # Errors
/// What ioctl says.
pub fn unsent(fd: i32) -> Result<usize, Errno> {
    count(fd, libc::TIOCOUTQ)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_of_a_connection_agree_whatever_is_under_way() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let mut server = listener.accept().expect("accepted").0;
        let (near, far) = (client.as_raw_fd(), server.as_raw_fd());
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

    fn has_peer_ended(fd: i32) -> bool {
        crate::socket::has_peer_ended(fd)
    }
}
