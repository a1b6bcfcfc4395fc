//! What the service is told.

use std::path::PathBuf;
use uncopy_link::Link;
use uncopy_net::message::{Congestion, Options, Prefix};
use uncopy_tcp::config::{Config, CongestionControl, Ecn, Keepalive, SECOND_NS};
use uncopy_tcp::wire;

/// What the service is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its control socket, an absolute path; beside it is everything that it makes.
    pub control: PathBuf,
    /// Its addresses, and what is reached through it: at most [`uncopy_net::message::MAX_PREFIXES`].
    pub prefixes: Vec<Prefix>,
    /// Received and sent bytes are copied once more between TCP and programs, as the API of sockets does it: to measure what that costs.
    pub makes_api_copies: bool,
    /// Shared memory, bytes; as much again of received bytes may be copied out, because they are few.
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

/// What TCP is told of connections of a family over a link.
pub(crate) fn config(link: &dyn Link, settings: &Settings, is_v6: bool) -> Config {
    // Fixed headers of IP and TCP, and timestamps.
    let header_bytes = if is_v6 { 60 } else { 40 };
    let mss =
        link.mtu_bytes().saturating_sub(header_bytes).clamp(usize::from(uncopy_tcp::config::MIN_MSS), 0xffff);
    let segment_bytes = mss - 12;
    let max_payload_bytes = wire::MAX_SUPER_PAYLOAD_BYTES.min(link.max_packet_bytes().saturating_sub(100));
    Config {
        mss: mss as u16,
        max_super_payload_bytes: (max_payload_bytes / segment_bytes).max(1) * segment_bytes,
        congestion_control: settings.congestion_control,
        ecn: settings.ecn,
        ..Config::default()
    }
}

/// A configuration with a program's options.
pub(crate) fn with_options(mut config: Config, options: Options) -> Config {
    config.nagle = !options.no_delay;
    match options.congestion {
        Some(Congestion::Reno) => config.congestion_control = CongestionControl::NewReno,
        Some(Congestion::Cubic) => config.congestion_control = CongestionControl::Cubic,
        None => {}
    }
    config.keepalive = options.keepalive.map(|[idle, interval, probes]| Keepalive {
        idle_ns: u64::from(idle) * SECOND_NS,
        interval_ns: u64::from(interval) * SECOND_NS,
        max_probes: probes.into(),
    });
    config
}

/// The congestion control of connections that choose none, as programs know it.
pub(crate) const fn congestion(settings: &Settings) -> Congestion {
    match settings.congestion_control {
        CongestionControl::NewReno => Congestion::Reno,
        CongestionControl::Cubic => Congestion::Cubic,
    }
}
