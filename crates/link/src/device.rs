//! What the kernel is told of a device (netdevice(7)): its longest packet, its queue, an address of the kernel's own, that it is up.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::tun::request;

/// Packets that wait to be received, at most: a sender's whole window must fit, or it finds losses.
pub const QUEUE_PACKETS: i32 = 5000;

/// `struct in6_ifreq` (linux/ipv6.h).
#[repr(C)]
struct V6Request {
    address: [u8; 16],
    prefix_bits: u32,
    index: i32,
}

fn socket(domain: i32) -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor.
    match unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: just made.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Makes a request that names a valid structure.
fn ask<T>(socket: &OwnedFd, number: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: callers pass the structure that the request asks for.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn v4(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

/// Sets a device up: packets of `mtu_bytes`, and for each network the kernel's own address and the bits of the prefix. It is in the
/// calling thread's network namespace.
///
/// # Errors
/// EPERM: it takes `CAP_NET_ADMIN`. EINVAL: no such MTU. Else what the kernel says.
pub fn set_up(name: &str, mtu_bytes: usize, addresses: &[(IpAddr, u8)]) -> io::Result<()> {
    let inet = socket(libc::AF_INET)?;
    let mut mtu = request(name)?;
    mtu.ifr_ifru.ifru_mtu = i32::try_from(mtu_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    ask(&inet, libc::SIOCSIFMTU, &mut mtu)?;
    let mut queue = request(name)?;
    queue.ifr_ifru.ifru_metric = QUEUE_PACKETS;
    ask(&inet, libc::SIOCSIFTXQLEN, &mut queue)?;
    for (address, bits) in addresses {
        match address {
            IpAddr::V4(address) => {
                let mut own = request(name)?;
                own.ifr_ifru.ifru_addr = v4(*address);
                ask(&inet, libc::SIOCSIFADDR, &mut own)?;
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                let mut netmask = request(name)?;
                netmask.ifr_ifru.ifru_netmask = v4(Ipv4Addr::from_bits(mask));
                ask(&inet, libc::SIOCSIFNETMASK, &mut netmask)?;
            }
            IpAddr::V6(address) => add_v6(&inet, name, *address, *bits)?,
        }
    }
    let mut flags = request(name)?;
    ask(&inet, libc::SIOCGIFFLAGS, &mut flags)?;
    // SAFETY: the kernel has just written this member.
    unsafe { flags.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    ask(&inet, libc::SIOCSIFFLAGS, &mut flags)
}

fn add_v6(inet: &OwnedFd, name: &str, address: Ipv6Addr, bits: u8) -> io::Result<()> {
    // Without routers and neighbours to look for, as far as the kernel lets itself be told.
    for (file, value) in [("accept_ra", "0"), ("addr_gen_mode", "1"), ("accept_dad", "0")] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{file}"), value);
    }
    let mut index = request(name)?;
    ask(inet, libc::SIOCGIFINDEX, &mut index)?;
    // SAFETY: the kernel has just written this member.
    let index = unsafe { index.ifr_ifru.ifru_ifindex };
    let mut own = V6Request { address: address.octets(), prefix_bits: bits.into(), index };
    ask(&socket(libc::AF_INET6)?, libc::SIOCSIFADDR, &mut own)
}
