//! MariaDB: blobs, as a store of documents that checksums what it stores (zIO section 5.4).

use std::process::Command;
use std::time::Duration;

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Mariadb, Service};

use super::environment::Environment;
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::clients::mariadb::{Values, prepare};
use crate::kit::processes::process;
use crate::kit::{Result, RunningServer, format_size};

const MARIADB: Package = Mariadb::PROGRAM;
const INSTALL: Package = Mariadb::INSTALL;
const CONNECTIONS: u32 = 4;
/// Time limit for making a database.
const INSTALL_LIMIT: Duration = Duration::from_secs(60);

/// Blobs stored and read back.
pub const BLOBS: Case = Case {
    name: "mariadb-blob",
    description: "MariaDB, blobs of 64 KiB and 1 MiB stored by a prepared statement and read by a query, \
                  InnoDB, 4 connections; an operation stores a blob and reads it back",
    paper: "zIO section 5.4, MongoDB, 1 MB values, load phase of YCSB: 191 requests/s with zIO and 194 without, \
            because MongoDB reads every value for its checksum; 222 against 209 without checksums",
    packages: &[MARIADB, INSTALL],
    points,
    remark: "InnoDB reads every page of 16 KiB for its checksum",
    scheme: Scheme::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        Point::sized(format!("mariadb {}", format_size(size_bytes as u64)), size_bytes, Blobs { size_bytes })
    })
}

#[derive(Debug)]
struct Blobs {
    size_bytes: usize,
}

impl AppServer for Blobs {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let options = ["--skip-name-resolve", "--skip-grant-tables", "--innodb-buffer-pool-size=128M"];
        let mariadb = Mariadb { options: &options };
        let installer = environment.program(INSTALL.program)?;
        let (server, address) = environment.start_server(MARIADB.program, |address, directory| {
            let mut install = Command::new(installer);
            install.args(Mariadb::install_arguments(directory));
            process::run(install, INSTALL.program, INSTALL_LIMIT)?.success(INSTALL.program)?;
            mariadb.arguments(address, directory)
        })?;
        prepare(address)?;
        let open = move |number| Values::open(address, self.size_bytes, u64::from(number));
        Ok(Box::new(LoadedServer::with_clients(environment, server, CONNECTIONS, open)?))
    }
}
