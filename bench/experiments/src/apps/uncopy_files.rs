//! `uncopy-files`, for programs on one host: a server that itself sends by reference.

use super::environment::Environment;
use super::http::Document;
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Point, Scheme};
use crate::kit::{Result, RunningServer, format_size};

/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different files of one length.
const DOCUMENTS: usize = 8;
const FILES_NAME: &str = "uncopy-files";

/// Files of `uncopy-files`, read by clients on the same host.
pub const FILES: Case = Case {
    name: FILES_NAME,
    description: "uncopy-files, files of 64 KiB and 1 MiB by sendfile, 8 connections",
    paper: "not in the papers",
    packages: &[],
    points: |effort| {
        effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
            let work = Files { documents: Document::random_set(DOCUMENTS, size_bytes) };
            Point::sized(format!("uncopy-files {}", format_size(size_bytes as u64)), size_bytes, work)
        })
    },
    remark: "",
    scheme: Scheme::Slices,
};

#[derive(Debug)]
struct Files {
    documents: Vec<Document>,
}

impl AppServer for Files {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let (server, address) = environment.start_own_server(FILES_NAME, |address, directory| {
            self.documents.iter().try_for_each(|document| document.write(directory))?;
            Ok(vec![format!("--listen={address}").into(), "--way=sendfile".into(), directory.into()])
        })?;
        Ok(Box::new(LoadedServer::new(
            environment,
            FILES_NAME,
            server,
            address,
            &self.documents,
            CONNECTIONS,
        )?))
    }
}
