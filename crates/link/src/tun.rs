//! A TUN device (Linux, Documentation/networking/tuntap.rst), with super-packets and checksums left to the kernel where it takes
//! them: each packet has a header of virtio in front (linux/virtio_net.h).
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use crate::packet::{TCP_CHECKSUM_AT, Verdict, verdict};
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
const CHECKSUM_IS_RIGHT: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;

/// `struct virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default)]
struct Vnet {
    flags: u8,
    gso: u8,
    header_bytes: u16,
    segment_bytes: u16,
    checksum_from: u16,
    checksum_at: u16,
}

impl Vnet {
    fn bytes(self) -> [u8; VNET_BYTES] {
        let mut bytes = [self.flags, self.gso, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.header_bytes, self.segment_bytes, self.checksum_from, self.checksum_at];
        for (to, word) in bytes[2..].chunks_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// What came behind a header of virtio, and whether it is a super-packet.
pub(crate) fn judge(vnet: [u8; VNET_BYTES], packet: &[u8]) -> (Verdict, bool) {
    let [flags, gso, ..] = vnet;
    let is_believed = flags & (NEEDS_CHECKSUM | CHECKSUM_IS_RIGHT) != 0;
    (verdict(packet, is_believed), gso != GSO_NONE)
}

/// A TUN device of this process's, which is gone with it.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    mtu_bytes: usize,
    offloads: bool,
    counters: Counters,
    /// Where segments are made, if the kernel does not.
    room: Vec<u8>,
}

/// The name of a device as `struct ifreq` has it.
///
/// # Errors
/// `InvalidInput` if no device can have it.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
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
    // SAFETY: all-zero bytes are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

impl Tun {
    /// Makes a device of this name in the calling thread's network namespace, or attaches to one that is there and has nobody.
    /// Packets of `mtu_bytes` at most go over it; `device::set_up` tells the kernel so.
    ///
    /// # Errors
    /// `InvalidInput`: no name of a device. ENOENT, EACCES: there is no /dev/net/tun, or it cannot be opened. EPERM: it takes
    /// `CAP_NET_ADMIN`. EBUSY: somebody has a device of this name. EINVAL: one of this name is none of this kind.
    pub fn open(name: &str, mtu_bytes: usize) -> io::Result<Self> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: a terminated path; the descriptor is new; the requests name structures that are valid during the calls.
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

    /// Writes one packet; whether there was room.
    fn write(&self, vnet: Vnet, header: &[u8], payload: &[IoSlice<'_>]) -> io::Result<bool> {
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
            let (verdict, is_super) = judge(vnet, &room[..packet_bytes]);
            match verdict {
                Verdict::Sound => {
                    self.counters.received.count(packet_bytes);
                    self.counters.received_super += u64::from(is_super);
                    return Ok(Some(packet_bytes));
                }
                Verdict::Malformed => self.counters.malformed += 1,
                Verdict::BadChecksum => self.counters.bad_checksums += 1,
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
            self.write(Vnet::default(), header, payload)?
        } else if self.offloads {
            let at = outgoing.checksum_at();
            let sum = outgoing.layout.pseudo_header(header).folded();
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            let mut vnet = Vnet {
                flags: NEEDS_CHECKSUM,
                checksum_from: outgoing.layout.transport.start as u16,
                checksum_at: TCP_CHECKSUM_AT as u16,
                ..Vnet::default()
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
            // What is lost of a packet of which the beginning went, TCP sends again.
            while let Some(len) = segments.next_into(&mut room) {
                if !self.write(Vnet::default(), &room[..len], &[])? {
                    break;
                }
                sent += 1;
            }
            self.room = room;
            sent > 0
        };
        if has_room {
            self.counters.sent.count(outgoing.packet_bytes);
            self.counters.sent_super += u64::from(outgoing.is_super());
        } else {
            self.counters.refused += 1;
        }
        Ok(has_room)
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
                request(bad).map(drop).map_err(|error| error.kind()),
                Err(io::ErrorKind::InvalidInput),
                "{bad}"
            );
        }
        assert!(request("abcdefghijklmno").is_ok());
    }

    #[test]
    fn virtios_header_is_ten_bytes_of_this_machine() {
        let vnet = Vnet {
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
