//! A server whose clients are in another process, so that both ends run under the same side. The first process
//! contains the clients, the server is its child. The process executes requests, lines of a verb and a number, that
//! arrive over the UNIX socket [`CONTROL_SOCKET`] in its working directory:
//!
//! ```text
//! load NS        exchanges for NS nanoseconds       answer: EXCHANGES VERIFIED_BYTES ELAPSED_NS, or "failed: WHY"
//! reconnect 0    reconnects the clients                     0 0 0
//! verify 0       verifies what no load could verify         0 VERIFIED_BYTES 0
//! ```
//!
//! Latencies may follow the answer to `load`, each as NS:COUNT. The process ends when the connection is closed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use crate::kit::failure::{Failure, Result, While};
use crate::kit::latencies::Latencies;
use crate::kit::network::start_server;
use crate::kit::processes::cleanup::TemporaryDirectory;
use crate::kit::processes::process::Server;
use crate::kit::running_server::RunningServer;
use crate::kit::traffic::LoadResult;

/// File name of the control socket.
const CONTROL_SOCKET: &str = "control";
/// Output of the process when its clients are connected.
const READY_LINE: &str = "ready";
/// Time that an answer, or the end of the process, may take beyond the requested duration.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of an answer, bytes.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// A server with its clients in another process. The processor time includes both ends.
pub struct RemoteServer {
    control: BufReader<UnixStream>,
    server: Server,
}

impl RemoteServer {
    /// Starts `command`, a program that calls [`serve_requests`], in `directory`, and waits until its clients are
    /// connected.
    ///
    /// # Errors
    /// [`Failure`] when the program cannot be started or is not ready in time.
    pub fn start(command: Command, title: &str, directory: TemporaryDirectory) -> Result<Self> {
        let mut server = start_server(command, title, directory)?;
        server.first_line()?;
        let control = UnixStream::connect(server.directory().join(CONTROL_SOCKET));
        let control = control.doing(format_args!("connecting to {title}"));
        let control = control.map_err(|failure| server.process().explain(&failure))?;
        Ok(Self { control: BufReader::new(control), server })
    }

    fn send_request(&mut self, verb: &str, duration: Duration) -> Result<LoadResult> {
        let what = "sending a request to the clients";
        let control = self.control.get_mut();
        control.set_read_timeout(Some(duration + TIMEOUT)).doing(what)?;
        writeln!(control, "{verb} {}", duration.as_nanos()).doing(what)?;
        let mut answer = String::new();
        self.control.by_ref().take(MAX_ANSWER_BYTES).read_line(&mut answer).doing(what)?;
        match answer.strip_prefix("failed: ") {
            Some(why) => Err(Failure::new(why.trim_end())),
            None => parse_answer(&answer).ok_or_else(|| {
                let shown: String = answer.chars().take(80).collect();
                Failure::new(format!("unexpected answer of the clients: \"{}\"", shown.escape_debug()))
            }),
        }
    }
}

/// Parses the line of an answer.
fn parse_answer(answer: &str) -> Option<LoadResult> {
    let mut words = answer.split_whitespace();
    let mut number = || words.next()?.parse().ok();
    let (exchanges, verified_bytes, ns) = (number()?, number()?, number()?);
    let mut latencies = Latencies::default();
    for word in words {
        let (ns, count) = word.split_once(':')?;
        latencies.record_many(Duration::from_nanos(ns.parse().ok()?), count.parse().ok()?);
    }
    Some(LoadResult { exchanges, verified_bytes, elapsed: Duration::from_nanos(ns), latencies })
}

/// Formats the answer to a load.
fn format_answer(load: &LoadResult) -> String {
    let numbers = format!("{} {} {}", load.exchanges, load.verified_bytes, load.elapsed.as_nanos());
    let latencies = load.latencies.counts().map(|(ns, count)| format!(" {ns}:{count}"));
    std::iter::once(numbers).chain(latencies).chain(["\n".to_owned()]).collect()
}

impl RunningServer for RemoteServer {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn clients_cpu_ns(&self) -> Option<u64> {
        None
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        self.send_request("load", duration)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.send_request("reconnect", Duration::ZERO).map(drop)
    }

    fn verify(&mut self) -> Result<u64> {
        self.send_request("verify", Duration::ZERO).map(|load| load.verified_bytes)
    }

    fn stop(&mut self) -> Result<()> {
        let _ = self.control.get_ref().shutdown(Shutdown::Both);
        // The closed control connection tells the process to end; after the timeout it is killed.
        match self.server.process().wait(TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                let stderr = self.server.last_words();
                Err(Failure::new(format!("the clients exited with {status}; stderr: {stderr}")))
            }
            None => self.server.process().stop(),
        }
    }
}

/// A request to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// Calls [`RunningServer::load`] with this duration.
    Load(Duration),
    /// Calls [`RunningServer::reconnect`] for all clients.
    Reconnect,
    /// Calls [`RunningServer::verify`] after the loads.
    Verify,
}

/// Starts a server with its clients in this process, and executes requests until the control connection is closed.
///
/// # Errors
/// The errors of `start`, and [`Failure`] when the control connection fails or the server does not end properly.
pub fn serve_requests<'a>(start: impl FnOnce() -> Result<Box<dyn RunningServer + 'a>>) -> Result<()> {
    let listener = listen()?;
    let mut running_server = start()?;
    let answered = answer_requests(&listener, |request| match request {
        // Sending latencies would use the clients' processor time, which is measured.
        ControlRequest::Load(duration) => {
            Ok(LoadResult { latencies: Latencies::default(), ..running_server.load(duration)? })
        }
        ControlRequest::Reconnect => running_server.reconnect().map(|()| LoadResult::default()),
        ControlRequest::Verify => running_server
            .verify()
            .map(|verified_bytes| LoadResult { verified_bytes, ..LoadResult::default() }),
    });
    let stopped = running_server.stop();
    answered.and(stopped)
}

/// Executes requests by `work`, in a process that is the server itself, until the control connection is closed.
///
/// # Errors
/// [`Failure`] when the control connection fails.
pub fn serve_requests_with(work: impl FnMut(ControlRequest) -> Result<LoadResult>) -> Result<()> {
    answer_requests(&listen()?, work)
}

fn listen() -> Result<UnixListener> {
    UnixListener::bind(CONTROL_SOCKET).doing("creating the control socket")
}

fn answer_requests(
    listener: &UnixListener,
    mut work: impl FnMut(ControlRequest) -> Result<LoadResult>,
) -> Result<()> {
    const WHAT: &str = "reading the control connection";
    println!("{READY_LINE}");
    let (mut control, _) = listener.accept().doing("waiting for the control connection")?;
    for line in BufReader::new(control.try_clone().doing(WHAT)?).lines() {
        let done = parse_request(&line.doing(WHAT)?).and_then(&mut work);
        let answer = match done {
            Ok(load) => format_answer(&load),
            Err(failure) => format!("failed: {}\n", failure.to_string().replace('\n', " ")),
        };
        control.write_all(answer.as_bytes()).doing("answering")?;
    }
    Ok(())
}

/// Parses the line of a request.
fn parse_request(line: &str) -> Result<ControlRequest> {
    match line.split_once(' ') {
        Some(("load", ns)) => {
            let ns = ns.parse().map_err(|_| Failure::new("expected a duration in nanoseconds"))?;
            Ok(ControlRequest::Load(Duration::from_nanos(ns)))
        }
        Some(("reconnect", _)) => Ok(ControlRequest::Reconnect),
        Some(("verify", _)) => Ok(ControlRequest::Verify),
        _ => Err(Failure::new("expected load, reconnect or verify")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_are_written() {
        let latencies: Latencies = [5, 5, 900].into_iter().map(Duration::from_micros).collect();
        let load =
            LoadResult { exchanges: 3, verified_bytes: 7, elapsed: Duration::from_nanos(99), latencies };
        let read = parse_answer(&format_answer(&load)).expect("well-formed");
        assert_eq!((read.exchanges, read.verified_bytes, read.elapsed), (3, 7, load.elapsed));
        let quantiles = |load: &LoadResult| [0.3, 0.9].map(|part| load.latencies.quantile_us(part));
        assert_eq!((read.latencies.len(), quantiles(&read)), (3, quantiles(&load)));
        assert_eq!(parse_answer("1 2 3\n").expect("no latencies").latencies.len(), 0);
        for bad in ["", "1 2", "1 2 x", "1 2 3 4", "1 2 3 4:", "1 2 3 -1:2", "ready"] {
            assert!(parse_answer(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn requests_are_a_verb_and_a_number() {
        assert_eq!(parse_request("load 7"), Ok(ControlRequest::Load(Duration::from_nanos(7))));
        assert_eq!(
            (parse_request("reconnect 0"), parse_request("verify 0")),
            (Ok(ControlRequest::Reconnect), Ok(ControlRequest::Verify))
        );
        for bad in ["", "load", "load x", "stop 0"] {
            assert!(parse_request(bad).is_err(), "{bad}");
        }
    }
}
