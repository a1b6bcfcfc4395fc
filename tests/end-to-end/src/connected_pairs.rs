//! Connected ends, one for the calls under test, one for the oracle.

use std::os::fd::IntoRawFd;

use crate::calls::{set_buffer_size, set_nonblocking};

/// Two connected ends: the near one is used by the calls under test.
#[derive(Clone, Copy, Debug)]
pub struct ConnectedPair {
    /// Descriptor used by the calls under test.
    pub near: i32,
    /// Descriptor driven by bare system calls.
    pub far: i32,
    /// Whether socket calls work.
    pub is_socket: bool,
    /// Whether written bytes are readable at once, so that counts are exact.
    pub is_exact: bool,
}

/// Makes a UNIX and a TCP connection, a pipe to read from and one to write to; none of them blocks.
///
/// # Panics
/// When a descriptor cannot be made.
#[must_use]
pub fn connected_pairs() -> (Vec<ConnectedPair>, ConnectedPair, ConnectedPair) {
    let mut ends = [0; 2];
    // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) }, 0);
    let unix = ConnectedPair { near: ends[0], far: ends[1], is_socket: true, is_exact: true };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let far = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    far.set_nodelay(true).expect("nodelay");
    let near = listener.accept().expect("accept").0.into_raw_fd();
    let tcp = ConnectedPair { near, far: far.into_raw_fd(), is_socket: true, is_exact: false };
    for fd in [unix.near, unix.far, tcp.near, tcp.far] {
        set_buffer_size(fd, libc::SO_SNDBUF, 4 << 20);
    }
    let (from, to) = std::io::pipe().expect("pipe");
    let pipe_in =
        ConnectedPair { near: from.into_raw_fd(), far: to.into_raw_fd(), is_socket: false, is_exact: true };
    let (from, to) = std::io::pipe().expect("pipe");
    let pipe_out =
        ConnectedPair { near: to.into_raw_fd(), far: from.into_raw_fd(), is_socket: false, is_exact: true };
    for pair in [unix, tcp, pipe_in, pipe_out] {
        set_nonblocking(pair.near, true);
        set_nonblocking(pair.far, true);
    }
    (vec![unix, tcp], pipe_in, pipe_out)
}
