//! Accepting clients: as many as may be connected at a time, each with a place that it gives back when it goes.
//!
//! Invariant: `open = clients that exist ≤ limit`, but for those that are being refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, accept_with, recv, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sockets;

/// How many connections there may be, and how many there were. Shared by all threads of a server.
#[derive(Debug)]
pub struct Admission {
    /// Connections at a time.
    pub limit: usize,
    open: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
}

/// A client's socket, which does not block, and its place.
#[derive(Debug)]
pub struct Client {
    /// Closed before the place is given back.
    socket: OwnedFd,
    _place: Place,
}

#[derive(Debug)]
struct Place(Arc<Admission>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Admission {
    /// Room for `limit` connections.
    pub fn new(limit: usize) -> Arc<Self> {
        let (open, accepted, refused) = Default::default();
        Arc::new(Self { limit, open, accepted, refused })
    }

    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Connections ever accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// Connections refused because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Accepts those that wait at `listener`, at most `max` of them. Who is one too many is sent `refusal`.
    ///
    /// # Errors
    /// As accept(2), where it is not the client's fault: no descriptors or memory, say, so that trying again at once is of
    /// no use.
    pub fn accept(
        self: &Arc<Self>,
        listener: &OwnedFd,
        max: usize,
        refusal: &[u8],
        mut welcome: impl FnMut(Client),
    ) -> Result<(), Errno> {
        for _ in 0..max {
            match accept_with(listener, sockets::FLAGS) {
                Ok(socket) => match self.place() {
                    Some(place) => welcome(Client { socket, _place: place }),
                    None => refuse(&socket, refusal),
                },
                Err(Errno::AGAIN) => break,
                // The client is gone already, or a firewall did not like it (accept(2)); others may wait.
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PERM
                    | Errno::PROTO
                    | Errno::NOPROTOOPT
                    | Errno::OPNOTSUPP
                    | Errno::NONET
                    | Errno::NETDOWN
                    | Errno::NETUNREACH
                    | Errno::HOSTDOWN
                    | Errno::HOSTUNREACH,
                ) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn place(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self));
        let has_room = self.open.fetch_add(1, Relaxed) < self.limit;
        let counter = if has_room { &self.accepted } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        has_room.then_some(place)
    }
}

/// Tells a client that there is no room. A socket that was just accepted takes that without waiting. A request that came
/// already is taken out, because closing would reset the connection otherwise, and the client might lose the answer.
fn refuse(socket: &OwnedFd, refusal: &[u8]) {
    let _ = send(socket, refusal, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    let _ = recv(socket, &mut [0; 16 << 10][..], RecvFlags::DONTWAIT);
}

/// Raises the limit of descriptors to `wanted`, as far as this process may. The limit then; `None` where there is none.
pub fn raise_descriptor_limit(wanted: u64) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if current.is_none_or(|current| current >= raised) {
        return current;
    }
    let is_raised = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok();
    if is_raised { Some(raised) } else { current }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn one_too_many_is_told_so_and_a_place_that_is_given_back_is_given_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let (listener, admission) = (OwnedFd::from(listener), Admission::new(1));
        let mut clients = Vec::new();
        let accept = |clients: &mut Vec<Client>| {
            admission.accept(&listener, 9, b"no room", |client| clients.push(client)).expect("accepted");
            (admission.open(), admission.accepted(), admission.refused())
        };
        let _first = TcpStream::connect(address).expect("connected");
        assert_eq!((accept(&mut clients), clients.len()), ((1, 1, 0), 1));
        let mut second = TcpStream::connect(address).expect("connected");
        assert_eq!((accept(&mut clients), clients.len()), ((1, 1, 1), 1));
        let mut told = String::new();
        second.read_to_string(&mut told).expect("closed in order");
        assert_eq!(told, "no room");
        clients.clear();
        assert_eq!(accept(&mut clients), (0, 1, 1));
        let _third = TcpStream::connect(address).expect("connected");
        assert_eq!((accept(&mut clients), clients.len()), ((1, 2, 1), 1));
    }
}
