//! Configuration of network devices (netdevice(7)): MTU, queue length, addresses, and the up flag.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use crate::tun::interface_request;

/// Length of the transmit queue, in packets: a sender's whole window must fit, or packets are lost.
pub const QUEUE_PACKETS: i32 = 5000;

/// Maximum wait for the kernel's route to its IPv6 address. It takes milliseconds, and more than a second was seen on
/// a machine with a load of eight for each processor.
const ROUTE_LIMIT: Duration = Duration::from_secs(20);

/// Calls ioctl(2) with an argument of the type that request `number` requires.
pub(crate) fn ioctl<T>(socket: &OwnedFd, number: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: `argument` is a valid, exclusive reference; callers pass the type that `number` requires.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the addresses in the calling thread's network namespace: device, address, prefix length.
///
/// # Errors
/// The error of getifaddrs(3).
pub fn addresses() -> io::Result<Vec<(String, IpAddr, u8)>> {
    let mut list = std::ptr::null_mut();
    let mut found = Vec::new();
    // SAFETY: getifaddrs(3) succeeded, so `list` is null or a valid list until freeifaddrs, which comes
    // last. Each address is null or a valid socket address of its family, and each name is NUL-terminated.
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

/// Returns the IP address of a socket address, or `None` for null and other families.
///
/// # Safety
/// `address` must be null, or valid and as long as its family requires.
unsafe fn octets(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees that `address` is null or valid for the family that it names.
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

/// Configures a device in the calling thread's network namespace: MTU, queue, and the kernel's
/// addresses with prefix lengths. Settings that are already right are left alone, so a prepared
/// device requires no privileges.
///
/// # Errors
/// EPERM: requires `CAP_NET_ADMIN`. EINVAL: invalid MTU or prefix. ENODEV: no device. Else the
/// kernel's error.
pub fn set_up(name: &str, mtu_bytes: usize, addresses: &[(IpAddr, u8)]) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let seen = read_settings(name)?;
    if seen.mtu_bytes != mtu_bytes {
        let mut mtu = interface_request(name)?;
        mtu.ifr_ifru.ifru_mtu = i32::try_from(mtu_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        ioctl(&socket, libc::SIOCSIFMTU, &mut mtu)?;
    }
    if seen.queue_packets < QUEUE_PACKETS as usize {
        let mut queue = interface_request(name)?;
        queue.ifr_ifru.ifru_metric = QUEUE_PACKETS;
        // Not fatal: a shorter queue only causes more retransmissions.
        match ioctl(&socket, libc::SIOCSIFTXQLEN, &mut queue) {
            Err(error) if error.raw_os_error() != Some(libc::EPERM) => return Err(error),
            _ => {}
        }
    }
    let mut index = interface_request(name)?;
    ioctl(&socket, libc::SIOCGIFINDEX, &mut index)?;
    // SAFETY: SIOCGIFINDEX succeeded, so the kernel has set `ifru_ifindex`.
    let index = unsafe { index.ifr_ifru.ifru_ifindex };
    disable_router_discovery(name, addresses.iter().any(|(address, _)| address.is_ipv6()));
    let present = self::addresses()?;
    let is_present = |(address, bits): &(IpAddr, u8)| present.contains(&(name.to_owned(), *address, *bits));
    for (address, bits) in addresses.iter().filter(|wanted| !is_present(wanted)) {
        add_address(index, *address, *bits)?;
    }
    let mut flags = interface_request(name)?;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut flags)?;
    // SAFETY: SIOCGIFFLAGS succeeded, so the kernel has set `ifru_flags`.
    let is_up = unsafe { flags.ifr_ifru.ifru_flags } & libc::IFF_UP as libc::c_short != 0;
    if !is_up {
        // SAFETY: `ifru_flags` was set by SIOCGIFFLAGS, and the other flags are kept.
        unsafe { flags.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
        ioctl(&socket, libc::SIOCSIFFLAGS, &mut flags)?;
    }
    for (address, _) in addresses {
        if let IpAddr::V6(address) = address {
            // Without a route, TCP sends again what is lost.
            wait_for_v6_route(name, *address);
        }
    }
    Ok(())
}

/// Current settings of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Maximum packet length, in bytes.
    pub mtu_bytes: usize,
    /// Length of the transmit queue, in packets.
    pub queue_packets: usize,
    /// Whether the device has no link-layer addresses, as a TUN device.
    pub is_tun: bool,
}

/// Returns the settings of a device in the calling thread's network namespace.
///
/// # Errors
/// ENODEV: no such device. Else the kernel's error.
pub fn read_settings(name: &str) -> io::Result<DeviceSettings> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let get = |number| -> io::Result<libc::ifreq> {
        let mut request = interface_request(name)?;
        ioctl(&socket, number, &mut request)?;
        Ok(request)
    };
    let (mtu, queue, kind) = (get(libc::SIOCGIFMTU)?, get(libc::SIOCGIFTXQLEN)?, get(libc::SIOCGIFHWADDR)?);
    // SAFETY: each request succeeded and set its member; SIOCGIFTXQLEN uses `ifru_metric`.
    let (mtu, queue, kind) =
        unsafe { (mtu.ifr_ifru.ifru_mtu, queue.ifr_ifru.ifru_metric, kind.ifr_ifru.ifru_hwaddr.sa_family) };
    let size = |value| usize::try_from(value).unwrap_or_default();
    Ok(DeviceSettings { mtu_bytes: size(mtu), queue_packets: size(queue), is_tun: kind == libc::ARPHRD_NONE })
}

/// Disables router discovery and the link-local address. Errors are ignored (read-only /proc, no
/// IPv6): the TCP ignores the extra packets.
fn disable_router_discovery(name: &str, has_address: bool) {
    let enable = has_address.then_some(("disable_ipv6", "0"));
    for (file, value) in enable.into_iter().chain([("accept_ra", "0"), ("addr_gen_mode", "1")]) {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{file}"), value);
    }
}

/// Adds an address by RTM_NEWADDR (rtnetlink(7)), or updates an existing one. Unlike the ioctl, it accepts
/// IFA_F_NODAD, without which programs cannot bind to an IPv6 address until duplicate address detection ends.
fn add_address(index: i32, address: IpAddr, bits: u8) -> io::Result<()> {
    const HEADER_BYTES: usize = 16;
    let octets: &[u8] = match &address {
        IpAddr::V4(address) => &address.octets(),
        IpAddr::V6(address) => &address.octets(),
    };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // struct ifaddrmsg: family, prefix length, flags (set by attribute), scope (universe), device.
    let mut body = vec![family as u8, bits, 0, 0];
    body.extend(index.to_ne_bytes());
    let flags = libc::IFA_F_NODAD.to_ne_bytes();
    for (kind, value) in [(libc::IFA_LOCAL, octets), (libc::IFA_ADDRESS, octets), (libc::IFA_FLAGS, &flags)] {
        body.extend((4 + value.len() as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    }
    // struct nlmsghdr: length, type, flags; sequence number and port ID are 0.
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let mut message = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(libc::RTM_NEWADDR.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);

    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &message, SendFlags::empty())?;
    // The kernel answers before send returns, with an nlmsghdr and a negative error number.
    let mut answer = [0; 256];
    let (got_bytes, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    match answer[..got_bytes].get(HEADER_BYTES..).and_then(|error| error.first_chunk()) {
        Some([0, 0, 0, 0]) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*error))),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Waits for the kernel's route to its own `address` on the device `name` of the calling thread's network namespace.
/// The kernel adds it in the background once the device is up, and drops packets until then (addrconf_dad_work,
/// Linux 6.18). Returns false if there is no route after 20 s, or if routes cannot be read.
pub fn wait_for_v6_route(name: &str, address: Ipv6Addr) -> bool {
    let destination = format!("{:032x} 80 ", address.to_bits());
    let until = Instant::now() + ROUTE_LIMIT;
    while Instant::now() < until {
        let Ok(routes) = std::fs::read_to_string("/proc/thread-self/net/ipv6_route") else { return false };
        let is_present = |route: &str| {
            route.starts_with(&destination) && route.split_whitespace().next_back() == Some(name)
        };
        if routes.lines().any(is_present) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
