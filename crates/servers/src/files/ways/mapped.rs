//! `mmap-send` and `zerocopy`: the kernel reads a mapping of the file.
//!
//! This program never reads the mapping itself, because a file that becomes shorter would end it by SIGBUS.
//! The kernel's own reads fail with EFAULT instead, and only from the next page on: the rest of the file's
//! last page reads as zeroes, so the length is looked at before that page is sent.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::null_mut;

use libc::{c_int, c_void};
use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Link, Zerocopy, borrowed, part_at, to_usize};
use crate::files::os;

/// Below this length, MSG_ZEROCOPY costs more than the copy (Linux, Documentation/networking/msg_zerocopy.rst).
const MIN_ZEROCOPY_BYTES: u64 = 10 << 10;
/// Bytes of a page.
const PAGE_BYTES: u64 = uncopy_transmit::PAGE_BYTES as u64;

/// A file, mapped for reading; unmapped when dropped.
#[derive(Debug)]
pub struct Map {
    begin: *mut c_void,
    len: usize,
}

// SAFETY: the mapping belongs to the process, and any thread may unmap it; this program neither reads nor writes it.
unsafe impl Send for Map {}

impl Map {
    /// Maps the first `len_bytes` of `file`.
    pub fn new(file: &File, len_bytes: u64) -> io::Result<Self> {
        let len = to_usize(len_bytes).max(1);
        // SAFETY: without MAP_FIXED the kernel chooses addresses where nothing is, so that no other memory is affected; no
        // reference to the mapping is ever made.
        let begin = unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, borrowed(file), 0) }?;
        Ok(Self { begin, len })
    }

    /// Where the byte at `offset` is, which may be the mapping's end.
    pub fn address(&self, offset: u64) -> *const c_void {
        self.begin.cast_const().wrapping_byte_add(to_usize(offset).min(self.len))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly these bytes, and nothing refers to them: pages that the kernel still sends it holds
        // itself.
        let _ = unsafe { munmap(self.begin, self.len) };
    }
}

/// A mapping that is being sent.
#[derive(Debug)]
pub struct Mapped {
    map: Map,
    len_bytes: u64,
    zerocopy: bool,
}

impl Mapped {
    pub fn new(file: &File, len_bytes: u64, zerocopy: bool) -> io::Result<Self> {
        Ok(Self { map: Map::new(file, len_bytes)?, len_bytes, zerocopy })
    }

    pub fn send(
        &mut self,
        link: &mut Link<'_>,
        file: &File,
        head: &[u8],
        at: u64,
        len: u64,
        flags: c_int,
    ) -> io::Result<usize> {
        if at + len > self.len_bytes / PAGE_BYTES * PAGE_BYTES
            && u64::try_from(fstat(file)?.st_size).unwrap_or(0) < self.len_bytes
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let body = part_at(self.map.address(at), len);
        if self.zerocopy && len >= MIN_ZEROCOPY_BYTES && is_allowed(link) {
            // The head is in memory that is used again: it is copied.
            if !head.is_empty() {
                let sent = os::send_copied(link.socket, [head], true)?;
                if sent < head.len() {
                    return Ok(sent);
                }
            }
            // SAFETY: the body is in the mapping, which `self` keeps during the call. This program never writes to it, and its
            // pages are the file's, which the kernel holds until the completion.
            match unsafe { os::send(link.socket, &[body], flags | libc::MSG_ZEROCOPY) } {
                Ok(sent) => {
                    if let Zerocopy::On(pending) = link.zerocopy {
                        *pending += 1;
                    }
                    return Ok(head.len() + sent);
                }
                Err(_) if !head.is_empty() => return Ok(head.len()),
                // No memory for another completion: this once, the kernel copies.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
        }
        // SAFETY: the head is borrowed and the mapping kept by `self` for the length of the call, in which the kernel copies
        // both: `flags` has no MSG_ZEROCOPY.
        match unsafe { os::send(link.socket, &[os::part(head), body], flags) } {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            outcome => outcome,
        }
    }
}

/// Whether MSG_ZEROCOPY may be used on this socket, and no completion said that it copies.
fn is_allowed(link: &mut Link<'_>) -> bool {
    if *link.zerocopy == Zerocopy::Unknown {
        *link.zerocopy =
            if os::allow_zerocopy(link.socket).is_ok() { Zerocopy::On(0) } else { Zerocopy::Off };
    }
    link.zerocopy.complete(link.socket);
    matches!(link.zerocopy, Zerocopy::On(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    const LEN: usize = 100_000;

    /// A file that nothing but its descriptor names, with its bytes.
    fn file() -> (File, Vec<u8>) {
        let bytes: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).expect("small")).collect();
        let file = File::from(
            rustix::fs::memfd_create("uncopy-files-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file"),
        );
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).expect("written");
        (file, bytes)
    }

    #[test]
    fn looking_at_a_mapping_whose_file_was_cut_gives_nothing_and_ends_nothing() {
        let (file, bytes) = file();
        let map = Map::new(&file, LEN as u64).expect("a mapping");
        let mut seen = [0; 512];
        assert_eq!(os::peek(map.address(8192), &mut seen), 512);
        assert_eq!(seen, bytes[8192..8704]);
        file.set_len(0).expect("cut");
        assert_eq!(os::peek(map.address(0), &mut seen), 0);
    }

    #[test]
    fn the_kernel_says_that_it_copies_on_the_loopback_device_and_is_not_asked_again() {
        let (file, bytes) = file();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut receiver = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
        let (sender, _) = listener.accept().expect("a client");
        let (mut zerocopy, mut owned) = (Zerocopy::Unknown, false);
        let mut mapped = Mapped::new(&file, LEN as u64, true).expect("a mapping");
        let mut link = Link { socket: sender.as_fd(), zerocopy: &mut zerocopy, owned: &mut owned };
        let sent = mapped.send(&mut link, &file, b"head", 0, LEN as u64, 0).expect("sent");
        assert_eq!(sent, 4 + LEN);
        assert_eq!(zerocopy, Zerocopy::On(1));
        let mut received = vec![0; 4 + LEN];
        receiver.read_exact(&mut received).expect("all of it");
        assert_eq!((&received[..4], &received[4..]), (&b"head"[..], &bytes[..]));
        // The error queue makes the socket ready.
        let mut ready = [PollFd::new(&sender, PollFlags::empty())];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut ready, Some(&limit)).expect("a socket"), 1, "a completion");
        zerocopy.complete(sender.as_fd());
        assert_eq!(zerocopy, Zerocopy::Off);
    }
}
