//! Varnish with its objects in malloc storage, as in ZCopy, section 4.2.

use std::net::SocketAddr;
use std::path::Path;

use super::http::Document;
use super::origin::Origin;
use super::programs::Need;
use super::serving::Serving;
use super::stage::Stage;
use super::{By, Case, Effort, Point, Work};
use crate::kit::{Result, Running, While, size};

/// Varnish itself.
const VARNISH: Need = Need::new("varnishd", "varnish", &["-V"]);
/// Connections that have a request under way.
const CONNECTIONS: usize = 8;

/// One object, from 1 to 64 KiB.
pub const CASE: Case = Case {
    name: "varnish",
    about: "Varnish, malloc storage, one cached object of 1 to 64 KiB, 8 connections kept alive",
    paper: "ZCopy section 4.2, Figure 10: 1 to 8 KiB under ab, 3 lines changed in Varnish; slightly less than plain \
            at 1 KiB, 7.8 % more at 6 KiB, the network is the limit at 8 KiB",
    needs: &[VARNISH],
    points,
    remark: "an object leaves by one writev that refers to the storage: no copy is made inside the program",
    by: By::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    let full = [1024, 2048, 4096, 6144, 8192, 16_384, 65_536];
    effort.points(&[8192, 65_536], &full, |size_bytes| {
        let work = Cache { documents: Document::several(1, size_bytes) };
        Point::sized(format!("varnish {}", size(size_bytes as u64)), size_bytes, work)
    })
}

#[derive(Debug)]
struct Cache {
    documents: Vec<Document>,
}

impl Work for Cache {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let origin = Origin::start(stage, &self.documents)?;
        let (server, address) =
            stage.server(VARNISH.program, |address, directory| configure(address, directory, &origin))?;
        let serving = Serving::new(stage, VARNISH.program, server, address, &self.documents, CONNECTIONS)?;
        Ok(Box::new(serving.before(origin)))
    }
}

/// The arguments of a Varnish that keeps what `origin` has.
fn configure(address: SocketAddr, directory: &Path, origin: &Origin) -> Result<Vec<std::ffi::OsString>> {
    let configuration = format!(
        "vcl 4.1;\nbackend default {{ .host = \"{}\"; .port = \"{}\"; }}\n\
         sub vcl_recv {{ return (hash); }}\n\
         sub vcl_backend_response {{ set beresp.ttl = 1h; set beresp.do_stream = false; }}\n",
        origin.address.ip(),
        origin.address.port()
    );
    let file = directory.join("default.vcl");
    std::fs::write(&file, configuration).doing("writing default.vcl")?;
    let home = directory.join("varnish");
    let mut arguments: Vec<std::ffi::OsString> =
        ["-F", "-j", "none", "-T", "none", "-s", "malloc,256m", "-t", "3600", "-a"].map(Into::into).into();
    arguments.push(address.to_string().into());
    arguments.extend(["-f".into(), file.into(), "-n".into(), home.into()]);
    for parameter in ["thread_pools=1", "thread_pool_min=10", "thread_pool_max=50", "vsl_space=8M"] {
        arguments.extend(["-p".into(), parameter.into()]);
    }
    Ok(arguments)
}
