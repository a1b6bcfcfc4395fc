//! PostgreSQL: large rows by COPY, and large objects, as a store of documents (zIO section 5.4).

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use uncopy_testbed::Package;
use uncopy_testbed::clients::Place;
use uncopy_testbed::nobody::SETPRIV;
use uncopy_testbed::servers::{Postgresql, Service};

use super::environment::{Environment, Unprivileged};
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::clients::postgresql::{self, Operation, Values};
use crate::kit::{Result, RunningServer, While, format_size};

/// The server, the program that makes a database, and setpriv, because the server refuses root.
const PACKAGES: &[Package] = &[Postgresql::PROGRAM, Postgresql::INSTALL, SETPRIV];
const USER: &str = Postgresql::USER;
const CONNECTIONS: u32 = 4;
const PAPER: &str = "zIO section 5.4, MongoDB, 1 MB values, load phase of YCSB: 191 requests/s with zIO and 194 without, \
                     because MongoDB reads every value for its checksum; 222 against 209 without checksums";

/// Rows in and out by COPY.
pub const COPY: Case = Case {
    name: "postgresql-copy",
    description: "PostgreSQL, rows of 64 KiB and 1 MiB stored and read by binary COPY, not compressed, 4 \
                  connections; an operation stores a row and reads it back",
    paper: PAPER,
    packages: PACKAGES,
    points: |effort| points(effort, "postgresql COPY", Operation::Copy),
    remark: REMARK,
    scheme: Scheme::Slices,
};

/// Large objects, written and read by function calls.
pub const OBJECTS: Case = Case {
    name: "postgresql-object",
    description: "PostgreSQL, large objects of 64 KiB and 1 MiB written and read by lowrite and loread, 4 connections",
    paper: PAPER,
    packages: PACKAGES,
    points: |effort| points(effort, "postgresql large object", Operation::LargeObject),
    remark: REMARK,
    scheme: Scheme::Slices,
};

/// COPY over a UNIX socket, for programs on one host.
pub const LOCAL: Case = Case {
    name: "postgresql-unix",
    description: "PostgreSQL over a UNIX socket, rows of 64 KiB and 1 MiB stored and read by binary COPY, 4 \
                  connections",
    points: |effort| {
        effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
            let work = Documents { operation: Operation::Copy, size_bytes, by_unix: true };
            let title = format!("postgresql COPY {} by UNIX socket", format_size(size_bytes as u64));
            Point::sized(title, size_bytes, work)
        })
    },
    ..COPY
};

const REMARK: &str = "the bytes of a connection pass through buffers of 8 KiB (PqRecvBuffer, PqSendBuffer) \
                      and pages of 8 KiB, smaller than what uncopy elides by default; only copies between \
                      larger buffers can be elided";

fn points(effort: Effort, name: &str, operation: Operation) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        let work = Documents { operation, size_bytes, by_unix: false };
        Point::sized(format!("{name} {}", format_size(size_bytes as u64)), size_bytes, work)
    })
}

#[derive(Debug)]
struct Documents {
    operation: Operation,
    size_bytes: usize,
    by_unix: bool,
}

impl AppServer for Documents {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let user = Unprivileged::new(environment)?;
        let initialise = |directory: &Path| {
            user.run(Postgresql::INSTALL.program, &Postgresql::install_arguments(directory), directory)?;
            // initdb only admits clients of this machine; the clients may come over a network link.
            let rules = OpenOptions::new().append(true).open(directory.join("data/pg_hba.conf"));
            rules
                .and_then(|mut rules| rules.write_all(b"host all all all trust\n"))
                .doing("writing pg_hba.conf")
        };
        let service = Postgresql { shared_mib: 64, by_unix: self.by_unix };
        let (server, address) =
            user.start_server(Postgresql::PROGRAM.program, Duration::ZERO, |address, directory| {
                initialise(directory)?;
                service.arguments(address, directory)
            })?;
        let server_place = if self.by_unix {
            Place::Unix(server.directory().join(format!(".s.PGSQL.{}", address.port())))
        } else {
            Place::Tcp(address)
        };
        // The server accepts connections before it can answer.
        postgresql::prepare(&server_place, USER)?;
        let open = move |number| Values::open(&server_place, USER, self.operation, self.size_bytes, number);
        let loaded = LoadedServer::with_clients(environment, server, CONNECTIONS, open)?
            .with_stop_signal(Postgresql::STOP);
        Ok(Box::new(user.wrap(loaded)))
    }
}
