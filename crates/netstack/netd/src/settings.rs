//! Settings of the service, and the TCP configuration that follows from them.

use std::path::PathBuf;
use uncopy_link::Link;
use uncopy_net::message::{Congestion, Options, Prefix};
use uncopy_tcp::config::{Config, CongestionControl, Ecn, Keepalive, SECOND_NS};
use uncopy_tcp::wire;

/// Settings of the service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Absolute path of the control socket, whose directory holds all files of the service.
    pub control: PathBuf,
    /// Own addresses with their networks, at most [`uncopy_net::message::MAX_PREFIXES`].
    pub prefixes: Vec<Prefix>,
    /// Whether to copy bytes between TCP and programs, as the socket API does: to measure what that costs.
    pub makes_api_copies: bool,
    /// Size of shared memory, in bytes. Copies of short payloads may use as much again.
    pub memory_bytes: usize,
    /// Private directory of logs in whose files the shared memory is to lie, so that records can refer to what arrives;
    /// `None`: it lies in no directory.
    pub memory_directory: Option<PathBuf>,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Default congestion control of connections.
    pub congestion_control: CongestionControl,
    /// Use of explicit congestion notification.
    pub ecn: Ecn,
}

/// Returns the TCP configuration for a link and an address family.
pub(crate) fn config(link: &dyn Link, settings: &Settings, is_v6: bool) -> Config {
    // Fixed headers of IP and TCP. Timestamps take 12 more bytes.
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

/// Applies a program's options to a configuration.
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

/// Returns the default congestion control, as programs name it.
pub(crate) const fn congestion(settings: &Settings) -> Congestion {
    match settings.congestion_control {
        CongestionControl::NewReno => Congestion::Reno,
        CongestionControl::Cubic => Congestion::Cubic,
    }
}
