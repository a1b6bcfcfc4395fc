//! Python programs that forward bytes: the web server of the standard library, and a proxy with asyncio streams.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

use uncopy_testbed::servers::{HttpServer, PYTHON, Service};

use super::environment::Environment;
use super::http::{Document, Requests};
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::clients::pipe::{Backend, Echoes};
use crate::kit::network::client_address;
use crate::kit::{Result, RunningServer, While, format_size};

const PROXY_SCRIPT: &str = include_str!("asyncio_proxy.py");
/// Connections with a request in flight, and the number of different files.
const CONNECTIONS: u32 = 4;
const FILES: usize = 8;

/// `python3 -m http.server`.
pub const SERVER: Case = Case {
    name: "python-http",
    description: "python3 -m http.server, files of 64 KiB and 1 MiB, 4 requests in flight, one connection per \
                  request",
    paper: "not in the papers",
    packages: &[PYTHON],
    points: server_points,
    remark: "http.server reads and sends 64 KiB at a time",
    scheme: Scheme::Slices,
};

/// Messages forwarded by the asyncio proxy.
pub const PROXY: Case = Case {
    name: "python-proxy",
    description: "a proxy with asyncio streams, messages of 64 KiB and 1 MiB to a server behind it and back, \
                  4 connections",
    paper: "not in the papers",
    packages: &[PYTHON],
    points: proxy_points,
    remark: "",
    scheme: Scheme::Slices,
};

fn points<W: AppServer + 'static>(effort: Effort, name: &str, work: impl Fn(usize) -> W) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        Point::sized(format!("{name} {}", format_size(size_bytes as u64)), size_bytes, work(size_bytes))
    })
}

fn server_points(effort: Effort) -> Vec<Point> {
    points(effort, "python http.server", |size_bytes| Files {
        documents: Document::random_set(FILES, size_bytes),
    })
}

fn proxy_points(effort: Effort) -> Vec<Point> {
    points(effort, "python asyncio proxy", |size_bytes| Proxy { size_bytes })
}

#[derive(Debug)]
struct Files {
    documents: Vec<Document>,
}

impl AppServer for Files {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let (server, address) = environment.start_server(PYTHON.program, |address, directory| {
            let root = directory.join("files");
            std::fs::create_dir(&root).doing("making a directory to serve")?;
            self.documents.iter().try_for_each(|document| document.write(&root))?;
            HttpServer.arguments(address, &root)
        })?;
        let requests =
            Requests { name: "http.server", server: address, documents: &self.documents, keep_alive: false };
        Ok(Box::new(LoadedServer::with_requests(environment, server, requests, CONNECTIONS as usize)?))
    }
}

#[derive(Debug)]
struct Proxy {
    size_bytes: usize,
}

fn arguments(address: SocketAddr, behind: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
    let file = directory.join("asyncio_proxy.py");
    std::fs::write(&file, PROXY_SCRIPT).doing("writing the proxy")?;
    let pair = |address: SocketAddr| [address.ip().to_string().into(), address.port().to_string().into()];
    Ok([file.into()].into_iter().chain(pair(address)).chain(pair(behind)).collect())
}

impl AppServer for Proxy {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let backend =
            Backend::start(client_address().into(), self.size_bytes, environment.client_processors())?;
        let (server, address) = environment.start_server(PYTHON.program, |address, directory| {
            arguments(address, backend.address(), directory)
        })?;
        let size_bytes = self.size_bytes;
        let open = move |number| Echoes::open(address, size_bytes, u64::from(number));
        Ok(Box::new(
            LoadedServer::with_clients(environment, server, CONNECTIONS, open)?.with_backends(backend),
        ))
    }
}
