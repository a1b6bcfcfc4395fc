//! Icecast: a file to many listeners, and the configuration of every Icecast here.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::http::{Document, Requests};
use super::programs::Need;
use super::serving::Serving;
use super::stage::{Stage, Unprivileged};
use super::{By, Case, Effort, Point, Work};
use crate::kit::{Result, Running, While, size};

/// Icecast itself.
pub const ICECAST: Need = Need::new("icecast2", "icecast2", &["-v"]);
/// What its cases need: it refuses root.
pub const NEEDS: &[Need] = &[ICECAST, Unprivileged::NEED];
/// The audio file of zIO's Table 3, and that of its Figure 14, bytes.
const FILE_BYTES: usize = 1_100_000;
const SHORT_FILE_BYTES: usize = 512 << 10;
/// Where files are, in the server's directory.
const ROOT: &str = "web";
/// What Icecast keeps of a stream for listeners that are behind; one that is behind more is sent away.
pub const QUEUE_BYTES: usize = 4 << 20;
/// The password of sources, in the configuration and as the header field of user "source" has it.
const PASSWORD: &str = "loud";
/// `source:loud` in base64.
pub const AUTHORIZATION: &str = "c291cmNlOmxvdWQ=";

/// How long nobody connects to it after it began to listen: one that is still starting its threads can crash then
/// (`strdup` of nothing in its statistics' thread, in 4 of 600 starts of plain Icecast 2.4.4, and in none of 600 that
/// were left alone for half of this).
pub const ALONE: Duration = Duration::from_millis(100);

/// A file to many listeners.
pub const FILE: Case = Case {
    name: "icecast-file",
    about: "Icecast, its one file-serving thread, a file of 1.1 MB (and 512 KiB) to 1 to 64 listeners, each of which \
            fetches it again and again with a connection for each",
    paper: "zIO section 5.3, Table 3: a file of 1.1 MB in chunks of 64 KB, 1.25 times plain with a kernel-bypass stack; \
            Figure 14: 512 KB and several threads, in an Icecast changed to have them",
    needs: NEEDS,
    points: file_points,
    remark: "the packaged Icecast reads files in chunks of 4,096 bytes, which is fixed where it is compiled (BUFSIZE in \
             fserve.c), and no setting changes it: nothing is as large as what uncopy elides. An icecast2 built with \
             larger chunks is measured if it comes first on PATH",
    by: By::Slices,
};

fn file_points(effort: Effort) -> Vec<Point> {
    let full = [(FILE_BYTES, 1), (SHORT_FILE_BYTES, 8), (FILE_BYTES, 64), (FILE_BYTES, 8)];
    effort.points(&[(FILE_BYTES, 8)], &full, |(size_bytes, listeners)| {
        let work = Files { documents: Document::several(1, size_bytes), listeners };
        let title = format!("icecast file of {}, {listeners} listeners", size(size_bytes as u64));
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        Point::sized(title, size_bytes, work).with("listeners", listeners as f64)
    })
}

#[derive(Debug)]
struct Files {
    documents: Vec<Document>,
    listeners: usize,
}

impl Work for Files {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let user = Unprivileged::of(stage)?;
        let (server, address) = user.undisturbed_server(ICECAST.program, ALONE, |address, directory| {
            let arguments = configure(address, directory)?;
            self.documents.iter().try_for_each(|document| document.write(&directory.join(ROOT)))?;
            Ok(arguments)
        })?;
        let requests = Requests {
            name: ICECAST.program,
            server: address,
            documents: &self.documents,
            keep_alive: false,
        };
        Ok(Box::new(user.running(Serving::asking(stage, server, requests, self.listeners)?)))
    }
}

/// Writes a configuration for `address` and the directory of files, all paths relative to `directory`; returns the
/// arguments. What Icecast has to say goes to stderr.
///
/// # Errors
/// [`crate::kit::failure::Failure`] when it cannot be written.
pub fn configure(address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
    let configuration = format!(
        "<icecast><limits><clients>20000</clients><sources>2</sources><queue-size>{QUEUE_BYTES}</queue-size>\
         <client-timeout>30</client-timeout><header-timeout>15</header-timeout>\
         <source-timeout>30</source-timeout><burst-on-connect>0</burst-on-connect><burst-size>0</burst-size></limits>\
         <authentication><source-password>{PASSWORD}</source-password><admin-user>admin</admin-user>\
         <admin-password>{PASSWORD}</admin-password></authentication><hostname>localhost</hostname>\
         <listen-socket><port>{}</port><bind-address>{}</bind-address></listen-socket><fileserve>1</fileserve>\
         <paths><basedir>.</basedir><logdir>.</logdir><webroot>{ROOT}</webroot><adminroot>{ROOT}</adminroot></paths>\
         <logging><accesslog>access.log</accesslog><errorlog>-</errorlog><loglevel>1</loglevel></logging>\
         <security><chroot>0</chroot></security></icecast>",
        address.port(),
        address.ip(),
    );
    let writing = "writing icecast.xml";
    let file = directory.join("icecast.xml");
    std::fs::write(&file, configuration).doing(writing)?;
    std::fs::create_dir_all(directory.join(ROOT)).doing(writing)?;
    Ok(vec!["-c".into(), file.into()])
}
