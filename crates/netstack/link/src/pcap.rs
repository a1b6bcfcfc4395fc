//! A link that records its packets in a pcap file, for Wireshark and tcpdump.
//!
//! Super-packets are recorded whole. Checksums of sent packets may look wrong: the kernel computes
//! them later.

use std::fs::File;
use std::io::{self, BufWriter, IoSlice, Write as _};
use std::os::fd::RawFd;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Counters, Link, MAX_PACKET_BYTES};

/// Magic number of the file format with timestamps in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// LINKTYPE_RAW: packets begin with the IP header.
const LINK_TYPE: u32 = 101;

/// Wraps a link and records its packets.
pub struct Pcap<L> {
    link: L,
    file: BufWriter<File>,
    has_failed: bool,
}

impl<L: Link> Pcap<L> {
    /// Records the packets of `link` in the empty `file`.
    ///
    /// # Errors
    /// The error of writing the file header.
    pub fn new(link: L, file: File) -> io::Result<Self> {
        let mut file = BufWriter::new(file);
        let words = [MAGIC, 2 | 4 << 16, 0, 0, MAX_PACKET_BYTES as u32, LINK_TYPE];
        file.write_all(&words.map(u32::to_le_bytes).concat())?;
        file.flush()?;
        Ok(Self { link, file, has_failed: false })
    }

    /// Records a packet. A write error ends the capture, not the link.
    fn record_packet(&mut self, parts: &[&[u8]]) {
        if self.has_failed {
            return;
        }
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        // The format has 32 bits for seconds.
        let words = [elapsed.as_secs() as u32, elapsed.subsec_nanos(), len, len];
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
            self.record_packet(&[&room[..len]]);
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
            self.record_packet(&parts);
        }
        Ok(has_room)
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::os::fd::AsFd as _;

    use rustix::fs::{MemfdFlags, memfd_create};
    use uncopy_tcp::segment::Header;
    use uncopy_tcp::wire::{Tuple, write};

    use super::*;
    use crate::memory::{lossless, pair};

    #[test]
    fn capture_has_packets_of_both_directions() {
        let mut file = File::from(memfd_create("capture", MemfdFlags::CLOEXEC).unwrap());
        let [one, mut other] = pair(1500, [lossless(), lossless()]).unwrap();
        let mut one = Pcap::new(one, file.as_fd().try_clone_to_owned().unwrap().into()).unwrap();
        let tuple = Tuple { local: "10.0.0.1:80".parse().unwrap(), remote: "10.0.0.2:9".parse().unwrap() };
        let mut header = write(&tuple, &Header::default(), 3000);
        let payload = [7; 3000];
        let (first, second) = payload.split_at(1234);
        assert!(one.send(&mut header, &[IoSlice::new(first), IoSlice::new(second)], 1000).unwrap());
        let mut small = write(&tuple, &Header::default(), 0);
        assert!(other.send(&mut small, &[], 0).unwrap());
        let mut room = vec![0; 1500];
        let len = one.receive(&mut room).unwrap().unwrap();
        assert_eq!(one.receive(&mut room).unwrap(), None);

        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(16), word(20)), (0xa1b2_3c4d, 0x0004_0002, 65_535, 101));
        let mut at = 24;
        for packet in [[&header[..], &payload].concat(), room[..len].to_vec()] {
            assert!(word(at) > 1_700_000_000 && word(at + 4) < 1_000_000_000, "seconds and nanoseconds");
            assert_eq!([word(at + 8), word(at + 12)], [packet.len() as u32; 2]);
            assert!(bytes[at + 16..][..packet.len()] == packet[..]);
            at += 16 + packet.len();
        }
        assert_eq!(at, bytes.len());
    }

    #[test]
    fn a_file_that_cannot_be_written_ends_the_capture_and_not_the_link() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let [one, _] = pair(1500, [lossless(), lossless()]).unwrap();
        assert!(Pcap::new(one, full.try_clone().unwrap()).is_err());
        let [one, mut peer] = pair(1500, [lossless(), lossless()]).unwrap();
        let mut one = Pcap { link: one, file: BufWriter::new(full), has_failed: false };
        let tuple = Tuple { local: "10.0.0.1:80".parse().unwrap(), remote: "10.0.0.2:9".parse().unwrap() };
        for _ in 0..2 {
            assert!(one.send(&mut write(&tuple, &Header::default(), 0), &[], 0).unwrap());
            assert!(peer.receive(&mut [0; 1500]).unwrap().is_some());
        }
        assert!(one.has_failed);
    }
}
