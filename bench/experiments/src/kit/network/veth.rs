//! Two network namespaces and the link between them, made through rtnetlink (man 7 rtnetlink, man 4 veth).

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Index of the loopback device in every namespace.
const LOOPBACK_INDEX: u32 = 1;
/// Index of the link's end in a namespace that otherwise has only the loopback device.
const VETH_INDEX: u32 = 2;
/// Name of both ends of the link.
const VETH_NAME: &str = "veth";
/// Prefix length of the network that contains both addresses, bits.
const PREFIX_BITS: u8 = 30;
/// Maximum length of a kernel answer, which is an error with the request that it answers, bytes.
const MAX_ANSWER_BYTES: usize = 8192;

/// The step that failed, and its error.
pub type StepError = (&'static str, io::Error);

/// Moves this thread into a network namespace with the first address, linked to another with the second; returns the
/// other one.
///
/// # Errors
/// The step that failed; the thread may already have left its namespace then.
pub fn enter_veth_pair((near, far): (Ipv4Addr, Ipv4Addr), mtu_bytes: u32) -> Result<OwnedFd, StepError> {
    let kernel_far = enter_new_namespace()?;
    let choose =
        || super::choose_congestion_control().map_err(|error| ("choosing a congestion control", error));
    choose()?;
    let namespace = File::open("/proc/thread-self/ns/net")
        .map_err(|error| ("opening a network namespace", error))
        .map(OwnedFd::from)?;
    let kernel_near = enter_new_namespace()?;
    choose()?;
    let made = kernel_near.request_change(veth_request(&namespace, mtu_bytes), NLM_F_CREATE | NLM_F_EXCL);
    made.map_err(|error| ("creating a veth pair", error))?;
    for (kernel, address) in [(&kernel_near, near), (&kernel_far, far)] {
        kernel
            .request_change(address_request(address), NLM_F_CREATE | NLM_F_EXCL)
            .and_then(|()| kernel.request_change(up_request(LOOPBACK_INDEX), 0))
            .and_then(|()| kernel.request_change(up_request(VETH_INDEX), 0))
            .map_err(|error| ("setting up a veth device", error))?;
    }
    Ok(namespace)
}

/// Moves this thread into a network namespace that has only a loopback device.
///
/// # Errors
/// The step that failed; the thread may already have left its namespace then.
pub fn enter_loopback_only() -> Result<(), StepError> {
    let kernel = enter_new_namespace()?;
    kernel
        .request_change(up_request(LOOPBACK_INDEX), 0)
        .map_err(|error| ("setting up the loopback device", error))
}

/// Moves this thread into a new network namespace, and returns a netlink socket that stays in it.
fn enter_new_namespace() -> Result<Netlink, StepError> {
    // SAFETY: only `UnshareFlags::FILES` could invalidate borrowed descriptors; NEWNET unshares none.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| ("creating a network namespace", error.into()))?;
    Netlink::open().map_err(|error| ("opening a netlink socket", error))
}

/// A rtnetlink socket of one network namespace.
#[derive(Debug)]
struct Netlink(OwnedFd);

impl Netlink {
    fn open() -> io::Result<Self> {
        // Protocol number 0 of this address family is rtnetlink.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self(socket))
    }

    /// Sends `request` and waits for the acknowledgement; the kernel answers within the call.
    fn request_change(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, &bytes, SendFlags::empty(), &kernel)?;
        let mut answer = vec![0; MAX_ANSWER_BYTES];
        let (len_bytes, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..len_bytes]);
        match answer.map(|answer| answer.payload) {
            // An error message without a code is the acknowledgement.
            Ok(NetlinkPayload::Error(error)) if error.code.is_none() => Ok(()),
            Ok(NetlinkPayload::Error(error)) => Err(error.to_io()),
            Ok(_) => Err(io::Error::other("unexpected answer of the kernel")),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Returns the request for a pair of devices: one here, one in `namespace`.
fn veth_request(namespace: &OwnedFd, mtu_bytes: u32) -> RouteNetlinkMessage {
    let end = |more: Vec<LinkAttribute>| {
        let mut message = LinkMessage::default();
        message.header.index = VETH_INDEX;
        message.attributes = vec![LinkAttribute::IfName(VETH_NAME.to_owned()), LinkAttribute::Mtu(mtu_bytes)];
        message.attributes.extend(more);
        message
    };
    let peer = end(vec![LinkAttribute::NetNsFd(namespace.as_raw_fd())]);
    let data = InfoData::Veth(InfoVeth::Peer(peer));
    let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(data)];
    RouteNetlinkMessage::NewLink(end(vec![LinkAttribute::LinkInfo(info)]))
}

fn address_request(address: Ipv4Addr) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.family = netlink_packet_route::AddressFamily::Inet;
    message.header.prefix_len = PREFIX_BITS;
    message.header.index = VETH_INDEX;
    message.attributes =
        vec![AddressAttribute::Local(address.into()), AddressAttribute::Address(address.into())];
    RouteNetlinkMessage::NewAddress(message)
}

fn up_request(index: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    RouteNetlinkMessage::SetLink(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use rustix::io::Errno;
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    const ADDRESSES: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2));

    /// Runs in a thread of its own, because the thread never returns to its first namespace.
    fn bytes_cross(mtu_bytes: u32) -> Result<Vec<u8>, StepError> {
        let far = enter_veth_pair(ADDRESSES, mtu_bytes)?;
        let listener = std::thread::spawn(move || {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&far), Some(LinkNameSpaceType::Network))
                .expect("root may");
            TcpListener::bind((ADDRESSES.1, 0)).expect("its address")
        });
        let listener = listener.join().expect("no panic");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a link");
        let (mut server, _) = listener.accept().expect("a client");
        server.write_all(&vec![7; 100_000]).expect("room in the buffers");
        drop(server);
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).expect("all of it");
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("readable");
        assert_eq!(text.lines().filter(|line| line.contains(':')).count(), 2, "{text}");
        Ok(bytes)
    }

    #[test]
    fn bytes_cross_a_veth_pair_of_either_mtu() {
        for mtu_bytes in [1500, 9000] {
            let outcome = std::thread::spawn(move || bytes_cross(mtu_bytes)).join().expect("no panic");
            match outcome {
                Ok(bytes) => assert_eq!(bytes, vec![7; 100_000]),
                Err((what, error)) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
                    eprintln!("skipped: {what}: {error}");
                }
                Err((what, error)) => panic!("{what}: {error}"),
            }
        }
    }
}
