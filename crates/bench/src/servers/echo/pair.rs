//! Both ends of an echo, each a process of its own under the same side: see [`remote`].

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::client::EchoClient;
use super::server::{Reply, Touched, Work, serve};
use crate::kit::network::server_address;
use crate::kit::processors::{self, bind_to};
use crate::kit::traffic::{Load, Period};
use crate::kit::{
    Experiment, Failure, Outcome, Result, Running, Server, TemporaryDirectory, While, copies_parser, remote,
    size_parser,
};

/// Name of the server's socket, where it is a UNIX socket.
const SERVER: &str = "server";

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
    #[arg(long, value_name = "SIZE", value_parser = size_parser())]
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
            remote::obey(|| Ok(Box::new(self.start()?)))?;
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

    /// Starts the server, and connects to it.
    fn start(&self) -> Result<Ends> {
        let exe = std::env::current_exe().doing("finding the path of uncopy")?;
        let mut command = Command::new(exe);
        command.arg("bench").args(arguments(self.transport, self.size, self.copies)).arg("--server");
        processors::bind(&mut command, processors::of_server(1));
        let mut server = Server::start(command, "the echo server", TemporaryDirectory::make()?)?;
        let port = server.first_line()?.trim().parse();
        let port = port.map_err(|_| Failure::new("the server printed no port"))?;
        bind_to(processors::of_clients(1))?;
        let address = SocketAddr::from((server_address(), port));
        let (transport, size_bytes) = (self.transport, self.size);
        let mut ends = Ends { client: None, server, address, transport, size_bytes, made: 0 };
        ends.reconnect()?;
        Ok(ends)
    }
}

/// A client and its server.
struct Ends {
    // Dropped in this order: the connection ends before the server.
    client: Option<Client>,
    server: Server,
    address: SocketAddr,
    transport: Transport,
    size_bytes: usize,
    /// Connections made so far.
    made: u64,
}

enum Client {
    Tcp(EchoClient<TcpStream>),
    Unix(EchoClient<UnixStream>),
}

impl Running for Ends {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        match &mut self.client {
            None => Err(Failure::new("it is not connected")),
            Some(Client::Tcp(client)) => client.run(Period::from_now(duration)),
            Some(Client::Unix(client)) => client.run(Period::from_now(duration)),
        }
    }

    fn reconnect(&mut self) -> Result<()> {
        // The server serves one after the other.
        self.client = None;
        self.made += 1;
        let (size_bytes, reply) = (self.size_bytes, Reply::Echo);
        self.client = Some(match self.transport {
            Transport::Tcp => {
                Client::Tcp(EchoClient::<TcpStream>::connect(self.address, size_bytes, reply, self.made)?)
            }
            Transport::Unix => {
                let stream = UnixStream::connect(self.server.directory().join(SERVER));
                let stream = stream.doing("connecting to the echo server")?;
                Client::Unix(EchoClient::over(stream, size_bytes, reply, self.made))
            }
        });
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        // The server has no end of its own: it is killed where this is dropped.
        self.client = None;
        Ok(())
    }
}
