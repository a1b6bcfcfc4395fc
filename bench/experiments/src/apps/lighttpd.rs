//! lighttpd: static files, read and written or sent by the kernel.

use rustix::process::Signal;
use uncopy_testbed::Package;

use super::environment::Environment;
use super::http::Document;
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Point, Scheme};
use crate::kit::{Result, RunningServer, While};

const LIGHTTPD: Package = Package::new("lighttpd", "lighttpd", &["-v"]);
/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different files, and their length.
const FILES: usize = 8;
const FILE_BYTES: usize = 1 << 20;

/// Static files of 1 MiB.
pub const CASE: Case = Case {
    name: "lighttpd",
    description: "lighttpd, static files of 1 MiB, server.network-backend sendfile and write, 8 connections",
    paper: "not in the papers",
    packages: &[LIGHTTPD],
    points: |effort| {
        effort.points(&["write"], &["sendfile", "write"], |backend| {
            let work = Files { documents: Document::random_set(FILES, FILE_BYTES), backend };
            Point::sized(format!("lighttpd 1 MiB, {backend}"), FILE_BYTES, work)
        })
    },
    remark: "with write, lighttpd reads and writes 16 KiB at a time through one buffer",
    scheme: Scheme::Slices,
};

#[derive(Debug)]
struct Files {
    documents: Vec<Document>,
    backend: &'static str,
}

impl AppServer for Files {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let (server, address) = environment.start_server(LIGHTTPD.program, |address, directory| {
            self.documents.iter().try_for_each(|document| document.write(directory))?;
            let configuration = format!(
                "server.bind = \"{}\"\nserver.port = {}\nserver.document-root = \"{}\"\n\
                 server.network-backend = \"{}\"\nserver.max-keep-alive-requests = 65535\n",
                address.ip(),
                address.port(),
                directory.display(),
                self.backend
            );
            let file = directory.join("lighttpd.conf");
            std::fs::write(&file, configuration).doing("writing lighttpd.conf")?;
            Ok(vec!["-D".into(), "-f".into(), file.into()])
        })?;
        let loaded =
            LoadedServer::new(environment, LIGHTTPD.program, server, address, &self.documents, CONNECTIONS)?;
        // At SIGTERM, lighttpd ends with status 1 if it has not noticed yet that its connections are closed.
        Ok(Box::new(loaded.with_stop_signal(Signal::INT)))
    }
}
