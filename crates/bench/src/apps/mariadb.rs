//! MariaDB: blobs, as a store of documents that checksums what it stores (zIO section 5.4).

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::exchanging::Exchanging;
use super::programs::Need;
use super::stage::Stage;
use super::{By, Case, Effort, Point, Work};
use crate::clients::mariadb::{self, Values};
use crate::kit::processes::process;
use crate::kit::{Result, Running, size};

const MARIADB: Need = Need::new("mariadbd", "mariadb-server-core", &["--version"]);
const INSTALL: Need = Need::new("mariadb-install-db", "mariadb-server-core", &[]);
const CONNECTIONS: u32 = 4;
/// How long making a database may take.
const INSTALL_LIMIT: Duration = Duration::from_secs(60);
/// Length of the log that InnoDB makes at its start.
const LOG: &str = "--innodb-log-file-size=64M";

/// Blobs in and out.
pub const BLOBS: Case = Case {
    name: "mariadb-blob",
    about: "MariaDB, blobs of 64 KiB and 1 MiB stored by a prepared statement and read by a query, InnoDB, \
            4 connections; an operation is a blob stored and read back",
    paper: "zIO section 5.4, MongoDB, 1 MB values, load phase of YCSB: 191 requests/s with zIO and 194 without, \
            because MongoDB reads every value for its checksum; 222 against 209 without checksums",
    needs: &[MARIADB, INSTALL],
    points,
    remark: "InnoDB reads every page of 16 KiB for its checksum",
    by: By::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        Point::sized(format!("mariadb {}", size(size_bytes as u64)), size_bytes, Blobs { size_bytes })
    })
}

#[derive(Debug)]
struct Blobs {
    size_bytes: usize,
}

fn option(name: &str, path: &Path) -> OsString {
    let mut word = OsString::from(name);
    word.push(path);
    word
}

/// Makes an empty database.
fn install(program: &Path, directory: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command
        .args([
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--user=root",
            LOG,
        ])
        .args([option("--datadir=", &directory.join("data")), option("--tmpdir=", directory)]);
    process::run(command, INSTALL.program, INSTALL_LIMIT)?.success(INSTALL.program).map(drop)
}

fn arguments(address: SocketAddr, directory: &Path) -> Vec<OsString> {
    let mut words = [
        "--no-defaults",
        "--user=root",
        "--max-allowed-packet=128M",
        "--skip-name-resolve",
        "--skip-grant-tables",
        LOG,
    ]
    .map(OsString::from)
    .to_vec();
    words.extend(["--innodb-buffer-pool-size=128M", "--innodb-flush-log-at-trx-commit=0"].map(Into::into));
    words.extend([
        format!("--bind-address={}", address.ip()).into(),
        format!("--port={}", address.port()).into(),
        option("--datadir=", &directory.join("data")),
        option("--tmpdir=", directory),
        option("--socket=", &directory.join("socket")),
        option("--pid-file=", &directory.join("pid")),
    ]);
    words
}

impl Work for Blobs {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let installer = stage.program(INSTALL.program)?;
        let (server, address) = stage.server(MARIADB.program, |address, directory| {
            install(installer, directory)?;
            Ok(arguments(address, directory))
        })?;
        mariadb::prepare(address)?;
        let open = move |number| Values::open(address, self.size_bytes, u64::from(number));
        Ok(Box::new(Exchanging::new(stage, server, CONNECTIONS, open)?))
    }
}
