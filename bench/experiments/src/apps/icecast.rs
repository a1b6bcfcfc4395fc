//! Icecast: a file to many listeners, and the configuration of all cases with Icecast.

use uncopy_testbed::Package;
use uncopy_testbed::nobody::SETPRIV;
use uncopy_testbed::servers::{Icecast, Service};

use super::environment::{Environment, Unprivileged};
use super::http::{Document, Requests};
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::kit::{Result, RunningServer, format_size};

/// Configuration of Icecast in all cases.
pub const CONFIGURATION: Icecast<'_> = Icecast {
    clients: 20_000,
    queue_bytes: 4 << 20,
    admin_root: Icecast::ROOT,
    log_level: 1,
    changes_owner: false,
};
/// Debian's package of Icecast.
pub const ICECAST: Package = Icecast::PROGRAM;
/// Packages of each case: Icecast does not run as root.
pub const PACKAGES: &[Package] = &[ICECAST, SETPRIV];
/// Lengths of the audio files of zIO's Table 3 and Figure 14, bytes.
const FILE_BYTES: usize = 1_100_000;
const SHORT_FILE_BYTES: usize = 512 << 10;
/// One file, sent to many listeners.
pub const FILE: Case = Case {
    name: "icecast-file",
    description: "Icecast with its single file-serving thread, files of 1.1 MB and 512 KiB to 1 to 64 \
                  listeners, which fetch the file repeatedly, over a new connection each time",
    paper: "zIO section 5.3, Table 3: a file of 1.1 MB in chunks of 64 KB, 1.25 times plain with a \
            kernel-bypass stack; Figure 14: 512 KB, in an Icecast modified to have several threads",
    packages: PACKAGES,
    points: file_points,
    remark: "the packaged Icecast reads files in chunks of 4,096 bytes, fixed at compile time (BUFSIZE in \
             fserve.c): they are smaller than what uncopy elides. To measure an icecast2 built with larger \
             chunks, put it first on PATH",
    scheme: Scheme::Slices,
};

fn file_points(effort: Effort) -> Vec<Point> {
    let full = [(FILE_BYTES, 1), (SHORT_FILE_BYTES, 8), (FILE_BYTES, 64), (FILE_BYTES, 8)];
    effort.points(&[(FILE_BYTES, 8)], &full, |(size_bytes, listeners)| {
        let work = Files { documents: Document::random_set(1, size_bytes), listeners };
        let title = format!("icecast file of {}, {listeners} listeners", format_size(size_bytes as u64));
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        Point::sized(title, size_bytes, work).with_parameter("listeners", listeners as f64)
    })
}

#[derive(Debug)]
struct Files {
    documents: Vec<Document>,
    listeners: usize,
}

impl AppServer for Files {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let user = Unprivileged::new(environment)?;
        let (server, address) =
            user.start_server(ICECAST.program, Icecast::ALONE, |address, directory| {
                let arguments = CONFIGURATION.arguments(address, directory)?;
                self.documents
                    .iter()
                    .try_for_each(|document| document.write(&directory.join(Icecast::ROOT)))?;
                Ok(arguments)
            })?;
        let requests = Requests {
            name: ICECAST.program,
            server: address,
            documents: &self.documents,
            keep_alive: false,
        };
        Ok(Box::new(user.wrap(LoadedServer::with_requests(environment, server, requests, self.listeners)?)))
    }
}
