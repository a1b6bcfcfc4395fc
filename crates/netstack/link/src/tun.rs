//! A TUN device (Linux, Documentation/networking/tuntap.rst), with segmentation and checksum
//! offload if the kernel supports them: a virtio header precedes each packet (linux/virtio_net.h).
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use crate::packet::{TCP_CHECKSUM_AT, Validity, validate};
use crate::split::{Outgoing, Segments};
use crate::{Counters, Link, MAX_PACKET_BYTES};

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
const TUN_F_CSUM: libc::c_ulong = 1;
const TUN_F_TSO4: libc::c_ulong = 2;
const TUN_F_TSO6: libc::c_ulong = 4;

pub(crate) const VNET_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;

/// `struct virtio_net_hdr`, in native byte order.
#[derive(Clone, Copy, Debug, Default)]
struct VnetHeader {
    flags: u8,
    gso: u8,
    header_bytes: u16,
    segment_bytes: u16,
    checksum_from: u16,
    checksum_at: u16,
}

impl VnetHeader {
    fn bytes(self) -> [u8; VNET_BYTES] {
        let mut bytes = [self.flags, self.gso, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.header_bytes, self.segment_bytes, self.checksum_from, self.checksum_at];
        for (to, word) in bytes[2..].chunks_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Validates a packet with its virtio header. Returns also whether it is a super-packet.
pub(crate) fn validate_received(vnet: [u8; VNET_BYTES], packet: &[u8]) -> (Validity, bool) {
    let [flags, gso, ..] = vnet;
    let trusts_checksum = flags & (NEEDS_CHECKSUM | DATA_VALID) != 0;
    (validate(packet, trusts_checksum), gso != GSO_NONE)
}

/// A TUN device, removed when dropped unless persistent.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    mtu_bytes: usize,
    offloads: bool,
    counters: Counters,
    /// Buffer for segments if the kernel does not split them.
    room: Vec<u8>,
}

/// Returns a `struct ifreq` for the named device.
///
/// # Errors
/// `InvalidInput` if the name is invalid.
pub(crate) fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    let is_legal = !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte))
        && name != "."
        && name != "..";
    if !is_legal {
        let why =
            format!("no name of a device: it has 1 to {} letters, digits and the like", libc::IFNAMSIZ - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // SAFETY: `ifreq` consists of integers, arrays and pointers, for which all-zero bytes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

impl Tun {
    /// Creates the named device in the calling thread's network namespace, or attaches to an unused
    /// one. `mtu_bytes` is the maximum length of packets; `device::set_up` sets it in the kernel.
    ///
    /// # Errors
    /// `InvalidInput`: invalid name. ENOENT, EACCES: /dev/net/tun is missing or cannot be opened. EPERM:
    /// requires `CAP_NET_ADMIN`. EBUSY: the device is in use. EINVAL: the device is no TUN device.
    pub fn open(name: &str, mtu_bytes: usize) -> io::Result<Self> {
        let mut request = interface_request(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: the path is a C literal; the new descriptor has no other owner; the ioctls get a
        // valid `ifreq` and int, as tuntap.rst requires, and TUNSETOFFLOAD takes its argument by value.
        unsafe {
            let fd = libc::open(c"/dev/net/tun".as_ptr(), flags);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = OwnedFd::from_raw_fd(fd);
            if libc::ioctl(fd.as_raw_fd(), TUNSETIFF, &raw mut request) < 0 {
                return Err(io::Error::last_os_error());
            }
            let vnet_bytes = VNET_BYTES as libc::c_int;
            if libc::ioctl(fd.as_raw_fd(), TUNSETVNETHDRSZ, &raw const vnet_bytes) < 0 {
                return Err(io::Error::last_os_error());
            }
            let all = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
            let offloads = libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, all) == 0;
            Ok(Self { fd, mtu_bytes, offloads, counters: Counters::default(), room: Vec::new() })
        }
    }

    /// Writes one packet. Returns false if there was no room.
    fn write(&self, vnet: VnetHeader, header: &[u8], payload: &[IoSlice<'_>]) -> io::Result<bool> {
        let vnet = vnet.bytes();
        let mut parts: smallvec::SmallVec<[IoSlice<'_>; 8]> =
            smallvec::smallvec![IoSlice::new(&vnet), IoSlice::new(header)];
        parts.extend(payload.iter().copied());
        match rustix::io::writev(&self.fd, &parts) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS | rustix::io::Errno::NOMEM) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Link for Tun {
    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn mtu_bytes(&self) -> usize {
        self.mtu_bytes
    }

    fn max_packet_bytes(&self) -> usize {
        if self.offloads { MAX_PACKET_BYTES } else { self.mtu_bytes }
    }

    fn receive(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let mut vnet = [0; VNET_BYTES];
            let room_bytes = room.len();
            let mut parts = [io::IoSliceMut::new(&mut vnet), io::IoSliceMut::new(room)];
            let got = match rustix::io::readv(&self.fd, &mut parts) {
                Ok(got) => got,
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let packet_bytes = got.saturating_sub(VNET_BYTES).min(room_bytes);
            let (verdict, is_super) = validate_received(vnet, &room[..packet_bytes]);
            match verdict {
                Validity::Valid => {
                    self.counters.received.count(packet_bytes);
                    self.counters.received_super += u64::from(is_super);
                    return Ok(Some(packet_bytes));
                }
                Validity::Malformed => self.counters.malformed += 1,
                Validity::BadChecksum => self.counters.bad_checksums += 1,
            }
        }
    }

    fn send(
        &mut self,
        header: &mut [u8],
        payload: &[IoSlice<'_>],
        max_segment_payload_bytes: usize,
    ) -> io::Result<bool> {
        let outgoing = Outgoing::new(header, payload, max_segment_payload_bytes)?;
        let has_room = if !outgoing.layout.is_tcp() {
            self.write(VnetHeader::default(), header, payload)?
        } else if self.offloads {
            let at = outgoing.checksum_at();
            let sum = outgoing.layout.pseudo_header(header).folded();
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            let mut vnet = VnetHeader {
                flags: NEEDS_CHECKSUM,
                checksum_from: outgoing.layout.transport.start as u16,
                checksum_at: TCP_CHECKSUM_AT as u16,
                ..VnetHeader::default()
            };
            if outgoing.is_super() {
                vnet.gso = if outgoing.layout.is_v6 { GSO_TCP_V6 } else { GSO_TCP_V4 };
                vnet.header_bytes = header.len() as u16;
                vnet.segment_bytes = max_segment_payload_bytes as u16;
            }
            self.write(vnet, header, payload)?
        } else {
            let mut room = std::mem::take(&mut self.room);
            let mut segments = Segments::new(&outgoing, header, payload, max_segment_payload_bytes);
            room.resize(segments.max_bytes(), 0);
            let mut sent = 0;
            // If only the first segments were written, TCP retransmits the rest.
            while let Some(len) = segments.next_into(&mut room) {
                if !self.write(VnetHeader::default(), &room[..len], &[])? {
                    break;
                }
                sent += 1;
            }
            self.room = room;
            sent > 0
        };
        Ok(outgoing.count(&mut self.counters, has_room))
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_a_device_can_have() {
        for bad in ["", "abcdefghijklmnop", "a b", "a/b", "..", "a%d", "ä"] {
            assert_eq!(
                interface_request(bad).map(drop).map_err(|error| error.kind()),
                Err(io::ErrorKind::InvalidInput),
                "{bad}"
            );
        }
        assert!(interface_request("abcdefghijklmno").is_ok());
    }

    #[test]
    fn virtios_header_is_ten_bytes_of_this_machine() {
        let vnet = VnetHeader {
            flags: 1,
            gso: 4,
            header_bytes: 0x0102,
            segment_bytes: 3,
            checksum_from: 20,
            checksum_at: 16,
        };
        let expected: Vec<u8> =
            [vec![1, 4], [0x0102u16, 3, 20, 16].iter().flat_map(|word| word.to_ne_bytes()).collect()]
                .concat();
        assert_eq!(vnet.bytes()[..], expected[..]);
    }
}
