//! The server behind a proxy or a cache: `uncopy-files`, plain, which sends by sendfile and is cheap enough not to be
//! the limit.

use std::net::SocketAddr;

use super::http::Document;
use super::stage::Stage;
use crate::kit::{Result, Server, TemporaryDirectory};

/// Name of the program.
const NAME: &str = "uncopy-files";

/// An origin that listens.
#[derive(Debug)]
pub struct Origin {
    /// Where it listens.
    pub address: SocketAddr,
    // Dropped in this order: the server ends before what it serves.
    _server: Server,
    _root: TemporaryDirectory,
}

impl Origin {
    /// Starts one that has `documents`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when there is none to be found or it does not listen.
    pub fn start(stage: &Stage<'_>, documents: &[Document]) -> Result<Self> {
        let program = stage.own_program(NAME)?;
        let root = TemporaryDirectory::make()?;
        documents.iter().try_for_each(|document| document.write(root.path()))?;
        let (server, address) = stage.helper(&program, |address, _| {
            Ok(vec![format!("--listen={address}").into(), "--way=sendfile".into(), root.path().into()])
        })?;
        Ok(Self { address, _server: server, _root: root })
    }
}
