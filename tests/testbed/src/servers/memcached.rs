//! memcached.

use super::*;

/// memcached, with its limits on memory.
#[derive(Clone, Copy, Debug)]
pub struct Memcached {
    /// Number of worker threads.
    pub threads: u8,
    /// Memory for values, MiB.
    pub memory_mib: u16,
    /// Longest value, MiB.
    pub value_mib: u8,
    /// Whether the server also listens on UDP, at the same port.
    pub by_udp: bool,
}

impl Service for Memcached {
    const PROGRAM: Package = Package::new("memcached", "memcached", &["--version"]);

    fn arguments(&self, address: SocketAddr, _: &Path) -> Result<Vec<OsString>> {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let (threads, memory) = (self.threads.to_string(), self.memory_mib.to_string());
        let (value, udp) = (format!("{}m", self.value_mib), if self.by_udp { &port } else { "0" });
        // memcached refuses to run as root without -u, and ignores the option for other users.
        let arguments = ["-l", &ip, "-p", &port, "-U", udp, "-t", &threads, "-m", &memory, "-I", &value];
        Ok(arguments.into_iter().chain(["-u", "root"]).map(OsString::from).collect())
    }
}
