//! Squid as an accelerator that serves from memory.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use uncopy_testbed::Package;
use uncopy_testbed::nobody::SETPRIV;

use super::environment::{Environment, Unprivileged};
use super::http::Document;
use super::loaded_server::LoadedServer;
use super::origin::Origin;
use super::{AppServer, Case, Point, Scheme};
use crate::kit::{Result, RunningServer, While, format_size};

const SQUID: Package = Package::new("squid", "squid", &["-v"]);
/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different objects of one length.
const DOCUMENTS: usize = 8;

/// Objects that are in Squid's memory.
pub const CASE: Case = Case {
    name: "squid",
    description: "Squid, one process, as a reverse proxy for uncopy-files, objects of 64 KiB and 1 MiB in \
                  cache_mem, 8 connections",
    paper: "not in the papers",
    packages: &[SQUID, SETPRIV],
    points: |effort| {
        effort.points(&[1 << 20], &[65_536, 1 << 20], |size_bytes| {
            let work = Cache { documents: Document::random_set(DOCUMENTS, size_bytes) };
            Point::sized(format!("squid {}", format_size(size_bytes as u64)), size_bytes, work)
        })
    },
    remark: "Squid stores an object in pieces of 4,096 bytes and sends one at a time, which no setting \
             changes: they are smaller than what uncopy elides",
    scheme: Scheme::Slices,
};

#[derive(Debug)]
struct Cache {
    documents: Vec<Document>,
}

impl AppServer for Cache {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let origin = Origin::start(environment, &self.documents)?;
        let user = Unprivileged::new(environment)?;
        let (server, address) = user.start_server(SQUID.program, Duration::ZERO, |address, directory| {
            configure(address, directory, &origin)
        })?;
        let loaded =
            LoadedServer::new(environment, SQUID.program, server, address, &self.documents, CONNECTIONS)?;
        Ok(Box::new(user.wrap(loaded.with_backends(origin))))
    }
}

/// Writes the configuration of a Squid that caches all of `origin`, below `directory`; returns the arguments.
fn configure(address: SocketAddr, directory: &Path, origin: &Origin) -> Result<Vec<OsString>> {
    let configuration = format!(
        "http_port {address} accel defaultsite=localhost no-vhost\n\
         cache_peer {} parent {} 0 no-query no-digest originserver\n\
         cache_mem 256 MB\nmaximum_object_size_in_memory 8 MB\nmemory_cache_mode always\n\
         refresh_pattern . 1440 100% 1440 override-expire\nhttp_access allow all\n\
         shutdown_lifetime 0 seconds\naccess_log none\ncache_store_log none\ncache_log {home}/cache.log\n\
         pid_filename none\nnetdb_filename none\ncoredump_dir {home}\npinger_enable off\ndigest_generation off\n",
        origin.address.ip(),
        origin.address.port(),
        home = directory.display()
    );
    let file = directory.join("squid.conf");
    std::fs::write(&file, configuration).doing("writing squid.conf")?;
    Ok(vec!["-N".into(), "-f".into(), file.into()])
}
