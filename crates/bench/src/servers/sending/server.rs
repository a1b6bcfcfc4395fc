//! The hidden program `uncopy bench send-files`: sends the files of a directory, in the order of their names, to whoever
//! connects, by one way and at one rate; again and again, or once for each connection.
//!
//! It writes `listening ADDRESS` when it listens, and after each connection a line with what that took:
//! `sent BYTES bytes, user NS ns, system NS ns, completions N, copied N`. SIGTERM ends it after the chunk that is
//! under way.

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use uncopy_twin::Buffer;

use crate::kit::load::used;
use crate::kit::processes::signals::Requests;
use crate::kit::processes::wait;
use crate::kit::{Experiment, Failure, Outcome, Result, While, bytes_parser};
use crate::servers::sending::pace::Pace;
use crate::servers::sending::ways::{Completions, Way, Ways, read_into_twin};

/// How often it looks whether it is to end while nobody connects.
const STOP_CHECK: Duration = Duration::from_millis(50);
/// What is sent by one call.
pub const CHUNK_BYTES: usize = 64 * 1024;

static STOPPING: AtomicBool = AtomicBool::new(false);

/// Send the files of a directory to whoever connects
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct SendFiles {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// How files are sent
    #[arg(long, value_enum)]
    pub way: Way,
    /// Bits sent in a second; 0: as fast as can be
    #[arg(long, value_name = "BITS", default_value = "0")]
    pub rate: u64,
    /// Bytes that one call sends
    #[arg(long, value_name = "SIZE", default_value_t = CHUNK_BYTES, value_parser = bytes_parser(1 << 30))]
    pub chunk: usize,
    /// Send all files once and close the connection
    #[arg(long)]
    pub once: bool,
    /// The directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

impl Experiment for SendFiles {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        run(self).map(|()| Outcome::Status(0))
    }
}

/// Runs it until a signal ends it.
///
/// # Errors
/// [`Failure`] when it cannot listen or a file cannot be sent.
pub fn run(arguments: &SendFiles) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    let files = listed(&arguments.directory)?;
    let listener = TcpListener::bind(arguments.listen).doing("listening")?;
    let address = listener.local_addr().doing("listening")?;
    std::thread::Builder::new()
        .spawn(move || {
            let _ = requests.wait(None);
            STOPPING.store(true, Ordering::Relaxed);
        })
        .doing("starting a thread")?;
    // There before the first connection, so that no measured second has first touches.
    let of_twin: &[PathBuf] = if arguments.way == Way::Twin { &files } else { &[] };
    let kept: io::Result<Vec<Buffer>> = of_twin.iter().map(|path| read_into_twin(path)).collect();
    let kept = kept.doing("reading a file")?;
    say(&format!("listening {address}"))?;
    while !STOPPING.load(Ordering::Relaxed) {
        if wait::until_readable(&listener, Some(STOP_CHECK)).doing("waiting for a client")? {
            let (stream, _) = listener.accept().doing("accepting")?;
            let before = used(libc::RUSAGE_SELF).unwrap_or_default();
            let Sent { bytes, completions } =
                send(arguments, stream.into(), &files, &kept).doing("sending files")?;
            let after = used(libc::RUSAGE_SELF).unwrap_or_default();
            let [user, system] = [0, 1].map(|kind| after[kind].saturating_sub(before[kind]));
            say(&format!(
                "sent {bytes} bytes, user {} ns, system {} ns, completions {}, copied {}",
                user.as_nanos(),
                system.as_nanos(),
                completions.complete,
                completions.copied
            ))?;
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).doing("writing to standard output")
}

fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    let listing =
        || std::fs::read_dir(directory)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>();
    let mut files = listing().doing(format_args!("listing {}", directory.display()))?;
    files.sort();
    if files.is_empty() { Err(Failure::new("there are no files to send")) } else { Ok(files) }
}

/// What one connection got.
struct Sent {
    bytes: u64,
    completions: Completions,
}

fn send(
    arguments: &SendFiles,
    socket: std::os::fd::OwnedFd,
    files: &[PathBuf],
    kept: &[Buffer],
) -> io::Result<Sent> {
    let mut ways = Ways::new(arguments.way, socket, arguments.chunk, kept)?;
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
            if !ways.send_file(number, &File::open(path)?, &mut sent)? {
                break 'connection;
            }
        }
        if arguments.once {
            break;
        }
    }
    ways.finish()?;
    Ok(Sent { bytes, completions: ways.completions() })
}
