//! A socket of AF_XDP on one queue of an Ethernet device, in copy mode behind generic XDP: right on every device, and not fast.
//!
//! ```text
//!   device ── XDP program ──┬── own addresses ──► socket ──► neighbours, packets
//!                           └── all others ─────► kernel
//! ```
//!
//! There are no super-packets and no offloads: every checksum is verified and written here. The program is the device's as long as the
//! [`Xdp`] is there, however its process ends.
#![allow(unsafe_code)]

pub mod neighbours;
mod program;
mod rings;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::device::ask;
use crate::packet::{Layout, Verdict, verdict};
use crate::split::{Outgoing, Segments};
use crate::tun::request;
use crate::{Counters, Link};
use neighbours::{ETHERNET_BYTES, Mac, Neighbours, Route};
use rings::{MAX_FRAME_BYTES, Part, Socket};

/// The longest packet, bytes from the IP header on.
pub const MAX_MTU_BYTES: usize = MAX_FRAME_BYTES - ETHERNET_BYTES;
/// Frames without a packet for TCP that are received in one call.
const MAX_OTHERS: usize = 64;

/// What is made, and for whom.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// The device.
    pub device: &'a str,
    /// Its queue, from 0 on.
    pub queue: u32,
    /// The addresses that are answered for, with the bits of their networks' prefixes.
    pub own: &'a [(IpAddr, u8)],
    /// Routers to other networks.
    pub routers: &'a [IpAddr],
}

/// What could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Finding the device.
    Device,
    /// It is not an Ethernet.
    Ethernet,
    /// It is not up.
    Up,
    /// Its packets, of so many bytes, are longer than [`MAX_MTU_BYTES`].
    Mtu(usize),
    /// A socket of AF_XDP.
    Socket,
    /// The socket's memory.
    Memory,
    /// Binding the socket to the queue.
    Queue,
    /// Loading the program.
    Program,
    /// Attaching it to the device.
    Attachment,
    /// Waiting for packets and for the device's end.
    Waiting,
    /// Having the device receive questions for addresses of IPv6.
    Multicast,
}

/// A step, and why it failed.
#[derive(Debug)]
pub struct Failed {
    /// What was to be done.
    pub step: Step,
    /// What the kernel said.
    pub error: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}: {}", self.step, self.error)
    }
}

impl std::error::Error for Failed {}

fn at<T>(step: Step, result: io::Result<T>) -> Result<T, Failed> {
    result.map_err(|error| Failed { step, error })
}

/// What the kernel says of a device.
struct Device {
    index: u32,
    mac: Mac,
    mtu_bytes: usize,
}

impl Device {
    fn find(name: &str) -> Result<Self, Failed> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = at(Step::Device, socket.map_err(io::Error::from))?;
        let get = |number| -> Result<libc::ifreq, Failed> {
            let mut of = at(Step::Device, request(name))?;
            at(Step::Device, ask(&socket, number, &mut of))?;
            Ok(of)
        };
        let (index, mtu) = (get(libc::SIOCGIFINDEX)?, get(libc::SIOCGIFMTU)?);
        let (flags, hardware) = (get(libc::SIOCGIFFLAGS)?, get(libc::SIOCGIFHWADDR)?);
        // SAFETY: each request has written its member.
        let (index, mtu_bytes, flags, hardware) = unsafe {
            (
                index.ifr_ifru.ifru_ifindex as u32,
                mtu.ifr_ifru.ifru_mtu as usize,
                libc::c_int::from(flags.ifr_ifru.ifru_flags),
                hardware.ifr_ifru.ifru_hwaddr,
            )
        };
        if hardware.sa_family != libc::ARPHRD_ETHER {
            return at(Step::Ethernet, Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        if flags & libc::IFF_UP == 0 {
            return at(Step::Up, Err(io::Error::from_raw_os_error(libc::ENETDOWN)));
        }
        if mtu_bytes > MAX_MTU_BYTES {
            return at(Step::Mtu(mtu_bytes), Err(io::Error::from_raw_os_error(libc::EMSGSIZE)));
        }
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
            *to = from as u8;
        }
        Ok(Self { index, mac, mtu_bytes })
    }
}

/// Has a device receive questions for these addresses, for as long as the descriptor is there (packet(7)). `None`: there is none of IPv6.
fn join(device: u32, own: &[IpAddr]) -> io::Result<Option<OwnedFd>> {
    let groups = own.iter().filter_map(|own| match own {
        IpAddr::V6(own) => Some(neighbours::multicast(program::solicited_node(*own))),
        IpAddr::V4(_) => None,
    });
    let groups: Vec<Mac> = groups.collect();
    if groups.is_empty() {
        return Ok(None);
    }
    // SAFETY: touches no memory; the descriptor is new. Protocol 0: no packet comes.
    let fd = unsafe {
        match libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) {
            -1 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    for mac in groups {
        let mut address = [0; 8];
        address[..6].copy_from_slice(&mac);
        let wanted = libc::packet_mreq {
            mr_ifindex: device as i32,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address: address,
        };
        let (value, len) = ((&raw const wanted).cast(), size_of::<libc::packet_mreq>() as u32);
        // SAFETY: the structure that the option asks for.
        let done = unsafe {
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, value, len)
        };
        if done == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(Some(fd))
}

/// What tells of changes of devices (rtnetlink(7)): a socket of AF_XDP is not readable when its device is gone (xsk_poll, Linux 6.18).
fn changes() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
    Ok(socket)
}

/// Whether there are sockets of AF_XDP here, and programs for them can be loaded. Changes nothing.
///
/// # Errors
/// The first step that the kernel does not do, and why.
pub fn probe() -> Result<(), Failed> {
    at(Step::Socket, rings::socket())?;
    let own = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    at(Step::Program, program::make_map(0).and_then(|map| program::load(&map, &own)))?;
    Ok(())
}

/// A queue of a device in the network namespace of the thread that has made it.
#[derive(Debug)]
pub struct Xdp {
    socket: Socket,
    neighbours: Neighbours,
    mtu_bytes: usize,
    began: Instant,
    counters: Counters,
    changes: OwnedFd,
    /// Readable when the socket or `changes` is.
    epoll: OwnedFd,
    _attached: OwnedFd,
    _joined: Option<OwnedFd>,
}

impl Xdp {
    /// Takes a queue: from there on the kernel gets nothing that comes there for the own addresses.
    ///
    /// # Errors
    /// The step that failed. EPERM: it takes `CAP_NET_ADMIN`, `CAP_NET_RAW` and `CAP_BPF`. Of [`Step::Queue`], EBUSY: somebody has it, EINVAL: there
    /// is no such queue. Of [`Step::Attachment`], EBUSY or EEXIST: the device has a program.
    pub fn open(settings: &Settings<'_>) -> Result<Self, Failed> {
        let device = Device::find(settings.device)?;
        let socket = Socket::bind(device.index, settings.queue).map_err(|(part, error)| Failed {
            step: match part {
                Part::Socket => Step::Socket,
                Part::Memory => Step::Memory,
                Part::Binding => Step::Queue,
            },
            error,
        })?;
        let own: Vec<IpAddr> = settings.own.iter().map(|(own, _)| *own).collect();
        let program = program::make_map(settings.queue).and_then(|map| {
            program::enter(&map, settings.queue, socket.as_fd())?;
            program::load(&map, &own)
        });
        let program = at(Step::Program, program)?;
        let attached = at(Step::Attachment, program::attach(&program, device.index))?;
        let joined = at(Step::Multicast, join(device.index, &own))?;
        let changes = at(Step::Waiting, changes())?;
        let waits = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, &socket, EventData::new_u64(0), EventFlags::IN)?;
            epoll::add(&epoll, &changes, EventData::new_u64(1), EventFlags::IN)?;
            Ok(epoll)
        };
        let epoll = at(Step::Waiting, waits())?;
        Ok(Self {
            socket,
            neighbours: Neighbours::new(device.mac, settings.own, settings.routers),
            mtu_bytes: device.mtu_bytes,
            began: Instant::now(),
            counters: Counters::default(),
            changes,
            epoll,
            _attached: attached,
            _joined: joined,
        })
    }

    /// Looks whether the device is still there, if any device has changed.
    fn verify(&self) -> io::Result<()> {
        let mut room = [0; 64];
        let mut has_changed = false;
        // NOBUFS: more has changed than fits the socket.
        while let Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) =
            recv(&self.changes, &mut room[..], RecvFlags::DONTWAIT)
        {
            has_changed = true;
        }
        if has_changed { self.socket.verify() } else { Ok(()) }
    }

    /// Puts frames in line; those without room are lost, as on any network.
    fn put(&mut self, frames: Vec<Vec<u8>>) {
        for frame in frames {
            self.socket.put(|room| {
                room[..frame.len()].copy_from_slice(&frame);
                frame.len()
            });
        }
    }
}

impl Link for Xdp {
    fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn mtu_bytes(&self) -> usize {
        self.mtu_bytes
    }

    fn max_packet_bytes(&self) -> usize {
        self.mtu_bytes
    }

    fn receive(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        for _ in 0..MAX_OTHERS {
            let now = self.began.elapsed();
            let (neighbours, counters) = (&mut self.neighbours, &mut self.counters);
            let mut out = Vec::new();
            let came = self.socket.receive(|frame| {
                let packet = &frame[neighbours.receive(frame, now, &mut out)?];
                match verdict(packet, false) {
                    Verdict::Sound if packet.len() <= room.len() => {
                        room[..packet.len()].copy_from_slice(packet);
                        counters.received.count(packet.len());
                        return Some(packet.len());
                    }
                    Verdict::BadChecksum => counters.bad_checksums += 1,
                    Verdict::Sound | Verdict::Malformed => counters.malformed += 1,
                }
                None
            });
            if !out.is_empty() {
                self.put(out);
                // A device that is down now, or gone: see below.
                let _ = self.socket.kick();
            }
            match came {
                Some(Some(packet_bytes)) => return Ok(Some(packet_bytes)),
                Some(None) => {}
                None => {
                    self.verify()?;
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    fn send(
        &mut self,
        header: &mut [u8],
        payload: &[IoSlice<'_>],
        max_segment_payload_bytes: usize,
    ) -> io::Result<bool> {
        let outgoing = Outgoing::new(header, payload, max_segment_payload_bytes)?;
        let mut segments = Segments::new(&outgoing, header, payload, max_segment_payload_bytes);
        if segments.max_bytes() > self.mtu_bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a segment is longer than the device's packets",
            ));
        }
        let mut questions = Vec::new();
        let now = self.began.elapsed();
        let route = self.neighbours.route(destination(&outgoing.layout, header), now, &mut questions);
        self.put(questions);
        let has_room = match route {
            Route::To(mac) => {
                let ethernet = self.neighbours.header(mac, outgoing.layout.is_v6);
                let mut sent = 0;
                // What is lost of a packet of which the beginning went, TCP sends again.
                while sent < outgoing.segments
                    && self.socket.put(|room| {
                        room[..ETHERNET_BYTES].copy_from_slice(&ethernet);
                        let len = segments.next_into(&mut room[ETHERNET_BYTES..]);
                        ETHERNET_BYTES + len.expect("as many as were counted")
                    })
                {
                    sent += 1;
                }
                sent > 0
            }
            Route::Unknown(neighbour) => {
                let mut frame = self.neighbours.header([0; 6], outgoing.layout.is_v6).to_vec();
                frame.resize(ETHERNET_BYTES + segments.max_bytes(), 0);
                let len = segments.next_into(&mut frame[ETHERNET_BYTES..]).expect("one at least");
                frame.truncate(ETHERNET_BYTES + len);
                self.neighbours.hold(neighbour, frame);
                true
            }
            Route::Silent => {
                return Err(io::Error::new(io::ErrorKind::HostUnreachable, "the neighbour does not answer"));
            }
            Route::Nowhere => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "no router to that address"));
            }
        };
        self.socket.kick()?;
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

/// The second of a header's addresses.
fn destination(layout: &Layout, header: &[u8]) -> IpAddr {
    let both = &header[layout.addresses.clone()];
    let address = &both[both.len() / 2..];
    match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(address), _) => address.into(),
        (_, Ok(address)) => address.into(),
        _ => unreachable!("addresses of 4 or 16 bytes"),
    }
}
