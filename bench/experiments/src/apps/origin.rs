//! The server behind a proxy or a cache: `uncopy-files`, plain, whose sendfile is cheap enough not to be the limit.

use std::net::SocketAddr;

use super::environment::Environment;
use super::http::Document;
use crate::kit::{Result, Server, TemporaryDirectory};

const NAME: &str = "uncopy-files";

/// A running server of documents behind the measured one.
#[derive(Debug)]
pub struct Origin {
    /// Address at which the server listens.
    pub address: SocketAddr,
    // Fields drop in order: the server ends before the directory that it serves is removed.
    _server: Server,
    _root: TemporaryDirectory,
}

impl Origin {
    /// Starts a server of `documents`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server is not found or does not listen.
    pub fn start(environment: &Environment<'_>, documents: &[Document]) -> Result<Self> {
        let program = environment.own_program(NAME)?;
        let root = TemporaryDirectory::make()?;
        documents.iter().try_for_each(|document| document.write(root.path()))?;
        let (server, address) = environment.start_helper(&program, |address, _| {
            Ok(vec![format!("--listen={address}").into(), "--way=sendfile".into(), root.path().into()])
        })?;
        Ok(Self { address, _server: server, _root: root })
    }
}
