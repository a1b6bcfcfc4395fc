//! Socket wrapper for safe code that sends twin memory by reference, as a writer or message by message.

use core::mem::zeroed;
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::iovec::MAX_PARTS;

/// A socket (TCP, UDP, UNIX) that sends twin memory by reference where that pays, and other memory as usual.
/// Results, errors and the order of bytes are those of the socket; a broken pipe raises no signal. Memory may
/// be overwritten or freed as soon as the call has returned.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
/// use uncopy_twin::{Buffer, Sender};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?)?;
/// let mut answer = Buffer::zeroed(64 << 10)?;
/// answer.fill(b'1');
///
/// let mut server = Sender::new(listener.accept()?.0);
/// server.write_all(&answer)?;
/// answer.fill(b'2');
///
/// let mut arrived = vec![0; answer.len()];
/// client.read_exact(&mut arrived)?;
/// assert!(arrived.iter().all(|byte| *byte == b'1'));
/// # std::io::Result::Ok(())
/// ```
///
/// Wraps any socket, or a reference to one. A non-blocking socket is polled by its owner as usual.
#[derive(Clone, Copy, Debug)]
pub struct Sender<S>(S);

impl<S: AsFd> Sender<S> {
    /// Wraps a socket, or a reference to one.
    pub const fn new(socket: S) -> Self {
        Self(socket)
    }

    /// Returns a reference to the socket.
    pub const fn get_ref(&self) -> &S {
        &self.0
    }

    /// Returns a mutable reference to the socket.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.0
    }

    /// Returns the socket that was wrapped.
    pub fn into_inner(self) -> S {
        self.0
    }

    /// Sends on a connected socket: on a stream as many bytes as there is space for, else one datagram.
    /// Returns the number of bytes sent.
    ///
    /// # Errors
    /// Returns the errors of send(2).
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_vectored(&[IoSlice::new(bytes)])
    }

    /// Sends several parts as one message, like [`Sender::send`].
    ///
    /// ```
    /// use std::io::IoSlice;
    /// use std::os::unix::net::UnixDatagram;
    /// use uncopy_twin::{Buffer, Sender};
    ///
    /// let (here, there) = UnixDatagram::pair()?;
    /// let body = Buffer::copy_of(&[7; 30_000])?;
    /// let sent = Sender::new(&here).send_vectored(&[IoSlice::new(b"head"), IoSlice::new(&body)])?;
    /// assert_eq!(there.recv(&mut [0; 40_000])?, sent);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of sendmsg(2), such as EMSGSIZE for more than 1024 parts.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.message(parts, None)
    }

    /// Sends a datagram to an address.
    ///
    /// ```
    /// use std::io::IoSlice;
    /// use std::net::UdpSocket;
    /// use uncopy_twin::{Buffer, Sender};
    ///
    /// let (here, there) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// let tile = Buffer::copy_of(&[7; 30_000])?;
    /// let number = 12u32.to_be_bytes();
    /// let parts = [IoSlice::new(&number), IoSlice::new(&tile)];
    /// let sent = Sender::new(&here).send_to(&parts, there.local_addr()?)?;
    /// assert_eq!(there.recv(&mut [0; 40_000])?, sent);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of sendmsg(2).
    pub fn send_to(&self, parts: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize> {
        self.message(parts, Some(&to.into()))
    }

    /// Sends a datagram to the path of a UNIX socket.
    ///
    /// # Errors
    /// Returns the errors of sendmsg(2), and ENAMETOOLONG for a path of more than 107 bytes.
    pub fn send_to_path(&self, parts: &[IoSlice<'_>], to: impl AsRef<Path>) -> io::Result<usize> {
        self.message(parts, Some(&SocketAddrUnix::new(to.as_ref())?.into()))
    }

    fn message(&self, parts: &[IoSlice<'_>], to: Option<&SocketAddrAny>) -> io::Result<usize> {
        // SAFETY: `msghdr` consists of integers and raw pointers, for which all-zero bytes are valid.
        let mut header: libc::msghdr = unsafe { zeroed() };
        if let Some(to) = to {
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = to.addr_len();
        }
        header.msg_iov = parts.as_ptr().cast_mut().cast();
        header.msg_iovlen = parts.len();
        let fd = ProgramFd::of(&self.0.as_fd());
        // SAFETY: sendmsg(2) only reads the header, the address and the parts, which are borrowed for the
        // whole call. `IoSlice` is ABI-compatible with `iovec`.
        let sent = unsafe { crate::send::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl<S: AsFd> Write for &Sender<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored(&parts[..parts.len().min(MAX_PARTS)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: AsFd> Write for Sender<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Read> Read for Sender<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }

    fn read_vectored(&mut self, buffer: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read_vectored(buffer)
    }
}

impl<S: AsFd> AsFd for Sender<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
