//! The hidden command `uncopy-bench send-files`: sends the files of a directory, in the order of their names, to every
//! client that connects, by one way and at one rate; again and again, or once for each connection.
//!
//! The sender prints `listening ADDRESS` when it listens, and its [`TransferTotals`] after each connection. SIGTERM
//! ends it after the current chunk.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uncopy_twin::Buffer;

use crate::kit::load::rusage_times;
use crate::kit::processes::signals::Requests;
use crate::kit::processes::wait;
use crate::kit::{Experiment, Failure, Outcome, Result, While, bytes_parser, print};
use crate::servers::sending::pace::Pace;
use crate::servers::sending::ways::{Completions, FileSender, Way, read_into_twin};

/// Interval at which the stop flag is checked while no client connects.
const STOP_CHECK: Duration = Duration::from_millis(50);
/// Default number of bytes sent by one call.
pub const CHUNK_BYTES: usize = 64 * 1024;

static STOPPING: AtomicBool = AtomicBool::new(false);

/// Send the files of a directory to every client
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct SendFiles {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Way to send the files
    #[arg(long, value_enum)]
    pub way: Way,
    /// Bits sent per second; 0: no limit
    #[arg(long, value_name = "BITS", default_value = "0")]
    pub rate: u64,
    /// Bytes sent per call
    #[arg(long, value_name = "SIZE", default_value_t = CHUNK_BYTES, value_parser = bytes_parser(1 << 30))]
    pub chunk: usize,
    /// Send all files once and close the connection
    #[arg(long)]
    pub once: bool,
    /// Directory of the files
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

impl Experiment for SendFiles {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        run(self).map(|()| Outcome::Status(0))
    }
}

/// Runs the sender until a signal ends it.
///
/// # Errors
/// [`Failure`] when listening fails or a file cannot be sent.
pub fn run(arguments: &SendFiles) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    let files = list_files(&arguments.directory)?;
    let listener = TcpListener::bind(arguments.listen).doing("listening")?;
    let address = listener.local_addr().doing("listening")?;
    std::thread::Builder::new()
        .spawn(move || {
            let _ = requests.wait(None);
            STOPPING.store(true, Ordering::Relaxed);
        })
        .doing("starting a thread")?;
    // Read before the first connection, so that no measured second contains first touches of memory.
    let of_twin: &[PathBuf] = if arguments.way == Way::Twin { &files } else { &[] };
    let twin_buffers: io::Result<Vec<Buffer>> = of_twin.iter().map(|path| read_into_twin(path)).collect();
    let twin_buffers = twin_buffers.doing("reading a file")?;
    print(&format!("listening {address}\n"))?;
    while !STOPPING.load(Ordering::Relaxed) {
        if wait::until_readable(&listener, Some(STOP_CHECK)).doing("waiting for a client")? {
            let (stream, _) = listener.accept().doing("accepting")?;
            let before = rusage_times(libc::RUSAGE_SELF).unwrap_or_default();
            let sent = send(arguments, stream.into(), &files, &twin_buffers).doing("sending files")?;
            let after = rusage_times(libc::RUSAGE_SELF).unwrap_or_default();
            let [user_ns, system_ns] = [0, 1].map(|kind| {
                u64::try_from(after[kind].saturating_sub(before[kind]).as_nanos()).unwrap_or(u64::MAX)
            });
            print(&format!("{}\n", json!(TransferTotals { user_ns, system_ns, ..sent })))?;
        }
    }
    Ok(())
}

fn list_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let listing =
        || std::fs::read_dir(directory)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>();
    let mut files = listing().doing(format_args!("listing {}", directory.display()))?;
    files.sort();
    if files.is_empty() { Err(Failure::new("there are no files to send")) } else { Ok(files) }
}

/// Bytes and processor time of a connection, printed as a line of JSON.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TransferTotals {
    /// Bytes that were sent.
    pub bytes: u64,
    /// Processor time in user mode, ns.
    pub user_ns: u64,
    /// Processor time in the kernel, ns.
    pub system_ns: u64,
    /// Number of complete sends with MSG_ZEROCOPY.
    pub completions: u64,
    /// Number of these sends that the kernel copied nevertheless.
    pub copied: u64,
}

fn send(
    arguments: &SendFiles,
    socket: std::os::fd::OwnedFd,
    files: &[PathBuf],
    twin_buffers: &[Buffer],
) -> io::Result<TransferTotals> {
    let mut sender = FileSender::new(arguments.way, socket, arguments.chunk, twin_buffers)?;
    let mut pace = Pace::new(arguments.rate);
    let mut bytes = 0;
    let mut sent = |len_bytes: usize| {
        bytes += len_bytes as u64;
        if arguments.rate > 0
            && let Some(early) = pace.sent(len_bytes, Instant::now())
        {
            std::thread::sleep(early);
        }
        !STOPPING.load(Ordering::Relaxed)
    };
    'connection: loop {
        for (number, path) in files.iter().enumerate() {
            if !sender.send_file(number, &File::open(path)?, &mut sent)? {
                break 'connection;
            }
        }
        if arguments.once {
            break;
        }
    }
    sender.finish()?;
    let Completions { completed: completions, copied, .. } = sender.completions();
    Ok(TransferTotals { bytes, completions, copied, ..TransferTotals::default() })
}
