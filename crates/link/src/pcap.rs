//! A link whose packets are written to a file, for Wireshark and tcpdump.
//!
//! Super-packets are written as they are: the checksums of what is sent are the kernel's to make, so they may be shown as wrong.

use std::fs::File;
use std::io::{self, BufWriter, IoSlice, Write as _};
use std::os::fd::RawFd;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Counters, Link, MAX_PACKET_BYTES};

/// The file format's number, with times in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Packets begin with the IP header (`LINKTYPE_RAW`).
const LINK_TYPE: u32 = 101;

/// Carries packets over another link and writes them down.
pub struct Pcap<L> {
    link: L,
    file: BufWriter<File>,
    has_failed: bool,
}

impl<L: Link> Pcap<L> {
    /// Writes the packets of `link` to `file`, which is empty.
    ///
    /// # Errors
    /// What writing says.
    pub fn new(link: L, file: File) -> io::Result<Self> {
        let mut file = BufWriter::new(file);
        let words = [MAGIC, 2 | 4 << 16, 0, 0, MAX_PACKET_BYTES as u32, LINK_TYPE];
        file.write_all(&words.map(u32::to_le_bytes).concat())?;
        file.flush()?;
        Ok(Self { link, file, has_failed: false })
    }

    /// Writes a packet. A file that cannot be written ends the capture, not the link.
    fn note(&mut self, parts: &[&[u8]]) {
        if self.has_failed {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        // The format has 32 bits for seconds.
        let words = [since.as_secs() as u32, since.subsec_nanos(), len, len];
        let head = words.map(u32::to_le_bytes).concat();
        let written = self
            .file
            .write_all(&head)
            .and_then(|()| parts.iter().try_for_each(|part| self.file.write_all(part)))
            .and_then(|()| self.file.flush());
        self.has_failed = written.is_err();
    }
}

impl<L: Link> Link for Pcap<L> {
    fn fd(&self) -> RawFd {
        self.link.fd()
    }

    fn mtu_bytes(&self) -> usize {
        self.link.mtu_bytes()
    }

    fn max_packet_bytes(&self) -> usize {
        self.link.max_packet_bytes()
    }

    fn receive(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let received = self.link.receive(room)?;
        if let Some(len) = received {
            self.note(&[&room[..len]]);
        }
        Ok(received)
    }

    fn send(
        &mut self,
        header: &mut [u8],
        payload: &[IoSlice<'_>],
        max_segment_payload_bytes: usize,
    ) -> io::Result<bool> {
        let has_room = self.link.send(header, payload, max_segment_payload_bytes)?;
        if has_room {
            let parts: Vec<&[u8]> =
                std::iter::once(&*header).chain(payload.iter().map(|part| &**part)).collect();
            self.note(&parts);
        }
        Ok(has_room)
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}
