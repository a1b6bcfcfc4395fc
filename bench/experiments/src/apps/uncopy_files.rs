//! `uncopy-files`, for programs on one host: a server that itself sends by reference.

use super::environment::Stage;
use super::http::Document;
use super::loaded_server::Serving;
use super::{By, Case, Point, Work};
use crate::kit::{Result, Running, size};

/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different files of one length.
const DOCUMENTS: usize = 8;
const FILES_NAME: &str = "uncopy-files";

/// Files of `uncopy-files`, read by clients on the same host.
pub const FILES: Case = Case {
    name: FILES_NAME,
    about: "uncopy-files, files of 64 KiB and 1 MiB by sendfile, 8 connections",
    paper: "not in the papers",
    needs: &[],
    points: |effort| {
        effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
            let work = Files { documents: Document::several(DOCUMENTS, size_bytes) };
            Point::sized(format!("uncopy-files {}", size(size_bytes as u64)), size_bytes, work)
        })
    },
    remark: "",
    by: By::Slices,
};

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
