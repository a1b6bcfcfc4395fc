//! The sockets that the server listens on.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

use crate::cached::arguments::Settings;
use crate::cached::datagrams::SEND_BUFFER_BYTES;
use crate::sockets;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// What a server listens on.
#[derive(Debug, Default)]
pub struct Listening {
    /// Sockets that connections come from.
    pub streams: Vec<OwnedFd>,
    /// UDP sockets: for each thread, one for each address.
    pub datagrams: Vec<Vec<OwnedFd>>,
    /// The addresses, for people.
    pub names: Vec<String>,
    unix_socket: Option<PathBuf>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.unix_socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A failure to listen, in words.
fn failed(what: &str, error: impl Into<io::Error>) -> String {
    format!("cannot listen on {what}: {}", error.into())
}

impl Listening {
    /// Listens on all that `settings` ask for.
    ///
    /// # Errors
    /// What could not be listened on, and why.
    pub fn begin(settings: &Settings) -> Result<Self, String> {
        let mut listening = Self::default();
        let threads = usize::try_from(settings.threads).unwrap_or(1);
        listening.datagrams.resize_with(threads, Vec::new);
        for host in &settings.listen {
            for (port, is_tcp) in [(settings.port, true), (settings.udp_port, false)] {
                // 0 asks the kernel for one, which is -1 on the command line; 0 there is for none.
                let Ok(port) = u16::try_from(port.max(0)) else { continue };
                let asked = if is_tcp { settings.port } else { settings.udp_port };
                if asked == 0 {
                    continue;
                }
                let addresses =
                    (host.as_str(), port).to_socket_addrs().map_err(|error| failed(host, error))?;
                for address in addresses {
                    let added = if is_tcp { listening.add_tcp(address) } else { listening.add_udp(address) };
                    added.map_err(|error| failed(&address.to_string(), error))?;
                }
            }
        }
        if let Some(path) = &settings.unix_socket {
            listening
                .add_unix(path, settings.unix_mode)
                .map_err(|error| failed(&path.display().to_string(), error))?;
        }
        if listening.names.is_empty() {
            return Err("nothing to listen on: give -p, -U or -s".to_owned());
        }
        Ok(listening)
    }

    fn add_tcp(&mut self, address: SocketAddr) -> io::Result<()> {
        let socket = inet(address, SocketType::STREAM)?;
        self.names.push(format!("tcp {}", sockets::listen_tcp(&socket, address, BACKLOG)?));
        self.streams.push(socket);
        Ok(())
    }

    /// One socket for each thread: the kernel gives each peer to one of them.
    fn add_udp(&mut self, mut address: SocketAddr) -> io::Result<()> {
        for thread in 0..self.datagrams.len() {
            let socket = inet(address, SocketType::DGRAM)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
            let _ = sockopt::set_socket_recv_buffer_size(&socket, SEND_BUFFER_BYTES);
            rustix::net::bind(&socket, &address)?;
            if thread == 0 {
                address = sockets::local(&socket)?;
                self.names.push(format!("udp {address}"));
            }
            self.datagrams[thread].push(socket);
        }
        Ok(())
    }

    fn add_unix(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        // What an earlier server left; never anything that is not a socket, nor one that somebody listens on.
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, sockets::FLAGS, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        self.unix_socket = Some(path.to_owned());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)?;
        self.names.push(format!("unix {}", path.display()));
        self.streams.push(socket);
        Ok(())
    }
}

fn inet(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = sockets::inet(address, kind)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}
