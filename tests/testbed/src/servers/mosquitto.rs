//! mosquitto.

use super::*;

/// mosquitto, open to all clients and for messages of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mosquitto<'a> {
    /// Further lines of the configuration.
    pub lines: &'a str,
}

impl Service for Mosquitto<'_> {
    // Mosquitto prints its version with its usage.
    const PROGRAM: Package = Package::new("mosquitto", "mosquitto", &["-h"]);

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let configuration = format!(
            "listener {} {}\nallow_anonymous true\nuser root\npersistence false\nlog_dest stderr\n\
             log_type error\nlog_type warning\nmessage_size_limit 0\nset_tcp_nodelay true\n{}",
            address.port(),
            address.ip(),
            self.lines
        );
        let file = write(directory, "mosquitto.conf", &configuration)?;
        Ok(vec!["-c".into(), file.into()])
    }
}
