//! Requests of programs on the control socket.

use crate::connection::{Connection, Stage};
use crate::list::{self, List, Traffic};
use crate::service::{Service, reserve};
use crate::settings::{config, congestion, with_options};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use uncopy_net::message::{Info, MAX_PREFIXES, Options, Request, Response};
use uncopy_sys::descriptor::{OwnRef, ProgramFd};
use uncopy_sys::errno::Errno;
use uncopy_sys::{ids, seqpacket, socket};
use uncopy_tcp::connection::State;
use uncopy_tcp::wire::Tuple;

const MAX_CLIENTS: usize = 1024;
/// Maximum number of clients that arrived over another link; the oldest is closed for the next.
/// Programs of other users can create them, and each is needed for one request only.
const MAX_FORWARDED: usize = 256;
/// Maximum number of clients accepted per event.
const MAX_ACCEPTED_A_TURN: usize = 64;

/// Returns Linux's number of a state (include/net/tcp_states.h).
const fn linux_state(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        // In TIME-WAIT, Linux has closed the socket already.
        State::TimeWait | State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

impl Service {
    pub(crate) fn accept_clients(&mut self) {
        for _ in 0..MAX_ACCEPTED_A_TURN {
            match seqpacket::accept(&self.directory.control) {
                Ok(fd) => self.add_client(fd.into()),
                // A link of another user. The next one may be acceptable.
                Err(Errno::EPERM) => {}
                Err(Errno(libc::EMFILE | libc::ENFILE)) => {
                    if !self.refuse_client() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Refuses a waiting link for lack of a descriptor, lest it wake the loop forever. Returns
    /// whether it did.
    fn refuse_client(&mut self) -> bool {
        // Accepting the link uses the descriptor that closing `reserve` frees.
        let had_one = self.reserve.take().is_some();
        let refused = had_one && seqpacket::accept(&self.directory.control).is_ok();
        self.reserve = reserve();
        refused
    }

    fn add_forwarded(&mut self, fd: OwnedFd) {
        if self.forwarded.len() >= MAX_FORWARDED
            && let Some(oldest) = self.forwarded.pop_front()
        {
            self.clients.remove(&oldest);
        }
        self.forwarded.push_back(fd.as_raw_fd());
        self.add_client(fd);
    }

    fn add_client(&mut self, fd: OwnedFd) {
        if self.clients.len() < MAX_CLIENTS {
            self.watch_client(fd);
        }
    }

    pub(crate) fn handle_all_requests(&mut self) {
        self.accept_clients();
        for fd in self.clients.keys().copied().collect::<Vec<_>>() {
            self.handle_request(fd);
        }
    }

    /// Handles a request on a link, if there is one.
    pub(crate) fn handle_request(&mut self, fd: RawFd) {
        // An earlier event may have closed the link, and a stream may have its number by now.
        let Some(link) = self.clients.get(&fd) else { return };
        let mut words = [0; seqpacket::MAX_WORDS];
        let is_done = match seqpacket::receive(link.as_fd(), &mut words) {
            Ok(came) => {
                let with = came.fd.map(OwnedFd::from);
                match Request::parse(&words[..came.words]) {
                    // No check: the sender could have created the link, or got it from one who could.
                    Some(Request::PassConnection) => {
                        with.into_iter().for_each(|link| self.add_forwarded(link));
                        false
                    }
                    Some(request) => {
                        // A link passed on to another user's program must not give access to connections.
                        let is_own_user = came.user == Some(ids::effective_user());
                        let (answer, file) = if takes_over(&request) && !is_own_user {
                            (Response::Failed(libc::EPERM), None)
                        } else {
                            self.answer(&request, with)
                        };
                        let (words, with) = (answer.words(), file.as_ref().map(Attached::fd));
                        let link = self.clients.get(&fd);
                        link.is_none_or(|link| seqpacket::send_with(link.as_fd(), &words, with).is_err())
                    }
                    None => true,
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => false,
            Err(_) => true,
        };
        if is_done {
            self.clients.remove(&fd);
            self.forwarded.retain(|forwarded| *forwarded != fd);
        }
    }

    fn answer(&mut self, request: &Request, with: Option<OwnedFd>) -> (Response, Option<Attached>) {
        let failed = |errno: Errno| Response::Failed(errno.0);
        let answer = match *request {
            Request::Hello => {
                let mut prefixes = [None; MAX_PREFIXES];
                for (to, from) in prefixes.iter_mut().zip(&self.settings.prefixes) {
                    *to = Some(*from);
                }
                let state_table = self.state_table_file.fd().map(|fd| Attached::StateTable(fd.reference()));
                let congestion = congestion(&self.settings);
                return (Response::Service { service: self.id, congestion, prefixes }, state_table);
            }
            Request::Bind { address, id, is_shared } => match self.bind(address, id, is_shared) {
                Ok((address, socket)) => return (Response::Address(address), Some(Attached::File(socket))),
                Err(why) => failed(why),
            },
            Request::Listen { address, id, backlog, options } => {
                self.listen(address, id, backlog, options).map_or_else(failed, |()| Response::Done)
            }
            Request::Connect { local, remote, options } => {
                let stream = with.filter(is_stream).ok_or(Errno::EINVAL);
                stream.and_then(|fd| self.connect(local, remote, options, fd)).unwrap_or_else(failed)
            }
            Request::SetOptions { slot, serial, options } => {
                self.set(slot, serial, options).map_or_else(failed, |()| Response::Done)
            }
            Request::Info { slot, serial } => {
                self.info(slot, serial).map_or_else(|| failed(Errno(libc::ENOTCONN)), Response::Info)
            }
            Request::List => match self.list_file() {
                Ok(file) => return (Response::Done, Some(Attached::File(file))),
                Err(_) => failed(Errno::ENOMEM),
            },
            Request::Unlisten { address, id } => match self.unlisten(address, id) {
                Ok(socket) => return (Response::Address(address), Some(Attached::File(socket))),
                Err(why) => failed(why),
            },
            Request::KeepReceived { slot, serial } => {
                self.keep_received(slot, serial).map_or_else(failed, |()| Response::Done)
            }
            Request::TakeReceived { slot, serial, max_bytes, is_peeked } => {
                match self.read_kept(slot, serial, max_bytes as usize, is_peeked) {
                    Ok((count, file)) => return (Response::Bytes(count), file.map(Attached::File)),
                    Err(why) => failed(why),
                }
            }
            Request::PassConnection => Response::Done,
        };
        (answer, None)
    }

    fn bind(
        &mut self,
        address: SocketAddr,
        id: u32,
        is_shared: bool,
    ) -> Result<(SocketAddr, OwnedFd), Errno> {
        if !address.ip().is_unspecified() && !self.is_own(address.ip()) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        if address.port() != 0 {
            self.remove_gone_listeners(|at| at.port() == address.port());
        }
        self.listeners.bind(address, id, is_shared, &self.directory.paths)
    }

    fn listen(&mut self, address: SocketAddr, id: u32, backlog: u32, options: Options) -> Result<(), Errno> {
        for at in self.listeners.listen(address, id)? {
            let config = with_options(config(&*self.link, &self.settings, at.is_ipv6()), options);
            // Another socket may listen there already.
            let _ = self.stack.listen(at, backlog.clamp(1, 65_535) as usize, Some(config));
        }
        Ok(())
    }

    fn unlisten(&mut self, address: SocketAddr, id: u32) -> Result<OwnedFd, Errno> {
        let (socket, unlistened) = self.listeners.unlisten(address, id)?;
        for at in unlistened {
            self.stack.unlisten(at);
        }
        Ok(socket)
    }

    fn connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        options: Options,
        stream: OwnedFd,
    ) -> Result<Response, Errno> {
        let mut local = local;
        if remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(Errno(libc::ECONNREFUSED));
        }
        if local.ip().is_unspecified() {
            let prefixes = &self.settings.prefixes;
            let nearest = prefixes
                .iter()
                .filter(|prefix| prefix.contains(remote.ip()))
                .max_by_key(|prefix| prefix.bits);
            local.set_ip(nearest.map(|prefix| prefix.service_address).ok_or(Errno(libc::ENETUNREACH))?);
        } else if !self.is_own(local.ip()) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        if local.port() == 0 {
            let port = self.stack.choose_port(local.ip(), remote).ok_or(Errno(libc::EADDRNOTAVAIL))?;
            local.set_port(port);
        }
        let tuple = Tuple { local, remote };
        let connection = Connection::new(Stage::Filling, tuple, options);
        let (slot, serial) = self.add(connection).ok_or(Errno(libc::ENOBUFS))?;
        self.begin_stream(slot, stream);
        Ok(Response::Connection { slot, serial, local })
    }

    fn set(&mut self, slot: u32, serial: u32, options: Options) -> Result<(), Errno> {
        let connection = self.connections.get_by_serial(slot, serial).ok_or(Errno(libc::ENOTCONN))?;
        connection.options = options;
        if let Some(id) = connection.id {
            let _ = self.stack.configure(id, |config| *config = with_options(config.clone(), options));
        }
        Ok(())
    }

    fn info(&mut self, slot: u32, serial: u32) -> Option<Info> {
        let connection = self.connections.get_by_serial(slot, serial)?;
        let received_bytes = connection.received_bytes;
        let known = self.stack.get(connection.id?)?.statistics();
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Some(Info {
            state: linux_state(known.state),
            mss: known.segment_bytes.into(),
            round_trip_us: (known.round_trip_ns / 1000) as u32,
            window_bytes: known.congestion_window_bytes,
            acknowledged_bytes: known.acknowledged_bytes,
            received_bytes: received_bytes + known.ready_bytes,
            retransmissions: count(known.retransmissions),
            lost_segments: count(known.lost_segments),
            retransmitted_segments: count(known.retransmitted_segments),
            timeouts: known.timeouts,
        })
    }

    fn list(&self) -> List {
        let counters = self.link.counters();
        let addresses: Vec<(IpAddr, u8)> =
            self.settings.prefixes.iter().map(|prefix| (prefix.service_address, prefix.bits)).collect();
        let connections = self.connections.all().map(|(_, connection)| {
            let known = connection.id.and_then(|id| self.stack.get(id)).map(|tcp| tcp.statistics());
            let waiting = connection.stream.as_ref().map_or(0, |stream| stream.waiting_bytes() as u64);
            list::Connection {
                local: connection.tuple.local,
                remote: connection.tuple.remote,
                state: known.map_or("CLOSED", |known| rfc_state(known.state)).to_owned(),
                round_trip_us: known.map_or(0, |known| known.round_trip_ns / 1000),
                congestion_window_bytes: known.map_or(0, |known| known.congestion_window_bytes),
                has_ecn: known.is_some_and(|known| known.has_ecn),
                acknowledged_bytes: known.map_or(0, |known| known.acknowledged_bytes),
                queued_bytes: known.map_or(0, |known| known.queued_bytes),
                retransmissions: known.map_or(0, |known| known.retransmissions),
                received_bytes: connection.received_bytes,
                waiting_bytes: waiting + known.map_or(0, |known| known.ready_bytes),
            }
        });
        List {
            schema: uncopy_core::schema::NET,
            pid: std::process::id(),
            addresses,
            mtu_bytes: self.link.mtu_bytes(),
            makes_api_copies: self.settings.makes_api_copies,
            up_s: self.began.elapsed().as_secs(),
            traffic: Traffic {
                received_packets: counters.received.packets,
                received_bytes: counters.received.bytes,
                sent_packets: counters.sent.packets,
                sent_bytes: counters.sent.bytes,
                dropped_packets: counters.malformed + counters.bad_checksums + self.dropped_packets,
                copied_bytes: self.copied_bytes,
                retransmissions: self.stack.retransmissions(),
                connections: self.connections_begun,
            },
            listeners: self
                .listeners
                .all()
                .map(|(address, sockets)| list::Listener { address, sockets })
                .collect(),
            connections: connections.collect(),
        }
    }

    fn list_file(&self) -> std::io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("uncopy-net-list", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(file);
        file.write_all(&serde_json::to_vec(&self.list())?)?;
        Ok(file.into())
    }
}

/// True if the request takes a connection or listener away from its program.
const fn takes_over(request: &Request) -> bool {
    matches!(request, Request::Unlisten { .. } | Request::KeepReceived { .. } | Request::TakeReceived { .. })
}

/// True if the descriptor can be a program's end of a connection. Makes it nonblocking.
fn is_stream(fd: &OwnedFd) -> bool {
    let is_unix = matches!(socket::kind(fd.as_fd()), Ok((libc::AF_UNIX, libc::SOCK_STREAM, _)));
    is_unix && rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK).is_ok()
}

const fn rfc_state(state: State) -> &'static str {
    match state {
        State::Closed => "CLOSED",
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECEIVED",
        State::Established => "ESTABLISHED",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
    }
}

/// Descriptor sent along with an answer.
enum Attached {
    /// The state table, which stays open.
    StateTable(OwnRef),
    /// A file, closed after the answer.
    File(OwnedFd),
}

impl Attached {
    fn fd(&self) -> ProgramFd {
        match self {
            Self::StateTable(state_table) => state_table.as_program(),
            Self::File(file) => ProgramFd::of(file),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use uncopy_link::memory;
    use uncopy_tcp::config::{CongestionControl, Ecn};

    #[test]
    fn stale_event_of_a_closed_link_leaves_the_stream_alone() {
        // The path of a control socket is limited to 108 bytes.
        let folder = PathBuf::from(format!("/dev/shm/uncopy-test-hear-{}", std::process::id()));
        let settings = Settings {
            control: folder.join("control"),
            prefixes: Vec::new(),
            makes_api_copies: false,
            memory_bytes: 1 << 20,
            memory_directory: None,
            max_connections: 16,
            congestion_control: CongestionControl::Cubic,
            ecn: Ecn::Off,
        };
        let [link, _peer] = memory::pair(1500, [memory::lossless(), memory::lossless()]).expect("made");
        let mut service = Service::begin(settings, Box::new(link)).expect("begun");
        let (mut stream, mut peer) = UnixStream::pair().expect("made");
        peer.write_all(&[7; 256]).expect("room");
        service.handle_request(stream.as_raw_fd());
        let mut came = [0; 512];
        assert_eq!(stream.read(&mut came).expect("there"), 256);
    }
}
