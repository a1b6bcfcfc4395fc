//! An AF_XDP socket on one queue of an Ethernet device, in copy mode with generic XDP: portable but slow.
//!
//! ```text
//!   device ── XDP program ──┬── own addresses ──► socket ──► neighbours, packets
//!                           └── all others ─────► kernel
//! ```
//!
//! There are no super-packets and no offloads: TCP checksums are computed in software, and IPv4, TCP and ICMP
//! checksums are verified in software ([`validate`]). The XDP program stays attached as long as the [`Xdp`]
//! exists, and is detached however the process ends.
#![allow(unsafe_code)]

pub mod frames;
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

use crate::device::ioctl;
use crate::packet::{Layout, Validity, validate};
use crate::split::{Outgoing, Segments};
use crate::tun::interface_request;
use crate::{Counters, Link};
use frames::{ETHERNET_BYTES, Mac};
use neighbours::{Neighbours, Route};
use rings::{BindStep, MAX_FRAME_BYTES, Socket};

/// Maximum MTU, in bytes from the IP header on.
pub const MAX_MTU_BYTES: usize = MAX_FRAME_BYTES - ETHERNET_BYTES;
/// Maximum number of frames without a packet that one call of `receive` consumes.
const MAX_NONPACKET_FRAMES: usize = 64;

/// Device, queue and addresses for [`Xdp::open`].
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// Index of the queue.
    pub queue: u32,
    /// Addresses to take over, with the prefix lengths of their networks.
    pub own: &'a [(IpAddr, u8)],
    /// Routers to other networks.
    pub routers: &'a [IpAddr],
}

/// Steps of [`Xdp::open`] that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupStep {
    /// Finding the network device.
    Device,
    /// Checking that the device is an Ethernet device.
    Ethernet,
    /// Checking that the device is up.
    Up,
    /// Checking that the MTU, given here in bytes, is at most [`MAX_MTU_BYTES`].
    Mtu(usize),
    /// Creating the AF_XDP socket.
    Socket,
    /// Registering and mapping the socket's memory.
    Memory,
    /// Binding the socket to the queue.
    Queue,
    /// Loading the XDP program.
    Program,
    /// Attaching the program to the device.
    Attachment,
    /// Setting up notification of packets and of the device's removal.
    Notification,
    /// Joining the multicast groups of IPv6 neighbour discovery.
    Multicast,
}

/// A failed step of [`Xdp::open`].
#[derive(Debug)]
pub struct SetupError {
    /// The step that failed.
    pub step: SetupStep,
    /// Error of the system call.
    pub error: io::Error,
}

impl fmt::Display for SetupError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}: {}", self.step, self.error)
    }
}

impl std::error::Error for SetupError {}

fn in_step<T>(step: SetupStep, result: io::Result<T>) -> Result<T, SetupError> {
    result.map_err(|error| SetupError { step, error })
}

struct Device {
    index: u32,
    mac: Mac,
    mtu_bytes: usize,
}

impl Device {
    fn find(name: &str) -> Result<Self, SetupError> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = in_step(SetupStep::Device, socket.map_err(io::Error::from))?;
        let get = |number| -> Result<libc::ifreq, SetupError> {
            let mut request = in_step(SetupStep::Device, interface_request(name))?;
            in_step(SetupStep::Device, ioctl(&socket, number, &mut request))?;
            Ok(request)
        };
        let (index, mtu) = (get(libc::SIOCGIFINDEX)?, get(libc::SIOCGIFMTU)?);
        let (flags, hardware) = (get(libc::SIOCGIFFLAGS)?, get(libc::SIOCGIFHWADDR)?);
        // SAFETY: each ioctl succeeded, so the kernel has set the member that belongs to its request.
        let (index, mtu_bytes, flags, hardware) = unsafe {
            (
                index.ifr_ifru.ifru_ifindex as u32,
                mtu.ifr_ifru.ifru_mtu as usize,
                libc::c_int::from(flags.ifr_ifru.ifru_flags),
                hardware.ifr_ifru.ifru_hwaddr,
            )
        };
        if hardware.sa_family != libc::ARPHRD_ETHER {
            return in_step(SetupStep::Ethernet, Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        if flags & libc::IFF_UP == 0 {
            return in_step(SetupStep::Up, Err(io::Error::from_raw_os_error(libc::ENETDOWN)));
        }
        if mtu_bytes > MAX_MTU_BYTES {
            return in_step(SetupStep::Mtu(mtu_bytes), Err(io::Error::from_raw_os_error(libc::EMSGSIZE)));
        }
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
            *to = from as u8;
        }
        Ok(Self { index, mac, mtu_bytes })
    }
}

/// Joins the multicast groups for neighbour discovery of `own` while the descriptor is open (packet(7)).
fn join_groups(device: u32, own: &[IpAddr]) -> io::Result<Option<OwnedFd>> {
    let groups = own.iter().filter_map(|own| match own {
        IpAddr::V6(own) => Some(frames::multicast(program::solicited_node(*own))),
        IpAddr::V4(_) => None,
    });
    let groups: Vec<Mac> = groups.collect();
    if groups.is_empty() {
        return Ok(None);
    }
    // SAFETY: socket(2) takes integers and returns a new descriptor. Protocol 0 receives no packets.
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
        // SAFETY: PACKET_ADD_MEMBERSHIP reads a `packet_mreq` of `len` bytes; `wanted` outlives the call.
        let done = unsafe {
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, value, len)
        };
        if done == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(Some(fd))
}

/// Returns a socket that reports device changes (rtnetlink(7)), which xsk_poll does not (Linux 6.18).
fn device_changes() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
    Ok(socket)
}

/// Checks whether AF_XDP sockets and programs for them are available, without changing anything.
///
/// # Errors
/// The first step that failed.
pub fn probe() -> Result<(), SetupError> {
    in_step(SetupStep::Socket, rings::socket())?;
    let own = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    in_step(SetupStep::Program, program::make_map(0).and_then(|map| program::load(&map, &own)))?;
    Ok(())
}

/// A queue of a device in the network namespace of the thread that called [`Xdp::open`].
#[derive(Debug)]
pub struct Xdp {
    socket: Socket,
    neighbours: Neighbours,
    mtu_bytes: usize,
    start: Instant,
    counters: Counters,
    changes: OwnedFd,
    /// Readable while the socket or `changes` is.
    epoll: OwnedFd,
    _attached: OwnedFd,
    _joined: Option<OwnedFd>,
}

impl Xdp {
    /// Takes over a queue: its packets for the own addresses no longer reach the kernel's stack.
    ///
    /// # Errors
    /// The step that failed. EPERM: requires `CAP_NET_ADMIN`, `CAP_NET_RAW` and `CAP_BPF`. At
    /// [`SetupStep::Queue`], EBUSY: in use, EINVAL: no such queue. At [`SetupStep::Attachment`], EBUSY or
    /// EEXIST: the device has a program.
    pub fn open(settings: &Settings<'_>) -> Result<Self, SetupError> {
        let device = Device::find(settings.device)?;
        let socket = Socket::bind(device.index, settings.queue).map_err(|(part, error)| SetupError {
            step: match part {
                BindStep::Socket => SetupStep::Socket,
                BindStep::Memory => SetupStep::Memory,
                BindStep::Binding => SetupStep::Queue,
            },
            error,
        })?;
        let own: Vec<IpAddr> = settings.own.iter().map(|(own, _)| *own).collect();
        let program = program::make_map(settings.queue).and_then(|map| {
            program::insert_socket(&map, settings.queue, socket.as_fd())?;
            program::load(&map, &own)
        });
        let program = in_step(SetupStep::Program, program)?;
        let attached = in_step(SetupStep::Attachment, program::attach(&program, device.index))?;
        let joined = in_step(SetupStep::Multicast, join_groups(device.index, &own))?;
        let changes = in_step(SetupStep::Notification, device_changes())?;
        let make_epoll = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, &socket, EventData::new_u64(0), EventFlags::IN)?;
            epoll::add(&epoll, &changes, EventData::new_u64(1), EventFlags::IN)?;
            Ok(epoll)
        };
        let epoll = in_step(SetupStep::Notification, make_epoll())?;
        Ok(Self {
            socket,
            neighbours: Neighbours::new(device.mac, settings.own, settings.routers),
            mtu_bytes: device.mtu_bytes,
            start: Instant::now(),
            counters: Counters::default(),
            changes,
            epoll,
            _attached: attached,
            _joined: joined,
        })
    }

    /// Fails if the device is gone; asks only after a device has changed.
    fn check_device(&self) -> io::Result<()> {
        let mut room = [0; 64];
        let mut has_changed = false;
        // NOBUFS: more changes than the socket's buffer holds.
        while let Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) =
            recv(&self.changes, &mut room[..], RecvFlags::DONTWAIT)
        {
            has_changed = true;
        }
        if has_changed { self.socket.take_error() } else { Ok(()) }
    }

    /// Queues frames for sending; those without room are dropped.
    fn enqueue(&mut self, frames: Vec<Vec<u8>>) {
        for frame in frames {
            self.socket.enqueue(|room| {
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
        for _ in 0..MAX_NONPACKET_FRAMES {
            let now = self.start.elapsed();
            let (neighbours, counters) = (&mut self.neighbours, &mut self.counters);
            let mut out = Vec::new();
            let received = self.socket.receive(|frame| {
                let packet = &frame[neighbours.receive(frame, now, &mut out)?];
                match validate(packet, false) {
                    Validity::Valid if packet.len() <= room.len() => {
                        room[..packet.len()].copy_from_slice(packet);
                        counters.received.count(packet.len());
                        return Some(packet.len());
                    }
                    Validity::BadChecksum => counters.bad_checksums += 1,
                    Validity::Valid | Validity::Malformed => counters.malformed += 1,
                }
                None
            });
            if !out.is_empty() {
                self.enqueue(out);
                // Errors recur in `check_device` or in the next `send`.
                let _ = self.socket.kick();
            }
            match received {
                Some(Some(packet_bytes)) => return Ok(Some(packet_bytes)),
                Some(None) => {}
                None => {
                    self.check_device()?;
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
        let mut requests = Vec::new();
        let now = self.start.elapsed();
        let route = self.neighbours.route(destination(&outgoing.layout, header), now, &mut requests);
        self.enqueue(requests);
        let has_room = match route {
            Route::Resolved(mac) => {
                let ethernet = self.neighbours.header(mac, outgoing.layout.is_v6);
                let mut sent = 0;
                // If only the first segments were queued, TCP retransmits the rest.
                while sent < outgoing.segments
                    && self.socket.enqueue(|room| {
                        room[..ETHERNET_BYTES].copy_from_slice(&ethernet);
                        let len = segments.next_into(&mut room[ETHERNET_BYTES..]);
                        ETHERNET_BYTES + len.expect("as many as were counted")
                    })
                {
                    sent += 1;
                }
                sent > 0
            }
            Route::Unresolved(neighbour) => {
                let mut frame = self.neighbours.header([0; 6], outgoing.layout.is_v6).to_vec();
                frame.resize(ETHERNET_BYTES + segments.max_bytes(), 0);
                let len = segments.next_into(&mut frame[ETHERNET_BYTES..]).expect("one at least");
                frame.truncate(ETHERNET_BYTES + len);
                self.neighbours.hold(neighbour, frame);
                true
            }
            Route::Unreachable => {
                return Err(io::Error::new(io::ErrorKind::HostUnreachable, "the neighbour does not answer"));
            }
            Route::NoRoute => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "no router to that address"));
            }
        };
        self.socket.kick()?;
        Ok(outgoing.count(&mut self.counters, has_room))
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

fn destination(layout: &Layout, header: &[u8]) -> IpAddr {
    let both = &header[layout.addresses.clone()];
    let address = &both[both.len() / 2..];
    match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(address), _) => address.into(),
        (_, Ok(address)) => address.into(),
        _ => unreachable!("addresses of 4 or 16 bytes"),
    }
}
