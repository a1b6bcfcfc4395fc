//! Connections that their programs have shut for reading. Linux still gives such a program what comes; a UNIX socket that is shut takes
//! nothing. So what comes stays here until the program asks for it.

use super::Service;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use uncopy_sys::errno::Errno;
use uncopy_tcp::payload::Payload as _;

/// Bytes of one answer, at most.
const MAX_TAKEN_BYTES: usize = 1 << 20;

impl Service {
    /// Keeps what comes for a connection from here on.
    pub(crate) fn keep(&mut self, slot: u32, serial: u32) -> Result<(), Errno> {
        let connection = self.connections.known(slot, serial).ok_or(Errno(libc::ENOTCONN))?;
        connection.is_kept = true;
        Ok(())
    }

    /// Takes of what was kept, `max_bytes` at most; `is_peeked`: it stays. How many bytes, and a file of them.
    pub(crate) fn take_kept(
        &mut self,
        slot: u32,
        serial: u32,
        max_bytes: usize,
        is_peeked: bool,
    ) -> Result<(u32, Option<OwnedFd>), Errno> {
        let connection = self.connections.known(slot, serial).ok_or(Errno(libc::ENOTCONN))?;
        let stream = connection.stream.as_mut().filter(|_| connection.is_kept).ok_or(Errno::EINVAL)?;
        let max_bytes = max_bytes.min(MAX_TAKEN_BYTES).min(stream.waiting_bytes());
        if max_bytes == 0 {
            return Ok((0, None));
        }
        let file = rustix::fs::memfd_create("uncopy-net-kept", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(file.map_err(|errno| Errno(errno.raw_os_error()))?);
        let mut left = max_bytes;
        for piece in &stream.to_program {
            let count = piece.len_bytes().min(left);
            file.write_all(&piece.as_slice()[..count]).map_err(|_| Errno(libc::ENOMEM))?;
            left -= count;
            if left == 0 {
                break;
            }
        }
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map_err(|_| Errno(libc::ENOMEM))?;
        if !is_peeked {
            stream.drop_front(max_bytes);
            // More is taken out of TCP once all questions are answered: serving hears questions, too.
            self.starved.push(slot);
        }
        Ok((max_bytes as u32, Some(file.into())))
    }
}
