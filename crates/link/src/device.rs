//! What the kernel is told of a device (netdevice(7)): its longest packet, its queue, an address of the kernel's own, that it is up.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use crate::tun::request;

/// Packets that wait to be received, at most: a sender's whole window must fit, or it finds losses.
pub const QUEUE_PACKETS: i32 = 5000;

/// How long the kernel's route to its IPv6 address is waited for.
const ROUTE_LIMIT: Duration = Duration::from_secs(1);

/// Makes a request that names a valid structure.
pub(crate) fn ask<T>(socket: &OwnedFd, number: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: callers pass the structure that the request asks for.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The addresses of the calling thread's network namespace: device, address, bits of the prefix.
///
/// # Errors
/// What the kernel says.
pub fn addresses() -> io::Result<Vec<(String, IpAddr, u8)>> {
    let mut list = std::ptr::null_mut();
    let mut found = Vec::new();
    // SAFETY: the list is read before it is freed; each address has the length of its family.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut at: *const libc::ifaddrs = list;
        while let Some(entry) = at.as_ref() {
            at = entry.ifa_next;
            if let (Some(address), Some(mask)) = (octets(entry.ifa_addr), octets(entry.ifa_netmask)) {
                let bits = match mask {
                    IpAddr::V4(mask) => mask.to_bits().leading_ones(),
                    IpAddr::V6(mask) => mask.to_bits().leading_ones(),
                };
                let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
                found.push((name, address, bits as u8));
            }
        }
        libc::freeifaddrs(list);
    }
    Ok(found)
}

/// The IP address of a socket address, if it is one.
///
/// # Safety
/// It is null, or as long as its family's are.
unsafe fn octets(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller says.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                Some(IpAddr::from((*address.cast::<libc::sockaddr_in>()).sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => Some(IpAddr::from((*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr)),
            _ => None,
        }
    }
}

/// Sets a device up: packets of `mtu_bytes`, and for each network the kernel's own address and the bits of the prefix. It is in the
/// calling thread's network namespace. What is as it should be is left alone, so a device that was made ready takes no privileges.
///
/// # Errors
/// EPERM: it takes `CAP_NET_ADMIN`. EINVAL: no such MTU or prefix. ENODEV: no such device. Else what the kernel says.
pub fn set_up(name: &str, mtu_bytes: usize, addresses: &[(IpAddr, u8)]) -> io::Result<()> {
    let inet = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let seen = look(name)?;
    if seen.mtu_bytes != mtu_bytes {
        let mut mtu = request(name)?;
        mtu.ifr_ifru.ifru_mtu = i32::try_from(mtu_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        ask(&inet, libc::SIOCSIFMTU, &mut mtu)?;
    }
    if seen.queue_packets < QUEUE_PACKETS as usize {
        let mut queue = request(name)?;
        queue.ifr_ifru.ifru_metric = QUEUE_PACKETS;
        // With a shorter one more is lost and sent again.
        match ask(&inet, libc::SIOCSIFTXQLEN, &mut queue) {
            Err(error) if error.raw_os_error() != Some(libc::EPERM) => return Err(error),
            _ => {}
        }
    }
    let mut index = request(name)?;
    ask(&inet, libc::SIOCGIFINDEX, &mut index)?;
    // SAFETY: the kernel has just written this member.
    let index = unsafe { index.ifr_ifru.ifru_ifindex };
    quiet_v6(name, addresses.iter().any(|(address, _)| address.is_ipv6()));
    let there = self::addresses()?;
    let is_there = |(address, bits): &(IpAddr, u8)| there.contains(&(name.to_owned(), *address, *bits));
    for (address, bits) in addresses.iter().filter(|wanted| !is_there(wanted)) {
        add_address(index, *address, *bits)?;
    }
    let mut flags = request(name)?;
    ask(&inet, libc::SIOCGIFFLAGS, &mut flags)?;
    // SAFETY: the kernel has just written this member.
    let is_up = unsafe { flags.ifr_ifru.ifru_flags } & libc::IFF_UP as libc::c_short != 0;
    if !is_up {
        // SAFETY: as above.
        unsafe { flags.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
        ask(&inet, libc::SIOCSIFFLAGS, &mut flags)?;
    }
    for (address, _) in addresses {
        if let IpAddr::V6(address) = address {
            wait_for_v6(name, *address);
        }
    }
    Ok(())
}

/// What a device is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The longest packet, bytes.
    pub mtu_bytes: usize,
    /// Packets that wait to be received, at most.
    pub queue_packets: usize,
    /// It has no addresses of its own below IP, as a TUN device.
    pub is_tun: bool,
}

/// Looks at a device in the calling thread's network namespace.
///
/// # Errors
/// ENODEV: there is none of this name. Else what the kernel says.
pub fn look(name: &str) -> io::Result<Seen> {
    let inet = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let get = |number| -> io::Result<libc::ifreq> {
        let mut of = request(name)?;
        ask(&inet, number, &mut of)?;
        Ok(of)
    };
    let (mtu, queue, kind) = (get(libc::SIOCGIFMTU)?, get(libc::SIOCGIFTXQLEN)?, get(libc::SIOCGIFHWADDR)?);
    // SAFETY: each request has written its member; the queue's length is where a metric is.
    let (mtu, queue, kind) =
        unsafe { (mtu.ifr_ifru.ifru_mtu, queue.ifr_ifru.ifru_metric, kind.ifr_ifru.ifru_hwaddr.sa_family) };
    let size = |value| usize::try_from(value).unwrap_or_default();
    Ok(Seen { mtu_bytes: size(mtu), queue_packets: size(queue), is_tun: kind == libc::ARPHRD_NONE })
}

/// No routers or neighbours are looked for, and no link-local address is made. /proc may be read-only, or there may be no IPv6: then
/// there are packets that the TCP ignores.
fn quiet_v6(name: &str, has_address: bool) {
    let enable = has_address.then_some(("disable_ipv6", "0"));
    for (file, value) in enable.into_iter().chain([("accept_ra", "0"), ("addr_gen_mode", "1")]) {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{file}"), value);
    }
}

/// RTM_NEWADDR of rtnetlink(7). By ioctl, programs could not bind to an IPv6 address until the kernel had found in the background
/// that nobody else has it; it does not look with IFA_F_NODAD. The device may have the address already.
fn add_address(index: i32, address: IpAddr, bits: u8) -> io::Result<()> {
    const HEADER_BYTES: usize = 16;
    let octets: &[u8] = match &address {
        IpAddr::V4(address) => &address.octets(),
        IpAddr::V6(address) => &address.octets(),
    };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // struct ifaddrmsg: family, prefix, flags (in an attribute), scope (everywhere), device.
    let mut body = vec![family as u8, bits, 0, 0];
    body.extend(index.to_ne_bytes());
    let flags = libc::IFA_F_NODAD.to_ne_bytes();
    for (kind, value) in [(libc::IFA_LOCAL, octets), (libc::IFA_ADDRESS, octets), (libc::IFA_FLAGS, &flags)] {
        body.extend((4 + value.len() as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    }
    // struct nlmsghdr: length, type, flags, and no sequence number or sender.
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let mut message = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(libc::RTM_NEWADDR.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);

    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &message, SendFlags::empty())?;
    // The kernel has answered when send returns: with an nlmsghdr, and an error number below 0.
    let mut answer = [0; 256];
    let (got_bytes, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    match answer[..got_bytes].get(HEADER_BYTES..).and_then(|error| error.first_chunk()) {
        Some([0, 0, 0, 0]) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*error))),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Waits until the kernel takes packets to its address: it makes the route in the background once the device is up (addrconf_dad_work,
/// Linux 6.18: some milliseconds, in which packets are lost). It is not an error if it takes long, or cannot be seen.
fn wait_for_v6(name: &str, address: Ipv6Addr) {
    let destination = format!("{:032x} 80 ", address.to_bits());
    let until = Instant::now() + ROUTE_LIMIT;
    while Instant::now() < until {
        let Ok(routes) = std::fs::read_to_string("/proc/thread-self/net/ipv6_route") else { return };
        let is_there = |route: &str| {
            route.starts_with(&destination) && route.split_whitespace().next_back() == Some(name)
        };
        if routes.lines().any(is_there) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
