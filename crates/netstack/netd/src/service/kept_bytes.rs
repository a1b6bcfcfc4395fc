//! Bytes for programs that have shut a connection for reading. Linux still delivers bytes to such a
//! program, but a shut UNIX socket accepts none, so the service keeps them until the program requests them.

use super::Service;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use uncopy_sys::errno::Errno;
use uncopy_tcp::payload::Payload as _;

const MAX_TAKEN_BYTES: usize = 1 << 20;

impl Service {
    /// Keeps the bytes that a connection receives from here on.
    pub(crate) fn keep_received(&mut self, slot: u32, serial: u32) -> Result<(), Errno> {
        let connection = self.connections.get_by_serial(slot, serial).ok_or(Errno(libc::ENOTCONN))?;
        connection.keeps_received = true;
        Ok(())
    }

    /// Returns up to `max_bytes` of kept bytes in a file, and their number; removes them unless `is_peeked`.
    pub(crate) fn read_kept(
        &mut self,
        slot: u32,
        serial: u32,
        max_bytes: usize,
        is_peeked: bool,
    ) -> Result<(u32, Option<OwnedFd>), Errno> {
        let connection = self.connections.get_by_serial(slot, serial).ok_or(Errno(libc::ENOTCONN))?;
        let stream = connection.stream.as_mut().filter(|_| connection.keeps_received).ok_or(Errno::EINVAL)?;
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
            // The stream is served later, since serving handles requests too.
            self.awaiting_buffer.push(slot);
        }
        Ok((max_bytes as u32, Some(file.into())))
    }
}
