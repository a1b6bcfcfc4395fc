//! Listeners of a live stream, which compare every byte and detect whether they receive the stream at its rate.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CpuSet;
use uncopy_testbed::network::connect;

use super::source::{LINE_BYTES, MARK, MOUNT, PERIOD_BYTES, Source, due_bytes, period};
use crate::kit::processors::bind_thread;
use crate::kit::{Failure, Result, While, compare};

/// Time limit for the server to accept a listener, and for its silence.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes received by one call.
const CHUNK_BYTES: usize = 64 << 10;
/// Listeners that join, and then receive the stream, before others do: a server's backlog is short.
const JOIN_BATCH: usize = 16;
/// Time limit for a listener to join together with others, when a limit applies.
const JOIN_TIMEOUT: Duration = Duration::from_millis(50);
/// Interval at which all listeners are polled: a much shorter one would keep this program busy with calls.
const TICK: Duration = Duration::from_millis(5);
/// Additional delay that a listener may acquire within a trial, as a fraction of the trial: a smaller one
/// cannot be distinguished from pauses of the machine.
const MAX_LAG_FRACTION: f64 = 0.05;
/// Lower bound of that delay, for trials of any length.
const MIN_ALLOWED_LAG: Duration = Duration::from_millis(60);
/// Maximum delay of a listener that is considered to receive the current position of the stream: the relay's
/// queue and the sockets' buffers hold more.
const MAX_CURRENT_LAG: Duration = Duration::from_millis(100);

/// Result of listening for some time.
#[derive(Clone, Copy, Debug)]
pub struct ListenResult {
    /// Whether all listeners received the stream at its rate.
    pub kept_up: bool,
    /// Number of bytes compared, all of them right.
    pub verified_bytes: u64,
    /// Time for which the listeners received.
    pub elapsed: Duration,
}

/// Listeners that one thread serves.
#[derive(Debug)]
pub struct Listeners {
    server: SocketAddr,
    listeners: Vec<Listener>,
    buffer: Vec<u8>,
    verified_bytes: u64,
    processors: Option<CpuSet>,
}

#[derive(Debug)]
struct Listener {
    stream: TcpStream,
    state: State,
    /// Number of stream bytes received by the listener.
    received_bytes: u64,
    /// Time of the last received byte.
    last: Instant,
}

#[derive(Debug)]
enum State {
    /// The bytes received so far are too few to find their position in the stream.
    Joining(Vec<u8>),
    /// Offset of the next byte within the period.
    Synced(usize),
    /// The server closed the connection, because the listener was too far behind.
    Disconnected,
}

impl Listeners {
    /// Makes an empty set of listeners.
    #[must_use]
    pub fn new(server: SocketAddr, processors: Option<CpuSet>) -> Self {
        let buffer = vec![0; CHUNK_BYTES];
        Self { server, listeners: Vec::new(), buffer, verified_bytes: 0, processors }
    }

    /// Returns the number of bytes compared, all of them right.
    #[must_use]
    pub fn verified_bytes(&self) -> u64 {
        self.verified_bytes
    }

    /// Lets listeners join or leave until there are `count`; replaces those that the server sent away.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept a listener.
    pub fn resize(&mut self, count: usize) -> Result<()> {
        self.on_processors(|listeners| listeners.resize_on_thread(count, None).map(drop))
    }

    /// Returns whether there are `count` listeners before the time is over.
    fn resize_on_thread(&mut self, count: usize, until: Option<Instant>) -> Result<bool> {
        self.listeners.retain(|listener| !matches!(listener.state, State::Disconnected));
        self.listeners.truncate(count);
        while self.listeners.len() < count {
            let listener = Listener::join(self.server)?;
            self.listeners.push(listener);
            if self.listeners.len().is_multiple_of(JOIN_BATCH) && !self.wait_until_joined(until)? {
                return Ok(false);
            }
        }
        self.wait_until_joined(until)
    }

    /// Receives until all listeners have found their position in the stream, or the time is over; returns whether
    /// they have.
    fn wait_until_joined(&mut self, until: Option<Instant>) -> Result<bool> {
        let begin = Instant::now();
        while until.is_none_or(|until| Instant::now() <= until) {
            if !self.listeners.iter().any(|listener| matches!(listener.state, State::Joining(_))) {
                return Ok(true);
            }
            if begin.elapsed() > TIMEOUT {
                return Err(Failure::new("icecast does not answer the listeners"));
            }
            self.receive()?;
            std::thread::sleep(TICK);
        }
        Ok(false)
    }

    /// Runs `work` in a thread on the clients' processors: servers inherit the main thread's.
    fn on_processors<T: Send>(&mut self, work: impl FnOnce(&mut Self) -> Result<T> + Send) -> Result<T> {
        let Some(processors) = self.processors else { return work(self) };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                bind_thread(Some(processors))?;
                work(self)
            });
            thread.join().unwrap_or_else(|_| Err(Failure::new("the listeners' thread panicked")))
        })
    }

    /// Lets `count` listeners reach the current position of the stream, or gives up after `limit` and the time in which
    /// they would have joined one by one; returns whether all do. A new listener may receive older parts of the stream
    /// first. The server sends away a listener that does not catch up in time, and another joins.
    ///
    /// # Errors
    /// As [`Listeners::resize`] and [`Listeners::listen`].
    pub fn wait_until_current(&mut self, count: usize, limit: Duration, source: &Source) -> Result<bool> {
        self.on_processors(|listeners| {
            let new = count.saturating_sub(listeners.listeners.len());
            let until = Instant::now() + limit + JOIN_TIMEOUT * u32::try_from(new).unwrap_or(u32::MAX);
            while listeners.resize_on_thread(count, Some(until))? {
                listeners.receive()?;
                let sent_bytes = source.sent_bytes();
                if listeners.listeners.iter().all(|listener| listener.is_current(sent_bytes)) {
                    return Ok(true);
                }
                std::thread::sleep(TICK);
            }
            Ok(false)
        })
    }

    /// Listens for `duration`.
    ///
    /// # Errors
    /// [`Failure`] when a listener receives a wrong byte, or no listener any byte for long.
    pub fn listen(&mut self, duration: Duration) -> Result<ListenResult> {
        self.on_processors(|listeners| listeners.listen_on_thread(duration))
    }

    fn listen_on_thread(&mut self, duration: Duration) -> Result<ListenResult> {
        let before_bytes = self.verified_bytes;
        self.receive()?;
        let begin = Instant::now();
        let received_before: Vec<u64> =
            self.listeners.iter().map(|listener| listener.received_bytes).collect();
        while begin.elapsed() < duration {
            let round = Instant::now();
            self.receive()?;
            std::thread::sleep(TICK.saturating_sub(round.elapsed()));
        }
        self.receive()?;
        let elapsed = begin.elapsed();
        let due = due_bytes(elapsed);
        let late = |(listener, before): (&Listener, u64)| {
            due.saturating_sub(listener.received_bytes - before) > max_lag_bytes(elapsed)
        };
        let kept_up = !self.listeners.iter().zip(received_before).any(late);
        Ok(ListenResult { kept_up, verified_bytes: self.verified_bytes - before_bytes, elapsed })
    }

    /// Receives and compares the available bytes of all listeners.
    fn receive(&mut self) -> Result<()> {
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready: Vec<PollFd<'_>> =
            self.listeners.iter().map(|listener| PollFd::new(&listener.stream, PollFlags::IN)).collect();
        match poll(&mut ready, Some(&no_wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::while_doing("waiting for the stream", &error.into())),
        }
        let ready: Vec<bool> = ready.iter().map(|ready| !ready.revents().is_empty()).collect();
        for (listener, _) in self.listeners.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            self.verified_bytes += listener.receive(&mut self.buffer)?;
        }
        // A few silent listeners are counted as not held by `hear`. If all are silent, nothing is relayed any more.
        let is_silent = |listener: &Listener| listener.last.elapsed() > TIMEOUT;
        if !self.listeners.is_empty() && self.listeners.iter().all(is_silent) {
            return Err(Failure::new("no listener received data for 10 s"));
        }
        Ok(())
    }
}

/// Returns the number of bytes by which a listener may fall short within `elapsed`.
fn max_lag_bytes(elapsed: Duration) -> u64 {
    due_bytes(elapsed.mul_f64(MAX_LAG_FRACTION).max(MIN_ALLOWED_LAG))
}

impl Listener {
    fn join(server: SocketAddr) -> Result<Self> {
        let what = || format!("connecting a listener to icecast at {server}");
        let mut stream = connect(server, TIMEOUT).doing(what())?;
        let request = format!("GET {MOUNT} HTTP/1.0\r\nUser-Agent: uncopy-bench\r\n\r\n");
        stream.write_all(request.as_bytes()).doing(what())?;
        stream.set_nonblocking(true).doing(what())?;
        Ok(Self { stream, state: State::Joining(Vec::new()), received_bytes: 0, last: Instant::now() })
    }

    /// Returns whether the listener is near the source, which has sent `sent_bytes`.
    fn is_current(&self, sent_bytes: u64) -> bool {
        let State::Synced(at) = self.state else { return false };
        let sent = sent_bytes % PERIOD_BYTES as u64;
        (sent + PERIOD_BYTES as u64 - at as u64) % PERIOD_BYTES as u64 <= due_bytes(MAX_CURRENT_LAG)
    }

    /// Receives all available bytes; returns the number of bytes compared.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<u64> {
        let mut compared = 0;
        loop {
            let got = match self.stream.read(buffer) {
                Ok(0) => {
                    self.state = State::Disconnected;
                    return Ok(compared);
                }
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(compared),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::while_doing("receiving the stream", &error)),
            };
            self.last = Instant::now();
            compared += self.process(&buffer[..got])?;
        }
    }

    /// Compares `bytes` with the stream, or finds their position in it; returns the number of bytes compared.
    fn process(&mut self, bytes: &[u8]) -> Result<u64> {
        match &mut self.state {
            State::Synced(at) => {
                let from = *at;
                *at = (from + bytes.len()) % PERIOD_BYTES;
                self.received_bytes += bytes.len() as u64;
                verify(from, bytes)
            }
            State::Joining(before) => {
                before.extend_from_slice(bytes);
                let Some((body, at)) = find_position(before)? else { return Ok(0) };
                let bytes = before.split_off(body);
                self.state = State::Synced(at);
                self.process(&bytes)
            }
            State::Disconnected => Ok(0),
        }
    }
}

/// Compares `bytes` with the stream from `at` on.
fn verify(mut at: usize, mut bytes: &[u8]) -> Result<u64> {
    let len = bytes.len() as u64;
    while !bytes.is_empty() {
        let (now, rest) = bytes.split_at(bytes.len().min(PERIOD_BYTES - at));
        compare(&period()[at..at + now.len()], now)
            .map_err(|mismatch| Failure::new(format!("wrong stream from icecast, at {at}: {mismatch}")))?;
        (at, bytes) = (0, rest);
    }
    Ok(len)
}

/// Returns the offset in `answer` at which the stream begins, and the offset of that byte in the period; `None`
/// if there are too few bytes to tell.
fn find_position(answer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let first = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    if !first.windows(5).any(|part| part == b" 200 ") {
        return Err(Failure::new(format!("icecast answered a listener \"{}\"", first.escape_ascii())));
    }
    let (body, lines) = (head + 4, (PERIOD_BYTES / LINE_BYTES) as u64);
    let number = |word: &[u8]| {
        let word = u64::from_le_bytes(word.try_into().ok()?);
        (word & !0xffff_ffff == MARK && word & 0xffff_ffff < lines).then_some(word & 0xffff_ffff)
    };
    // Wherever they start, a line and a word contain the beginning of a line.
    if answer.len() < body + LINE_BYTES + 8 {
        return Ok(None);
    }
    let found = (0..LINE_BYTES).find_map(|shift| Some((shift, number(&answer[body + shift..][..8])?)));
    let (shift, number) =
        found.ok_or_else(|| Failure::new("icecast sends bytes that are not part of the stream"))?;
    let line = usize::try_from(number).unwrap_or(0) * LINE_BYTES;
    Ok(Some((body, (line + PERIOD_BYTES - shift) % PERIOD_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::super::source::RATE_BYTES_PER_S;
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Type: audio/mpeg\r\n\r\n";

    #[test]
    fn a_listener_finds_its_place_wherever_it_joins() {
        for at in [0, 1, 63, 64, 1000, PERIOD_BYTES - 1, PERIOD_BYTES - 64, PERIOD_BYTES - 70] {
            let twice = [period(), &period()[..1000]].concat();
            let answer = [HEAD, &twice[at..at + 100]].concat();
            assert_eq!(find_position(&answer), Ok(Some((HEAD.len(), at))), "{at}");
            assert_eq!(find_position(&answer[..HEAD.len() + 71]), Ok(None));
        }
        assert_eq!(find_position(&HEAD[..10]), Ok(None));
        assert!(find_position(&[HEAD, &[7; 100]].concat()).is_err());
        assert!(
            find_position(b"HTTP/1.0 404 Not Found\r\n\r\n")
                .expect_err("refused")
                .to_string()
                .contains("404")
        );
    }

    #[test]
    fn a_wrong_or_missing_byte_is_reported() {
        let end = PERIOD_BYTES - 10;
        let mut bytes = [&period()[end..], &period()[..20]].concat();
        assert_eq!(verify(end, &bytes), Ok(30));
        assert!(verify(end - 1, &bytes).is_err());
        bytes[15] ^= 1;
        let failure = verify(end, &bytes).expect_err("wrong").to_string();
        assert!(failure.contains("at 0: byte 5"), "{failure}");
    }

    #[test]
    fn a_part_of_the_time_may_be_missing() {
        assert_eq!(max_lag_bytes(Duration::from_secs(2)), RATE_BYTES_PER_S as u64 / 10);
        assert!(max_lag_bytes(Duration::ZERO) > 0);
    }
}
