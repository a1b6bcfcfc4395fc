//! A server whose clients are in another process, so that both ends are under the same side. The first process has the
//! clients, the server is its child; it does what it is told over a UNIX socket in its working directory, [`CONTROL`], by
//! lines of a verb and a number:
//!
//! ```text
//! load NS        exchanges for so long        answer: EXCHANGES VERIFIED_BYTES ELAPSED_NS, or "failed: WHY"
//! reconnect 0    connects its clients anew            0 0 0
//! verify 0       verifies what no load could          0 VERIFIED_BYTES 0
//! ```
//!
//! It ends when nobody tells it any more.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use crate::kit::failure::{Failure, Result, While};
use crate::kit::processes::cleanup::TemporaryDirectory;
use crate::kit::processes::process::Server;
use crate::kit::running::Running;
use crate::kit::traffic::Load;

/// Name of the socket.
const CONTROL: &str = "control";
/// What the process prints when its clients are connected.
const READY: &str = "ready";
/// How long an answer, or the end, may take beyond what was asked for.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer, bytes.
const MAX_ANSWER_BYTES: usize = 4096;

/// What is measured in another process. The processor time is that of both ends.
pub struct Remote {
    control: UnixStream,
    server: Server,
}

impl Remote {
    /// Starts `command`, a program that calls [`obey`], in `directory`, and waits until its clients are connected.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started or is not ready in time.
    pub fn start(command: Command, title: &str, directory: TemporaryDirectory) -> Result<Self> {
        let mut server = Server::start(command, title, directory)?;
        server.first_line()?;
        let control = UnixStream::connect(server.directory().join(CONTROL));
        let control = control.doing(format_args!("connecting to {title}"));
        let control = control.map_err(|failure| server.process().explain(&failure))?;
        Ok(Self { control, server })
    }

    fn tell(&mut self, verb: &str, duration: Duration) -> Result<[u64; 3]> {
        let what = "telling the clients what to do";
        self.control.set_read_timeout(Some(duration + TIMEOUT)).doing(what)?;
        writeln!(self.control, "{verb} {}", duration.as_nanos()).doing(what)?;
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while answer.len() < MAX_ANSWER_BYTES
            && self.control.read(&mut byte).doing(what)? == 1
            && byte[0] != b'\n'
        {
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer);
        if let Some(why) = answer.strip_prefix("failed: ") {
            return Err(Failure::new(why));
        }
        let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        let bad = |_| Failure::new(format!("the clients answered \"{}\"", answer.escape_debug()));
        numbers.try_into().map_err(bad)
    }
}

impl Running for Remote {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        let [exchanges, verified_bytes, ns] = self.tell("load", duration)?;
        Ok(Load { exchanges, verified_bytes, elapsed: Duration::from_nanos(ns), ..Load::default() })
    }

    fn reconnect(&mut self) -> Result<()> {
        self.tell("reconnect", Duration::ZERO).map(drop)
    }

    fn verify(&mut self) -> Result<u64> {
        self.tell("verify", Duration::ZERO).map(|[_, verified_bytes, _]| verified_bytes)
    }

    fn stop(&mut self) -> Result<()> {
        let _ = self.control.shutdown(Shutdown::Both);
        // Told nothing more, it ends; if it does not, it is made to.
        match self.server.process().wait(TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                let said = self.server.last_words();
                Err(Failure::new(format!("the clients ended with {status}; stderr: {said}")))
            }
            None => self.server.process().stop(),
        }
    }
}

/// Starts a server with its clients in this process, and does with them what it is told until nobody tells it any more.
///
/// # Errors
/// As `start`, and when the server does not end as it should.
pub fn obey<'a>(start: impl FnOnce() -> Result<Box<dyn Running + 'a>>) -> Result<()> {
    let listener = UnixListener::bind(CONTROL).doing("making the control socket")?;
    let mut running = start()?;
    println!("{READY}");
    let (control, _) = listener.accept().doing("waiting for the control connection")?;
    let answered = answer(running.as_mut(), control);
    let stopped = running.stop();
    answered.and(stopped)
}

fn answer(running: &mut (dyn Running + '_), mut control: UnixStream) -> Result<()> {
    let lines = BufReader::new(control.try_clone().doing("reading the control connection")?).lines();
    for line in lines {
        let line = line.doing("reading the control connection")?;
        let done = match line.split_once(' ') {
            Some(("load", ns)) => {
                let ns: Result<u64> = ns.parse().map_err(|_| Failure::new("a length of time was expected"));
                ns.and_then(|ns| running.load(Duration::from_nanos(ns)))
            }
            Some(("reconnect", _)) => running.reconnect().map(|()| Load::default()),
            Some(("verify", _)) => {
                running.verify().map(|verified_bytes| Load { verified_bytes, ..Load::default() })
            }
            _ => Err(Failure::new("a verb was expected")),
        };
        let answer = match done {
            Ok(load) => format!("{} {} {}\n", load.exchanges, load.verified_bytes, load.elapsed.as_nanos()),
            Err(failure) => format!("failed: {}\n", failure.to_string().replace('\n', " ")),
        };
        control.write_all(answer.as_bytes()).doing("answering")?;
    }
    Ok(())
}
