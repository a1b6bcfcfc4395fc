//! HAProxy in front of `uncopy-files`.

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Haproxy, Service};

use super::environment::Environment;
use super::http::Document;
use super::loaded_server::LoadedServer;
use super::origin::Origin;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::kit::{Result, RunningServer, format_size};

const HAPROXY: Package = Haproxy::PROGRAM;
/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different bodies of one length.
const DOCUMENTS: usize = 8;
/// HAProxy's default buffer size, and a large one, bytes.
const BUFFER_BYTES: usize = 16_384;
const LARGE_BUFFER_BYTES: usize = 65_536;

/// Bodies of an origin, passed on by HAProxy.
pub const CASE: Case = Case {
    name: "haproxy",
    description: "HAProxy, one thread, mode http, in front of uncopy-files, bodies of 64 KiB and 1 MiB, buffers of 16 and \
            64 KiB, 8 connections",
    paper: "not in the papers",
    packages: &[HAPROXY],
    points,
    remark: "HAProxy passes most bodies from the receive buffer to the send buffer without copying them \
             (uncopy-bench apps haproxy --profile DIR shows it), so there is little to elide",
    scheme: Scheme::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    const LARGE: usize = 1 << 20;
    let quick = [(LARGE, LARGE_BUFFER_BYTES)];
    let full = [
        (65_536, BUFFER_BYTES),
        (65_536, LARGE_BUFFER_BYTES),
        (LARGE, BUFFER_BYTES),
        (LARGE, LARGE_BUFFER_BYTES),
    ];
    effort.points(&quick, &full, |(size_bytes, buffer_bytes)| {
        let work = Proxy { documents: Document::random_set(DOCUMENTS, size_bytes), buffer_bytes };
        let title = format!(
            "haproxy {}, buffers of {}",
            format_size(size_bytes as u64),
            format_size(buffer_bytes as u64)
        );
        #[expect(clippy::cast_precision_loss, reason = "sizes of buffers")]
        Point::sized(title, size_bytes, work).with_parameter("buffer_bytes", buffer_bytes as f64)
    })
}

#[derive(Debug)]
struct Proxy {
    documents: Vec<Document>,
    buffer_bytes: usize,
}

impl AppServer for Proxy {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let origin = Origin::start(environment, &self.documents)?;
        let proxy = format!("  http-reuse always\n  server origin {}\n", origin.address);
        let haproxy = Haproxy {
            threads: 1,
            buffer_bytes: self.buffer_bytes,
            global: "  maxconn 200\n",
            proxy: &proxy,
            sections: "",
        };
        let (server, address) = environment
            .start_server(HAPROXY.program, |address, directory| haproxy.arguments(address, directory))?;
        let loaded =
            LoadedServer::new(environment, HAPROXY.program, server, address, &self.documents, CONNECTIONS)?;
        Ok(Box::new(loaded.with_backends(origin).with_stop_signal(Haproxy::STOP)))
    }
}
