//! The other end: compares all that comes with the files, in a thread of its own whose processor time is known.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::kit::processes::cpu_time::thread_cpu_ns;
use crate::kit::{Failure, Result, While};
use crate::servers::sending::corpus::{Corpus, Place};

/// How long the sender may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that one call receives: so few that they are still in the processor's cache when they are compared.
const BUFFER_BYTES: usize = 256 * 1024;

/// What was received so far.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes, all of them right.
    bytes: AtomicU64,
    /// The thread's processor time, ns: as it was after the last bytes.
    cpu_ns: AtomicU64,
}

/// A thread that receives until the sender closes the connection.
#[derive(Debug)]
pub struct Receiver {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<Result<Received>>>,
}

/// All that was received.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Bytes, all of them right.
    pub bytes: u64,
    /// From connecting to the end of the connection.
    pub elapsed: Duration,
}

impl Receiver {
    /// Connects to `address` and receives `corpus` from there, again and again.
    ///
    /// # Errors
    /// [`Failure`] when there is no connection or no thread.
    pub fn start(address: SocketAddr, corpus: &Arc<Corpus>) -> Result<Self> {
        let begin = Instant::now();
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).doing("connecting to send-files")?;
        stream.set_read_timeout(Some(TIMEOUT)).doing("connecting to send-files")?;
        let progress = Arc::new(Progress::default());
        let (told, corpus) = (Arc::clone(&progress), Arc::clone(corpus));
        let work = move || receive(stream, &corpus, &told, begin);
        let thread =
            std::thread::Builder::new().name("receiver".to_owned()).spawn(work).doing("starting a thread")?;
        Ok(Self { progress, thread: Some(thread) })
    }

    /// Bytes received so far, and the thread's processor time after the last of them, ns.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.progress.bytes.load(Ordering::Relaxed), self.progress.cpu_ns.load(Ordering::Relaxed))
    }

    /// Whether it has ended already, which it does not by itself unless something is wrong.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the sender's end of the connection.
    ///
    /// # Errors
    /// [`Failure`] at wrong bytes, or when nothing came for long.
    pub fn finish(mut self) -> Result<Received> {
        let lost = || Err(Failure::new("the receiver's thread panicked"));
        self.thread.take().map_or_else(lost, |thread| thread.join().unwrap_or_else(|_| lost()))
    }
}

fn receive(mut stream: TcpStream, corpus: &Corpus, progress: &Progress, begin: Instant) -> Result<Received> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut place, mut bytes) = (Place::default(), 0);
    loop {
        let got = stream.read(&mut buffer).doing("receiving from send-files")?;
        if got == 0 {
            return Ok(Received { bytes, elapsed: begin.elapsed() });
        }
        corpus.verify(&mut place, &buffer[..got])?;
        bytes += got as u64;
        progress.bytes.store(bytes, Ordering::Relaxed);
        progress.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
    }
}
