//! PostgreSQL: large rows by COPY, and large objects, as a store of documents (zIO section 5.4).

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use super::exchanging::Exchanging;
use super::programs::Need;
use super::stage::{Stage, Unprivileged};
use super::{By, Case, Effort, Point, Work};
use crate::clients::Place;
use crate::clients::postgresql::{self, Operation, Values};
use crate::kit::{Result, Running, While, size};

/// Where Debian's packages have the programs of each version, the latest first.
const DIRECTORIES: &[&str] = &[
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/lib/postgresql/13/bin",
];

const fn need(program: &'static str, version: &'static [&'static str]) -> Need {
    Need { program, package: "postgresql", version, directories: DIRECTORIES }
}

/// The server, what makes a database, and what makes root another user: the server refuses root.
const NEEDS: &[Need] = &[need("postgres", &["--version"]), need("initdb", &[]), Unprivileged::NEED];
/// Who may do everything in the database.
const USER: &str = "tester";
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

/// Large objects.
pub const OBJECTS: Case = Case {
    name: "postgresql-object",
    about: "PostgreSQL, large objects of 64 KiB and 1 MiB written and read by lowrite and loread, 4 connections",
    paper: PAPER,
    needs: NEEDS,
    points: |effort| points(effort, "postgresql large object", Operation::LargeObject),
    remark: REMARK,
    by: By::Slices,
};

/// The same COPY over a UNIX socket, for programs on one host.
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

fn arguments(address: SocketAddr, directory: &Path, by_unix: bool) -> Vec<OsString> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut words: Vec<OsString> = vec!["-D".into(), directory.join("data").into()];
    // No socket among files where none is asked for: its path might be too long.
    let sockets = if by_unix { directory.as_os_str().to_owned() } else { OsString::new() };
    words.extend(["-k".into(), sockets, "-h".into(), ip.into(), "-p".into(), port.into()]);
    // Shared memory among its files, not in /dev/shm: an interrupt leaves nothing behind.
    let memory = "dynamic_shared_memory_type=mmap";
    for setting in ["fsync=off", "shared_buffers=64MB", "max_wal_size=256MB", "autovacuum=off", memory] {
        words.extend(["-c".into(), setting.into()]);
    }
    words
}

impl Work for Documents {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let user = Unprivileged::of(stage)?;
        let initialise = |directory: &Path| {
            let mut words =
                ["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust", "--no-instructions"]
                    .map(OsString::from)
                    .to_vec();
            words.extend([format!("--username={USER}").into(), "-D".into(), directory.join("data").into()]);
            user.run("initdb", &words, directory)?;
            // initdb lets in who comes from this machine only; the clients may come over a link.
            let rules = OpenOptions::new().append(true).open(directory.join("data/pg_hba.conf"));
            rules
                .and_then(|mut rules| rules.write_all(b"host all all all trust\n"))
                .doing("writing pg_hba.conf")
        };
        let (server, address) = user.server("postgres", |address, directory| {
            initialise(directory)?;
            Ok(arguments(address, directory, self.by_unix))
        })?;
        let place = if self.by_unix {
            Place::Unix(server.directory().join(format!(".s.PGSQL.{}", address.port())))
        } else {
            Place::Tcp(address)
        };
        // It listens before it answers.
        postgresql::prepare(&place, USER)?;
        let open = move |number| Values::open(&place, USER, self.operation, self.size_bytes, number);
        Ok(Box::new(user.running(Exchanging::new(stage, server, CONNECTIONS, open)?)))
    }
}
