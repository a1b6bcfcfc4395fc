//! Varnish with its objects in malloc storage, as in ZCopy, section 4.2.

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Service, Varnish};

use super::environment::Environment;
use super::http::Document;
use super::loaded_server::LoadedServer;
use super::origin::Origin;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::kit::{Result, RunningServer, format_size};

const VARNISH: Package = Varnish::PROGRAM;
/// Connections with a request in flight.
const CONNECTIONS: usize = 8;

/// One object of 1 to 64 KiB.
pub const CASE: Case = Case {
    name: "varnish",
    description: "Varnish, malloc storage, one cached object of 1 to 64 KiB, 8 connections kept alive",
    paper: "ZCopy section 4.2, Figure 10: 1 to 8 KiB, loaded by ab, with 3 lines of Varnish changed; slightly \
            slower than plain at 1 KiB, 7.8 % faster at 6 KiB, limited by the network at 8 KiB",
    packages: &[VARNISH],
    points,
    remark: "Varnish sends an object from its storage by one writev, so the program makes no copy",
    scheme: Scheme::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    let full = [1024, 2048, 4096, 6144, 8192, 16_384, 65_536];
    effort.points(&[8192, 65_536], &full, |size_bytes| {
        let work = Cache { documents: Document::random_set(1, size_bytes) };
        Point::sized(format!("varnish {}", format_size(size_bytes as u64)), size_bytes, work)
    })
}

#[derive(Debug)]
struct Cache {
    documents: Vec<Document>,
}

impl AppServer for Cache {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let origin = Origin::start(environment, &self.documents)?;
        let varnish = Varnish {
            backend: origin.address,
            on_request: "return (hash);",
            on_answer: "set beresp.do_stream = false;",
            parameters: &["thread_pools=1", "thread_pool_min=10", "thread_pool_max=50", "vsl_space=8M"],
        };
        let (server, address) = environment
            .start_server(VARNISH.program, |address, directory| varnish.arguments(address, directory))?;
        let loaded =
            LoadedServer::new(environment, VARNISH.program, server, address, &self.documents, CONNECTIONS)?;
        Ok(Box::new(loaded.with_backends(origin)))
    }
}
