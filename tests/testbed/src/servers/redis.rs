//! Redis.

use super::*;
use crate::clients::resp::Connection;

/// Redis without snapshots, open to every client that can reach its address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Redis<'a> {
    /// Further options, each with its value. The last of several with the same name applies.
    pub options: &'a [&'a str],
}

impl Service for Redis<'_> {
    const PROGRAM: Package = Package::new("redis-server", "redis-server", &["--version"]);

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let (port, ip) = (address.port().to_string(), address.ip().to_string());
        // In protected mode Redis answers loopback clients only. A namespace of the test's own has
        // no foreign clients.
        let protected = if address.ip().is_loopback() { "yes" } else { "no" };
        let arguments = ["--port", &port, "--bind", &ip, "--protected-mode", protected, "--daemonize", "no"];
        let arguments = arguments.iter().chain(&["--save", "", "--appendfsync", "no"]).chain(self.options);
        Ok(arguments.map(Into::into).chain(["--dir".into(), directory.into()]).collect())
    }

    fn is_ready(&self, address: SocketAddr) -> bool {
        Connection::open(address, TIMEOUT).is_ok_and(|mut connection| connection.ping().is_ok())
    }
}
