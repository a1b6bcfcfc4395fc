//! The source of a live stream for Icecast: bytes that contain their position in the stream, at a fixed rate.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use uncopy_testbed::network::connect;
use uncopy_testbed::servers::Icecast;

use crate::kit::processors::bind_thread;
use crate::kit::{Failure, Random, Result, While};

/// Name of the stream.
pub const MOUNT: &str = "/stream";
/// Rate of the stream, bytes per second.
pub const RATE_BYTES_PER_S: usize = 2 << 20;
/// Bytes after which the stream repeats itself: more than any listener's delay.
pub const PERIOD_BYTES: usize = 16 << 20;
/// Length of a line of the stream, bytes. Each line begins with its number.
pub const LINE_BYTES: usize = 64;
/// Upper half of every line's number, which distinguishes the number from other bytes.
pub const MARK: u64 = 0x756e_636f_0000_0000;
/// Interval between two sends.
const TICK: Duration = Duration::from_millis(5);
/// Maximum time for which the server may accept no bytes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum delay that the source makes up for. A live source drops what it could not send in time, but short
/// pauses of the machine are not the server's fault.
const MAX_DEBT: Duration = Duration::from_millis(250);

/// Returns the bytes of one period.
pub fn period() -> &'static [u8] {
    static PERIOD: OnceLock<Vec<u8>> = OnceLock::new();
    PERIOD.get_or_init(|| {
        let mut bytes = Random::new(53).bytes(PERIOD_BYTES);
        for (number, line) in bytes.chunks_exact_mut(LINE_BYTES).enumerate() {
            line[..8].copy_from_slice(&(MARK | number as u64).to_le_bytes());
        }
        bytes
    })
}

/// A source that sends in a thread of its own.
#[derive(Debug)]
pub struct Source {
    shared: Arc<Shared>,
    stream: TcpStream,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    sent_bytes: AtomicU64,
    ending: std::sync::atomic::AtomicBool,
}

impl Source {
    /// Connects to `server` and starts the thread.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept the stream.
    pub fn start(server: SocketAddr, processors: Option<CpuSet>) -> Result<Self> {
        let what = || format!("connecting a source to icecast at {server}");
        let mut stream = connect(server, TIMEOUT).doing(what())?;
        let request = format!(
            "SOURCE {MOUNT} HTTP/1.0\r\nAuthorization: Basic {}\r\nContent-Type: audio/mpeg\r\n\r\n",
            Icecast::SOURCE_AUTHORIZATION
        );
        stream.write_all(request.as_bytes()).doing(what())?;
        let mut answer = [0; 512];
        let got = stream.read(&mut answer).doing(what())?;
        if !String::from_utf8_lossy(&answer[..got]).contains(" 200 ") {
            let answer = answer[..got].escape_ascii();
            return Err(Failure::new(format!("icecast answered the source \"{answer}\"")));
        }
        let shared = Arc::new(Shared::default());
        let (sending, from) = (stream.try_clone().doing(what())?, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("source".into());
        let thread = thread.spawn(move || send(sending, &from, processors)).doing("starting the source")?;
        Ok(Self { shared, stream, thread: Some(thread) })
    }

    /// Returns the number of bytes that the server has accepted.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::Acquire)
    }

    /// Checks that the source still sends.
    ///
    /// # Errors
    /// [`Failure`] with the reason if the source has ended.
    pub fn check(&mut self) -> Result<()> {
        if self.thread.as_ref().is_none_or(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.join()?;
        Err(Failure::new("the source ended"))
    }

    /// Stops the source.
    ///
    /// # Errors
    /// [`Failure`] when the source had ended by itself.
    pub fn stop(&mut self) -> Result<()> {
        self.check()?;
        self.end();
        self.join()
    }

    fn end(&self) {
        self.shared.ending.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn join(&mut self) -> Result<()> {
        let lost = |_| Err(Failure::new("the source's thread panicked"));
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(lost))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.end();
        let _ = self.join();
    }
}

/// Sends the bytes that are due, until the end is requested.
fn send(mut stream: TcpStream, shared: &Shared, processors: Option<CpuSet>) -> Result<()> {
    bind_thread(processors)?;
    let period = period();
    let (mut begin, mut sent) = (Instant::now(), 0u64);
    while !shared.ending.load(Ordering::Acquire) {
        let mut due = due_bytes(begin.elapsed());
        while sent < due {
            let at = usize::try_from(sent % PERIOD_BYTES as u64).unwrap_or(0);
            let more = usize::try_from(due - sent).unwrap_or(usize::MAX).min(PERIOD_BYTES - at);
            match stream.write(&period[at..at + more]) {
                Ok(written) if written > 0 => sent += written as u64,
                _ if shared.ending.load(Ordering::Acquire) => return Ok(()),
                Ok(_) => return Err(Failure::new("icecast stopped accepting the stream")),
                Err(error) => return Err(Failure::while_doing("sending the stream to icecast", &error)),
            }
            shared.sent_bytes.store(sent, Ordering::Release);
            let debt = begin.elapsed().saturating_sub(stream_duration(sent));
            begin += debt.saturating_sub(MAX_DEBT);
            due = due_bytes(begin.elapsed());
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Returns the number of bytes due after `elapsed`.
pub fn due_bytes(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_micros() * RATE_BYTES_PER_S as u128 / 1_000_000).unwrap_or(u64::MAX)
}

/// Returns the duration of `bytes` of the stream.
fn stream_duration(bytes: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / RATE_BYTES_PER_S as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_holds_its_number_and_no_other_word_does() {
        let period = period();
        assert_eq!((period.len() / LINE_BYTES * LINE_BYTES, PERIOD_BYTES % LINE_BYTES), (PERIOD_BYTES, 0));
        for (number, line) in period.chunks_exact(LINE_BYTES).enumerate().step_by(997) {
            assert_eq!(line[..8], (MARK | number as u64).to_le_bytes());
        }
        assert!(((PERIOD_BYTES / LINE_BYTES) as u64) < 1 << 32);
    }

    #[test]
    fn the_amount_due_follows_from_the_time() {
        assert_eq!(due_bytes(Duration::from_secs(3)), 3 * RATE_BYTES_PER_S as u64);
        assert_eq!(due_bytes(Duration::from_millis(500)), RATE_BYTES_PER_S as u64 / 2);
        assert_eq!(stream_duration(due_bytes(Duration::from_millis(7500))), Duration::from_millis(7500));
    }
}
