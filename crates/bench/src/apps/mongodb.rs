//! MongoDB, where there is one: the very case of zIO section 5.4.

use std::ffi::OsString;

use super::exchanging::Exchanging;
use super::programs::Need;
use super::stage::Stage;
use super::{By, Case, Effort, Point, Work};
use crate::clients::mongodb::Values;
use crate::kit::{Result, Running, While};

/// No package of Debian's brings it; MongoDB's own has this name.
const MONGOD: Need = Need::new("mongod", "", &["--version"]);
const CONNECTIONS: u32 = 4;
const SIZE_BYTES: usize = 1 << 20;

/// Documents of 1 MiB.
pub const DOCUMENTS: Case = Case {
    name: "mongodb",
    about: "MongoDB, documents of 1 MiB inserted, found and deleted, 4 connections (runs where a mongod is on PATH; \
            Debian packages none)",
    paper: "zIO section 5.4, 1 MB values, load phase of YCSB: 191 requests/s with zIO and 194 without, because MongoDB \
            reads every value for its checksum; 222 against 209 without checksums",
    needs: &[MONGOD],
    points,
    remark: "its client was tried against the protocol's text only: there was no mongod to try it with",
    by: By::Slices,
};

fn points(_: Effort) -> Vec<Point> {
    vec![Point::new("mongodb 1 MiB", SIZE_BYTES as u64, Documents)]
}

#[derive(Debug)]
struct Documents;

impl Work for Documents {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) = stage.server(MONGOD.program, |address, directory| {
            let data = directory.join("data");
            std::fs::create_dir(&data).doing("making a directory for MongoDB")?;
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            let mut words =
                ["--nounixsocket", "--bind_ip", &ip, "--port", &port].map(OsString::from).to_vec();
            words.extend(["--dbpath".into(), data.into(), "--logpath".into(), directory.join("log").into()]);
            Ok(words)
        })?;
        let open = move |number| Values::open(address, SIZE_BYTES, u64::from(number));
        Ok(Box::new(Exchanging::new(stage, server, CONNECTIONS, open)?))
    }
}
