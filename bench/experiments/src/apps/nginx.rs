//! nginx: static files with and without sendfile, and as a proxy.

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Nginx, Service};

use super::environment::Environment;
use super::http::Document;
use super::loaded_server::LoadedServer;
use super::origin::Origin;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::kit::{Result, RunningServer, format_size};

const NGINX: Package = Nginx::PROGRAM;
/// Directive by which no connection ends during a measurement.
const KEEP: &str = "keepalive_requests 1000000000;\n";
/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different files of one length.
const FILES: usize = 8;

/// Files of several lengths, read and sent by nginx or sent by the kernel.
pub const STATIC: Case = Case {
    name: "nginx-static",
    description: "nginx, one process, static files of 1 KiB, 64 KiB and 1 MiB, sendfile on and off, 8 connections",
    paper: "not in the papers with nginx; zIO section 5.3.1 compares read, mmap and sendfile in Icecast: \
            read+sendfile up to 7 % worse than zIO with a kernel-bypass stack, mmap+sendfile up to 30 %",
    packages: &[NGINX],
    points: static_points,
    remark: "with sendfile on, no body passes through the program, so there is nothing to elide. With \
             sendfile off, nginx reads up to 64 KiB at a time (output_buffers 2 64k; the default is 32k). \
             tcp_nopush is off, as by default: with it, the end of a response may wait 40 ms for the client's \
             acknowledgement, depending on where the file's pages lie in memory",
    scheme: Scheme::Slices,
};

fn static_points(effort: Effort) -> Vec<Point> {
    let quick = [(65_536, true), (65_536, false)];
    let full = [(1024, true), (1024, false), quick[0], quick[1], (1 << 20, true), (1 << 20, false)];
    effort.points(&quick, &full, |(size_bytes, sendfile)| {
        let state = if sendfile { "sendfile on" } else { "sendfile off" };
        let work = Static { documents: Document::random_set(FILES, size_bytes), sendfile };
        Point::sized(format!("nginx {}, {state}", format_size(size_bytes as u64)), size_bytes, work)
            .with_parameter("sendfile", if sendfile { 1.0 } else { 0.0 })
    })
}

#[derive(Debug)]
struct Static {
    documents: Vec<Document>,
    sendfile: bool,
}

impl AppServer for Static {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let state = if self.sendfile { "on" } else { "off" };
        let (server, address) = environment.start_server(NGINX.program, |address, directory| {
            self.documents.iter().try_for_each(|document| document.write(directory))?;
            let root = Nginx::quoted(directory)?;
            let location =
                format!("location / {{\nroot {root};\nsendfile {state};\noutput_buffers 2 64k;\n}}\n");
            Nginx { http: KEEP, server: &location, ..Nginx::default() }.arguments(address, directory)
        })?;
        let loaded =
            LoadedServer::new(environment, NGINX.program, server, address, &self.documents, CONNECTIONS)?;
        Ok(Box::new(loaded.with_stop_signal(Nginx::STOP)))
    }
}

/// A reverse proxy that gathers each answer in its buffers before it sends it.
pub const PROXIED: Case = Case {
    name: "nginx-proxied",
    description: "nginx, one process, as a proxy for uncopy-files, proxy_buffering on, bodies of 64 KiB and 1 \
                  MiB, 8 connections",
    paper: "not in the papers",
    packages: &[NGINX],
    points: proxied_points,
    remark: "buffers of 64 KiB (proxy_buffers 32 64k; the default is 8 of one page), so that a body stays in \
             memory. nginx allocates and frees them for each request, and plain malloc returns them to the \
             kernel; heap only gains because the block heap keeps their pages",
    scheme: Scheme::Slices,
};

fn proxied_points(effort: Effort) -> Vec<Point> {
    effort.points(&[1 << 20], &[65_536, 1 << 20], |size_bytes| {
        let work = Proxied { documents: Document::random_set(FILES, size_bytes) };
        Point::sized(format!("nginx proxied {}", format_size(size_bytes as u64)), size_bytes, work)
    })
}

/// A reverse proxy whose origin is under the same side as nginx, with plain clients.
pub const OUTSIDE_CLIENTS: Case = Case {
    name: "nginx-outside",
    description: "nginx, one process, as a proxy for uncopy-files, both under the same side, clients plain, \
                  bodies of 64 KiB and 1 MiB",
    points: |effort| {
        let outside = |point: Point| Point { title: format!("{}, clients outside", point.title), ..point };
        proxied_points(effort).into_iter().map(outside).collect()
    },
    ..PROXIED
};

#[derive(Debug)]
struct Proxied {
    documents: Vec<Document>,
}

impl AppServer for Proxied {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let origin = Origin::start(environment, &self.documents)?;
        let http = format!("{KEEP}upstream origin {{ server {}; keepalive 16; }}\n", origin.address);
        let location = "location / {\nproxy_pass http://origin;\nproxy_http_version 1.1;\nproxy_set_header Connection \"\";\n\
                        proxy_buffering on;\nproxy_buffer_size 64k;\nproxy_buffers 32 64k;\n\
                        proxy_busy_buffers_size 256k;\nproxy_max_temp_file_size 0;\n}\n";
        let nginx = Nginx { http: &http, server: location, ..Nginx::default() };
        let (server, address) = environment
            .start_server(NGINX.program, |address, directory| nginx.arguments(address, directory))?;
        let loaded =
            LoadedServer::new(environment, NGINX.program, server, address, &self.documents, CONNECTIONS)?;
        Ok(Box::new(loaded.with_backends(origin).with_stop_signal(Nginx::STOP)))
    }
}
