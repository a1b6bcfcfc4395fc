//! HAProxy in front of `uncopy-files`.

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Haproxy, Service};

use super::environment::Stage;
use super::http::Document;
use super::loaded_server::Serving;
use super::origin::Origin;
use super::{By, Case, Effort, Point, Work};
use crate::kit::{Result, Running, size};

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
    about: "HAProxy, one thread, mode http, in front of uncopy-files, bodies of 64 KiB and 1 MiB, buffers of 16 and \
            64 KiB, 8 connections",
    paper: "not in the papers",
    needs: &[HAPROXY],
    points,
    remark: "HAProxy hands most bodies from the buffer that they were received in to the one that is sent without copying \
             them (uncopy-bench apps haproxy --profile DIR shows it), so there is next to nothing to elide",
    by: By::Slices,
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
        let work = Proxy { documents: Document::several(DOCUMENTS, size_bytes), buffer_bytes };
        let title = format!("haproxy {}, buffers of {}", size(size_bytes as u64), size(buffer_bytes as u64));
        #[expect(clippy::cast_precision_loss, reason = "sizes of buffers")]
        Point::sized(title, size_bytes, work).with("buffer_bytes", buffer_bytes as f64)
    })
}

#[derive(Debug)]
struct Proxy {
    documents: Vec<Document>,
    buffer_bytes: usize,
}

impl Work for Proxy {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let origin = Origin::start(stage, &self.documents)?;
        let proxy = format!("  http-reuse always\n  server origin {}\n", origin.address);
        let haproxy = Haproxy {
            threads: 1,
            buffer_bytes: self.buffer_bytes,
            global: "  maxconn 200\n",
            proxy: &proxy,
            sections: "",
        };
        let (server, address) =
            stage.server(HAPROXY.program, |address, directory| haproxy.arguments(address, directory))?;
        let serving = Serving::new(stage, HAPROXY.program, server, address, &self.documents, CONNECTIONS)?;
        Ok(Box::new(serving.before(origin).ended_by(Haproxy::STOP)))
    }
}
