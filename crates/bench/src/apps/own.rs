//! Servers of ours, for programs on one host: they send by reference by themselves, their values and files lie in no
//! packaged program.

use super::http::Document;
use super::memcached::Caching;
use super::serving::Serving;
use super::stage::Stage;
use super::{By, Case, Effort, Point, Work};
use crate::clients::cache::{Clients, Content, Peer, Work as Exchanges};
use crate::kit::{Result, Running, size};
use crate::servers::cache;

/// Connections that have a request under way.
const CONNECTIONS: usize = 8;
/// Different values, or files, of one length.
const DOCUMENTS: usize = 8;
/// Name of the server of files.
const FILES_NAME: &str = "uncopy-files";

const fn of(name: &'static str, about: &'static str, points: fn(Effort) -> Vec<Point>) -> Case {
    Case { name, about, paper: "not in the papers", needs: &[], points, remark: "", by: By::Slices }
}

/// Values of the cache.
pub const CACHED: Case =
    of("uncopy-cached", "uncopy-cached, GET by TCP of 64 KiB and 512 KiB, 8 connections", |effort| {
        effort.points(&[512 << 10], &[64 << 10, 512 << 10], |size_bytes| {
            let work = Cached { content: Content::new(size_bytes, DOCUMENTS) };
            Point::sized(format!("uncopy-cached GET {}", size(size_bytes as u64)), size_bytes, work)
        })
    });

/// Files.
pub const FILES: Case =
    of("uncopy-files", "uncopy-files, files of 64 KiB and 1 MiB by sendfile, 8 connections", |effort| {
        effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
            let work = Files { documents: Document::several(DOCUMENTS, size_bytes) };
            Point::sized(format!("uncopy-files {}", size(size_bytes as u64)), size_bytes, work)
        })
    });

#[derive(Debug)]
struct Cached {
    content: Content,
}

impl Work for Cached {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) = stage.own_server(cache::NAME, |address, _| {
            Ok(vec![format!("--listen={}", address.ip()).into(), format!("--port={}", address.port()).into()])
        })?;
        self.content.store(address)?;
        let work = Exchanges {
            peer: Peer::Tcp(address),
            content: &self.content,
            operations_per_set: u64::MAX,
            connections: CONNECTIONS,
        };
        let clients = Clients::open(&work, 1, stage.client_processors())?;
        Ok(Box::new(Caching { clients, server }))
    }
}

#[derive(Debug)]
struct Files {
    documents: Vec<Document>,
}

impl Work for Files {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) = stage.own_server(FILES_NAME, |address, directory| {
            self.documents.iter().try_for_each(|document| document.write(directory))?;
            Ok(vec![format!("--listen={address}").into(), "--way=sendfile".into(), directory.into()])
        })?;
        Ok(Box::new(Serving::new(stage, FILES_NAME, server, address, &self.documents, CONNECTIONS)?))
    }
}
