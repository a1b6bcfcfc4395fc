//! Waits until a server is ready: until it accepts connections, or, for servers that must not get a connection
//! too early, until some time after it listens.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Pid;
use uncopy_testbed::network::{accepts, has_listener};

use crate::kit::processes::process::TIMEOUT;
use crate::kit::{Result, Server};

/// Waits until `server` accepts connections at `address`.
///
/// # Errors
/// [`crate::kit::Failure`] with the server's last output when the server ended, or did not accept in time.
pub fn wait_until_listening(mut server: Server, address: SocketAddr) -> Result<Server> {
    server.wait_until("listen", |_| accepts(address, TIMEOUT))?;
    Ok(server)
}

/// Waits as [`wait_until_listening`] does, but leaves the server without connections for `undisturbed_time` after it began to
/// listen.
///
/// # Errors
/// As [`wait_until_listening`].
pub fn wait_undisturbed(
    mut server: Server,
    address: SocketAddr,
    undisturbed_time: Duration,
) -> Result<Server> {
    if !undisturbed_time.is_zero() {
        server.wait_until("listen", |server| is_listening(server.pid(), address))?;
        std::thread::sleep(undisturbed_time);
    }
    wait_until_listening(server, address)
}

/// Returns whether something listens at `address` in the network namespace of process `pid`, without connecting.
fn is_listening(pid: Pid, address: SocketAddr) -> bool {
    let table = |name| {
        std::fs::read_to_string(format!("/proc/{}/net/{name}", pid.as_raw_nonzero())).unwrap_or_default()
    };
    has_listener(&table("tcp"), address) || has_path(&table("unix"), address)
}

/// Returns whether a table of `/proc/PID/net/unix` has the path that a user-level TCP service uses for `address`.
fn has_path(table: &str, address: SocketAddr) -> bool {
    let begin = format!("/{address}-");
    table.lines().filter_map(|line| line.rsplit_once(' ')).any(|(_, path)| path.contains(&begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_behind_a_service_is_found_by_its_path() {
        let table = "Num RefCount Protocol Flags Type St Inode Path\n\
                     0: 00000002 00000000 00010000 0001 01 77 /dev/shm/net/listeners/198.18.1.2:80-0000000a\n";
        let has = |address: &str| has_path(table, address.parse().expect("an address"));
        assert!(has("198.18.1.2:80") && !has("198.18.1.2:8") && !has("98.18.1.2:80"));
    }
}
