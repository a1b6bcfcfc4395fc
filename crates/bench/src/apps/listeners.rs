//! Listeners of a live stream: they compare every byte with what the source sent, and tell whether they get it as fast
//! as it is sent.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CpuSet;

use super::source::{LINE_BYTES, MARK, MOUNT, PERIOD_BYTES, Source, due_bytes, period};
use crate::kit::processors::bind_to;
use crate::kit::{Failure, Result, While, compare};

/// How long the server may take to accept a listener, or be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What is received at a time, bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Listeners that join, and then hear the stream, before others do: a server keeps few connections that it has not accepted.
const JOINING_AT_ONCE: usize = 16;
/// How long a listener may take to join while others do, where a limit counts.
const JOIN: Duration = Duration::from_millis(50);
/// Time between two looks at all listeners: much less and this program would be busy with calls.
const TICK: Duration = Duration::from_millis(5);
/// By how much a listener may come to be further behind within a trial, as a part of the trial: less is not told apart
/// from the moments in which the machine does something else.
const BEHIND_PART: f64 = 0.05;
/// The same, whatever the trial's length.
const MIN_BEHIND: Duration = Duration::from_millis(60);
/// A listener that is behind the source by no more than this hears what is being sent: the relay's queue and the
/// sockets' buffers hold more.
const NEAR: Duration = Duration::from_millis(100);

/// What was heard.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// Whether everyone got the stream at its rate.
    pub held: bool,
    /// Bytes that were compared, all of them right.
    pub verified_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Some listeners, in one thread.
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
    /// Bytes of the stream that it got.
    heard_bytes: u64,
    /// When it last heard something.
    last: Instant,
}

#[derive(Debug)]
enum State {
    /// What came so far does not tell where in the stream it is.
    Joining(Vec<u8>),
    /// The place in the period of the next byte.
    At(usize),
    /// The server sent it away: it was too far behind.
    SentAway,
}

impl Listeners {
    /// None yet.
    #[must_use]
    pub fn new(server: SocketAddr, processors: Option<CpuSet>) -> Self {
        let buffer = vec![0; CHUNK_BYTES];
        Self { server, listeners: Vec::new(), buffer, verified_bytes: 0, processors }
    }

    /// Bytes that were compared, all of them right.
    #[must_use]
    pub fn verified_bytes(&self) -> u64 {
        self.verified_bytes
    }

    /// Lets listeners join or leave until there are `count`; those that were sent away are replaced.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept one.
    pub fn resize(&mut self, count: usize) -> Result<()> {
        self.on_processors(|listeners| listeners.resize_here(count, None).map(drop))
    }

    /// Returns whether there are so many before the time is over.
    fn resize_here(&mut self, count: usize, until: Option<Instant>) -> Result<bool> {
        self.listeners.retain(|listener| !matches!(listener.state, State::SentAway));
        self.listeners.truncate(count);
        while self.listeners.len() < count {
            let listener = Listener::join(self.server)?;
            self.listeners.push(listener);
            if self.listeners.len().is_multiple_of(JOINING_AT_ONCE) && !self.have_joined(until)? {
                return Ok(false);
            }
        }
        self.have_joined(until)
    }

    /// Receives until everybody hears the stream; returns whether they do before the time is over.
    fn have_joined(&mut self, until: Option<Instant>) -> Result<bool> {
        let begin = Instant::now();
        while until.is_none_or(|until| Instant::now() <= until) {
            if !self.listeners.iter().any(|listener| matches!(listener.state, State::Joining(_))) {
                return Ok(true);
            }
            if begin.elapsed() > TIMEOUT {
                return Err(Failure::new("icecast answers no listener"));
            }
            self.receive()?;
            std::thread::sleep(TICK);
        }
        Ok(false)
    }

    /// Does `work` in a thread on the clients' processors: the main thread's are those that servers are given.
    fn on_processors<T: Send>(&mut self, work: impl FnOnce(&mut Self) -> Result<T> + Send) -> Result<T> {
        let Some(processors) = self.processors else { return work(self) };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                bind_to(Some(processors))?;
                work(self)
            });
            thread.join().unwrap_or_else(|_| Err(Failure::new("the listeners' thread panicked")))
        })
    }

    /// Lets `count` listeners come to hear what the source is sending, or gives up after `limit` and the time in which they
    /// would have joined one by one; returns whether all do. A listener that joins may hear older parts of the stream
    /// first, and one that comes not out of them in time is sent away: another joins.
    ///
    /// # Errors
    /// As [`Listeners::resize`] and [`Listeners::hear`].
    pub fn settle(&mut self, count: usize, limit: Duration, source: &Source) -> Result<bool> {
        self.on_processors(|listeners| {
            let new = count.saturating_sub(listeners.listeners.len());
            let until = Instant::now() + limit + JOIN * u32::try_from(new).unwrap_or(u32::MAX);
            while listeners.resize_here(count, Some(until))? {
                listeners.receive()?;
                let sent_bytes = source.sent_bytes();
                if listeners.listeners.iter().all(|listener| listener.is_near(sent_bytes)) {
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
    /// [`Failure`] when somebody hears something wrong, or nobody anything for long.
    pub fn hear(&mut self, duration: Duration) -> Result<Heard> {
        self.on_processors(|listeners| listeners.hear_here(duration))
    }

    fn hear_here(&mut self, duration: Duration) -> Result<Heard> {
        let before_bytes = self.verified_bytes;
        self.receive()?;
        let begin = Instant::now();
        let heard_before: Vec<u64> = self.listeners.iter().map(|listener| listener.heard_bytes).collect();
        while begin.elapsed() < duration {
            let round = Instant::now();
            self.receive()?;
            std::thread::sleep(TICK.saturating_sub(round.elapsed()));
        }
        self.receive()?;
        let elapsed = begin.elapsed();
        let due = due_bytes(elapsed);
        let late = |(listener, before): (&Listener, u64)| {
            due.saturating_sub(listener.heard_bytes - before) > allowed_bytes(elapsed)
        };
        let held = !self.listeners.iter().zip(heard_before).any(late);
        Ok(Heard { held, verified_bytes: self.verified_bytes - before_bytes, elapsed })
    }

    /// Receives and compares what is there for everybody.
    fn receive(&mut self) -> Result<()> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready: Vec<PollFd<'_>> =
            self.listeners.iter().map(|listener| PollFd::new(&listener.stream, PollFlags::IN)).collect();
        match poll(&mut ready, Some(&at_once)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::while_doing("waiting for the stream", &error.into())),
        }
        let ready: Vec<bool> = ready.iter().map(|ready| !ready.revents().is_empty()).collect();
        for (listener, _) in self.listeners.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            self.verified_bytes += listener.receive(&mut self.buffer)?;
        }
        // Some of too many: these are not held, which `hear` says. All of them: nothing is relayed any more.
        let is_silent = |listener: &Listener| listener.last.elapsed() > TIMEOUT;
        if !self.listeners.is_empty() && self.listeners.iter().all(is_silent) {
            return Err(Failure::new("no listener heard anything for 10 s"));
        }
        Ok(())
    }
}

/// How much less than what was due a listener may get within `elapsed`.
fn allowed_bytes(elapsed: Duration) -> u64 {
    due_bytes(elapsed.mul_f64(BEHIND_PART).max(MIN_BEHIND))
}

impl Listener {
    fn join(server: SocketAddr) -> Result<Self> {
        let what = || format!("connecting a listener to icecast at {server}");
        let mut stream = TcpStream::connect_timeout(&server, TIMEOUT).doing(what())?;
        stream.set_write_timeout(Some(TIMEOUT)).doing(what())?;
        let request = format!("GET {MOUNT} HTTP/1.0\r\nUser-Agent: uncopy-bench\r\n\r\n");
        stream.write_all(request.as_bytes()).doing(what())?;
        stream.set_nonblocking(true).doing(what())?;
        Ok(Self { stream, state: State::Joining(Vec::new()), heard_bytes: 0, last: Instant::now() })
    }

    /// Whether it hears what the source, which has sent `sent_bytes`, is sending.
    fn is_near(&self, sent_bytes: u64) -> bool {
        let State::At(at) = self.state else { return false };
        let sent = sent_bytes % PERIOD_BYTES as u64;
        (sent + PERIOD_BYTES as u64 - at as u64) % PERIOD_BYTES as u64 <= due_bytes(NEAR)
    }

    /// Receives all that is there; returns how much of it was compared.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<u64> {
        let mut compared = 0;
        loop {
            let got = match self.stream.read(buffer) {
                Ok(0) => {
                    self.state = State::SentAway;
                    return Ok(compared);
                }
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(compared),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::while_doing("receiving the stream", &error)),
            };
            self.last = Instant::now();
            compared += self.take(&buffer[..got])?;
        }
    }

    /// Compares `bytes` with the stream, or finds out where in it they are; returns how many were compared.
    fn take(&mut self, bytes: &[u8]) -> Result<u64> {
        match &mut self.state {
            State::At(at) => {
                let from = *at;
                *at = (from + bytes.len()) % PERIOD_BYTES;
                self.heard_bytes += bytes.len() as u64;
                verify(from, bytes)
            }
            State::Joining(before) => {
                before.extend_from_slice(bytes);
                let Some((body, at)) = joined(before)? else { return Ok(0) };
                let bytes = before.split_off(body);
                self.state = State::At(at);
                self.take(&bytes)
            }
            State::SentAway => Ok(0),
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

/// Where in `answer` the stream begins, and where in the period that is; `None` where too little is there to tell.
fn joined(answer: &[u8]) -> Result<Option<(usize, usize)>> {
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
    // A line and a word: whatever the place, they hold the beginning of a line.
    if answer.len() < body + LINE_BYTES + 8 {
        return Ok(None);
    }
    let found = (0..LINE_BYTES).find_map(|shift| Some((shift, number(&answer[body + shift..][..8])?)));
    let (shift, number) = found.ok_or_else(|| Failure::new("what icecast sends is not the stream"))?;
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
            assert_eq!(joined(&answer), Ok(Some((HEAD.len(), at))), "{at}");
            assert_eq!(joined(&answer[..HEAD.len() + 71]), Ok(None));
        }
        assert_eq!(joined(&HEAD[..10]), Ok(None));
        assert!(joined(&[HEAD, &[7; 100]].concat()).is_err());
        assert!(joined(b"HTTP/1.0 404 Not Found\r\n\r\n").expect_err("refused").to_string().contains("404"));
    }

    #[test]
    fn a_byte_that_is_wrong_or_left_out_is_told() {
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
        assert_eq!(allowed_bytes(Duration::from_secs(2)), RATE_BYTES_PER_S as u64 / 10);
        assert!(allowed_bytes(Duration::ZERO) > 0);
    }
}
