//! Both ends of an echo, each a process of its own under the same side: the client is the first process, the server its child.
//!
//! The client does what it is told over a UNIX socket in its working directory, [`CONTROL`]: lines of a verb and a number.
//!
//! ```text
//! load NS        exchanges messages for so long   answer: EXCHANGES VERIFIED_BYTES ELAPSED_NS, or "failed: WHY"
//! reconnect 0    connects anew                    answer: 0 0 0
//! ```

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::client::EchoClient;
use super::server::{Reply, Touched, Work, serve};
use crate::kit::network::server_address;
use crate::kit::processors::{self, bind_to};
use crate::kit::traffic::Load;
use crate::kit::{Experiment, Failure, Outcome, Result, While, copies_parser, size_parser};

/// Name of the socket over which the client is told what to do.
pub const CONTROL: &str = "control";
/// Name of the server's socket, where it is a UNIX socket.
const SERVER: &str = "server";
/// How long an answer may take beyond what was asked for.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What lies between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// TCP over the loopback device
    Tcp,
    /// A UNIX socket
    Unix,
}

impl Transport {
    /// Its name in titles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "UNIX",
        }
    }
}

/// Both ends of an echo
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct EchoPair {
    /// What lies between them
    #[arg(long, value_enum)]
    pub transport: Transport,
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", value_parser = size_parser())]
    pub size: usize,
    /// Copies that the server makes of each message
    #[arg(long, value_name = "N", value_parser = copies_parser())]
    pub copies: usize,
    /// Be the server
    #[arg(long)]
    pub server: bool,
}

impl Experiment for EchoPair {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        if self.server {
            self.serve()?
        } else {
            self.converse()?
        }
        Ok(Outcome::Status(0))
    }
}

/// The command line of the pair after the word `bench`.
#[must_use]
pub fn arguments(transport: Transport, size_bytes: usize, copies: usize) -> Vec<String> {
    let transport = transport.name().to_lowercase();
    let values = [("transport", transport), ("size", size_bytes.to_string()), ("copies", copies.to_string())];
    let words = values.into_iter().map(|(name, value)| format!("--{name}={value}"));
    std::iter::once("echo-pair".to_owned()).chain(words).collect()
}

impl EchoPair {
    /// The server: prints its port, and serves one connection after the other.
    fn serve(&self) -> Result<()> {
        let work = Work { size_bytes: self.size, copies: self.copies, ..Work::default() };
        let touched = Touched::default();
        let what = "listening";
        let announce = |port: u16| {
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout, "{port}").and_then(|()| stdout.flush()).doing("printing the port")
        };
        // Whatever a connection comes to, the next one is served.
        match self.transport {
            Transport::Tcp => {
                let listener = TcpListener::bind((server_address(), 0)).doing(what)?;
                announce(listener.local_addr().doing(what)?.port())?;
                loop {
                    let (stream, _) = listener.accept().doing("accepting")?;
                    stream.set_nodelay(true).doing("accepting")?;
                    let _ = serve(&stream, work, &touched);
                }
            }
            Transport::Unix => {
                let listener = UnixListener::bind(SERVER).doing(what)?;
                announce(0)?;
                loop {
                    let (stream, _) = listener.accept().doing("accepting")?;
                    let _ = serve(&stream, work, &touched);
                }
            }
        }
    }

    /// The client: starts the server and does what it is told until nobody tells it any more.
    fn converse(&self) -> Result<()> {
        let control = UnixListener::bind(CONTROL).doing("making the control socket")?;
        let (_server, port) = self.start()?;
        bind_to(processors::of_clients(1))?;
        let address = SocketAddr::from((server_address(), port));
        let mut made = 0;
        let mut connect = || -> Result<Box<dyn Converse>> {
            made += 1;
            let (size, reply) = (self.size, Reply::Echo);
            Ok(match self.transport {
                Transport::Tcp => Box::new(EchoClient::<TcpStream>::connect(address, size, reply, made)?),
                Transport::Unix => {
                    let stream = UnixStream::connect(SERVER).doing("connecting to the server")?;
                    Box::new(EchoClient::over(stream, size, reply, made))
                }
            })
        };
        let mut client = Some(connect()?);
        println!("ready");
        let (mut control, _) = control.accept().doing("waiting for the control connection")?;
        let mut lines = BufReader::new(control.try_clone().doing("reading the control connection")?);
        let mut line = String::new();
        while lines.read_line(&mut line).doing("reading the control connection")? > 0 {
            let done = match line.trim_end().split_once(' ') {
                Some(("load", ns)) => {
                    ns.parse().map_err(|_| Failure::new("a length of time was expected")).and_then(|ns| {
                        client.as_mut().map_or_else(
                            || Ok(Load::default()),
                            |client| client.exchange(Duration::from_nanos(ns)),
                        )
                    })
                }
                Some(("reconnect", _)) => {
                    // The server serves one after the other.
                    client = None;
                    connect().map(|connected| {
                        client = Some(connected);
                        Load::default()
                    })
                }
                _ => Err(Failure::new("a verb was expected")),
            };
            let mut answer = String::new();
            let written = match done {
                Ok(load) => {
                    let ns = load.elapsed.as_nanos();
                    writeln!(answer, "{} {} {ns}", load.exchanges, load.verified_bytes)
                }
                Err(failure) => writeln!(answer, "failed: {}", failure.to_string().replace('\n', " ")),
            };
            written.map_err(|_| Failure::new("an answer could not be written"))?;
            control.write_all(answer.as_bytes()).doing("answering")?;
            line.clear();
        }
        Ok(())
    }

    /// Starts the server; the port that it prints.
    fn start(&self) -> Result<(Ended, u16)> {
        let exe = std::env::current_exe().doing("finding the path of uncopy")?;
        let mut command = Command::new(exe);
        command.arg("bench").args(arguments(self.transport, self.size, self.copies)).arg("--server");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        processors::bind(&mut command, processors::of_server(1));
        let mut server = Ended(command.spawn().doing("starting the server")?);
        let mut line = String::new();
        let stdout = server.0.stdout.take().ok_or_else(|| Failure::new("the server has no output"))?;
        BufReader::new(stdout).read_line(&mut line).doing("waiting for the server")?;
        let port = line.trim().parse().map_err(|_| Failure::new("the server printed no port"))?;
        Ok((server, port))
    }
}

/// A child that is ended with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

trait Converse {
    fn exchange(&mut self, duration: Duration) -> Result<Load>;
}

impl<S: Read + Write> Converse for EchoClient<S> {
    fn exchange(&mut self, duration: Duration) -> Result<Load> {
        self.run(duration)
    }
}

/// The control connection of a pair.
#[derive(Debug)]
pub struct Control {
    stream: UnixStream,
}

impl Control {
    /// Connects to the pair whose working directory this is, once it is ready.
    ///
    /// # Errors
    /// [`Failure`] when it does not listen.
    pub fn connect(directory: &Path) -> Result<Self> {
        let stream = UnixStream::connect(directory.join(CONTROL)).doing("connecting to the pair")?;
        Ok(Self { stream })
    }

    /// Exchanges messages for `duration`.
    ///
    /// # Errors
    /// [`Failure`] as [`EchoClient::run`], or where the pair does not answer.
    pub fn load(&mut self, duration: Duration) -> Result<Load> {
        let [exchanges, verified_bytes, ns] = self.tell("load", duration)?;
        let elapsed = Duration::from_nanos(ns);
        Ok(Load { exchanges, verified_bytes, elapsed, ..Load::default() })
    }

    /// Connects the two ends anew.
    ///
    /// # Errors
    /// [`Failure`] when that fails.
    pub fn reconnect(&mut self) -> Result<()> {
        self.tell("reconnect", Duration::ZERO).map(drop)
    }

    /// Tells it that it may end.
    pub fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn tell(&mut self, verb: &str, duration: Duration) -> Result<[u64; 3]> {
        let what = "asking the pair";
        self.stream.set_read_timeout(Some(duration + TIMEOUT)).doing(what)?;
        writeln!(self.stream, "{verb} {}", duration.as_nanos()).doing(what)?;
        let mut answer = String::new();
        let mut byte = [0];
        while self.stream.read(&mut byte).doing(what)? == 1 && byte[0] != b'\n' {
            answer.push(char::from(byte[0]));
        }
        let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        numbers
            .try_into()
            .map_err(|_| Failure::new(format!("the pair answered \"{}\"", answer.escape_debug())))
    }
}
