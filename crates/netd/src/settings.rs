//! What the service is told.

use std::path::PathBuf;
use uncopy_net::message::Prefix;
use uncopy_tcp::config::{CongestionControl, Ecn};

/// What the service is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its control socket, an absolute path; beside it is everything that it makes.
    pub control: PathBuf,
    /// Its addresses, and what is reached through it: at most [`uncopy_net::message::MAX_PREFIXES`].
    pub prefixes: Vec<Prefix>,
    /// Received and sent bytes are copied once more between TCP and programs, as the API of sockets does it: to measure what that costs.
    pub makes_api_copies: bool,
    /// Shared memory, bytes.
    pub memory_bytes: usize,
    /// Connections, at most.
    pub max_connections: usize,
    /// Which congestion control.
    pub congestion_control: CongestionControl,
    /// Whether routers may mark packets of connections whose peers agree.
    pub ecn: Ecn,
}

/// Shared memory that nothing else limits, bytes.
pub const MEMORY_BYTES: usize = 256 << 20;
