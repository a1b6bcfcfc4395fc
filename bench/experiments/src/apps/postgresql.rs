//! PostgreSQL: large rows by COPY, and large objects, as a store of documents (zIO section 5.4).

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use uncopy_testbed::Package;
use uncopy_testbed::clients::Place;
use uncopy_testbed::nobody::SETPRIV;
use uncopy_testbed::servers::{Postgresql, Service};

use super::environment::{Stage, Unprivileged};
use super::loaded_server::Serving;
use super::{By, Case, Effort, Point, Work};
use crate::clients::postgresql::{self, Operation, Values};
use crate::kit::{Result, Running, While, size};

/// The server, the program that makes a database, and setpriv, because the server refuses root.
const NEEDS: &[Package] = &[Postgresql::PROGRAM, Postgresql::INSTALL, SETPRIV];
const USER: &str = Postgresql::USER;
const CONNECTIONS: u32 = 4;
const PAPER: &str = "zIO section 5.4, MongoDB, 1 MB values, load phase of YCSB: 191 requests/s with zIO and 194 without, \
                     because MongoDB reads every value for its checksum; 222 against 209 without checksums";

/// Rows in and out by COPY.
pub const COPY: Case = Case {
    name: "postgresql-copy",
    about: "PostgreSQL, rows of 64 KiB and 1 MiB in and out by binary COPY, not compressed, 4 connections; an operation \
            is a row stored and read back",
    paper: PAPER,
    needs: NEEDS,
    points: |effort| points(effort, "postgresql COPY", Operation::Copy),
    remark: REMARK,
    by: By::Slices,
};

/// Large objects, written and read by function calls.
pub const OBJECTS: Case = Case {
    name: "postgresql-object",
    about: "PostgreSQL, large objects of 64 KiB and 1 MiB written and read by lowrite and loread, 4 connections",
    paper: PAPER,
    needs: NEEDS,
    points: |effort| points(effort, "postgresql large object", Operation::LargeObject),
    remark: REMARK,
    by: By::Slices,
};

/// COPY over a UNIX socket, for programs on one host.
pub const NEAR: Case = Case {
    name: "postgresql-unix",
    about: "PostgreSQL by a UNIX socket, rows of 64 KiB and 1 MiB in and out by binary COPY, 4 connections",
    points: |effort| {
        effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
            let work = Documents { operation: Operation::Copy, size_bytes, by_unix: true };
            let title = format!("postgresql COPY {} by UNIX socket", size(size_bytes as u64));
            Point::sized(title, size_bytes, work)
        })
    },
    ..COPY
};

const REMARK: &str = "a connection's bytes pass through buffers of 8 KiB (PqRecvBuffer, PqSendBuffer) and pages of 8 KiB, \
                      below what is elided by default; only copies between larger buffers can be";

fn points(effort: Effort, name: &str, operation: Operation) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        let work = Documents { operation, size_bytes, by_unix: false };
        Point::sized(format!("{name} {}", size(size_bytes as u64)), size_bytes, work)
    })
}

#[derive(Debug)]
struct Documents {
    operation: Operation,
    size_bytes: usize,
    by_unix: bool,
}

impl Work for Documents {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let user = Unprivileged::of(stage)?;
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
            user.server(Postgresql::PROGRAM.program, Duration::ZERO, |address, directory| {
                initialise(directory)?;
                service.arguments(address, directory)
            })?;
        let place = if self.by_unix {
            Place::Unix(server.directory().join(format!(".s.PGSQL.{}", address.port())))
        } else {
            Place::Tcp(address)
        };
        // The server accepts connections before it can answer.
        postgresql::prepare(&place, USER)?;
        let open = move |number| Values::open(&place, USER, self.operation, self.size_bytes, number);
        let serving = Serving::exchanging(stage, server, CONNECTIONS, open)?.ended_by(Postgresql::STOP);
        Ok(Box::new(user.running(serving)))
    }
}
