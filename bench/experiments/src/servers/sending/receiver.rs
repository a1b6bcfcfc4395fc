//! The receiving end: compares all received bytes with the files, in a thread of its own with known processor time.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use uncopy_testbed::network::connect;

use crate::kit::processes::cpu_time::thread_cpu_ns;
use crate::kit::{Failure, Result, While};
use crate::servers::sending::corpus::{Corpus, Position};

/// Maximum silence of the sender.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes received by one call, few enough to be in the processor's cache still when they are compared.
const BUFFER_BYTES: usize = 256 * 1024;

/// Progress of the receiver so far.
#[derive(Debug, Default)]
struct Progress {
    /// Number of bytes received, all of them right.
    bytes: AtomicU64,
    /// Processor time of the thread after the last bytes, ns.
    cpu_ns: AtomicU64,
}

/// A thread that receives until the sender closes the connection.
#[derive(Debug)]
pub struct Receiver {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<Result<Received>>>,
}

/// Totals of a finished connection.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Number of bytes received, all of them right.
    pub bytes: u64,
    /// Time from connecting to the end of the connection.
    pub elapsed: Duration,
}

impl Receiver {
    /// Connects to `address` and receives `corpus` from there, again and again.
    ///
    /// # Errors
    /// [`Failure`] when connecting or starting the thread fails.
    pub fn start(address: SocketAddr, corpus: &Arc<Corpus>) -> Result<Self> {
        let begin = Instant::now();
        let stream = connect(address, TIMEOUT).doing("connecting to send-files")?;
        let progress = Arc::new(Progress::default());
        let (shared, corpus) = (Arc::clone(&progress), Arc::clone(corpus));
        let work = move || receive(stream, &corpus, &shared, begin);
        let thread =
            std::thread::Builder::new().name("receiver".to_owned()).spawn(work).doing("starting a thread")?;
        Ok(Self { progress, thread: Some(thread) })
    }

    /// Returns the bytes received so far, and the thread's processor time after the last of them, ns.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.progress.bytes.load(Ordering::Relaxed), self.progress.cpu_ns.load(Ordering::Relaxed))
    }

    /// True if the thread has ended, which happens before the sender's end only after a failure.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the sender closes the connection.
    ///
    /// # Errors
    /// [`Failure`] on wrong bytes, or when nothing arrived for [`TIMEOUT`].
    pub fn finish(mut self) -> Result<Received> {
        let lost = || Err(Failure::new("the receiver's thread panicked"));
        self.thread.take().map_or_else(lost, |thread| thread.join().unwrap_or_else(|_| lost()))
    }
}

fn receive(mut stream: TcpStream, corpus: &Corpus, progress: &Progress, begin: Instant) -> Result<Received> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut position, mut bytes) = (Position::default(), 0);
    loop {
        let got = stream.read(&mut buffer).doing("receiving from send-files")?;
        if got == 0 {
            return Ok(Received { bytes, elapsed: begin.elapsed() });
        }
        corpus.verify(&mut position, &buffer[..got])?;
        bytes += got as u64;
        progress.bytes.store(bytes, Ordering::Relaxed);
        progress.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
    }
}
