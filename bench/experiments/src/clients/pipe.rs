//! A client of a forwarding proxy, and the server behind the proxy. The server returns a message once it has
//! received all of it, so that the proxy copies every byte twice, once in each direction.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::CpuSet;

use super::{Client, Stream, Value};
use crate::kit::processors::bind_thread;
use crate::kit::traffic::Exchange;
use crate::kit::{Failure, Result, While};

const NAME: &str = "the proxy";

/// A connection through the proxy.
#[derive(Debug)]
pub struct Echoes {
    stream: Stream,
    value: Value,
}

impl Echoes {
    /// Opens the `number`th connection, for messages of `size_bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the proxy refuses the connection.
    pub fn open(proxy: SocketAddr, size_bytes: usize, number: u64) -> Result<Self> {
        Ok(Self { stream: Stream::open(proxy, NAME)?, value: Value::new(size_bytes, number) })
    }
}

impl Client for Echoes {
    fn exchange(&mut self, _number: u64) -> Result<Exchange> {
        let stream = &mut self.stream;
        self.value.exchange(NAME, |value, received| {
            stream.send(&[value])?;
            stream.message(value.len(), received)
        })
    }
}

/// Messages through the proxy with a connection each.
#[derive(Debug)]
pub struct ShortEchoes {
    proxy: SocketAddr,
    size_bytes: usize,
    number: u64,
}

impl ShortEchoes {
    /// Makes the `number`th client, for messages of `size_bytes`.
    #[must_use]
    pub const fn new(proxy: SocketAddr, size_bytes: usize, number: u64) -> Self {
        Self { proxy, size_bytes, number }
    }
}

impl Client for ShortEchoes {
    fn exchange(&mut self, number: u64) -> Result<Exchange> {
        Echoes::open(self.proxy, self.size_bytes, self.number)?.exchange(number)
    }
}

/// Interval at which the server checks whether to end.
const PERIOD: Duration = Duration::from_millis(100);

/// The server behind the proxy: threads of this program, which end when the value is dropped.
#[derive(Debug)]
pub struct Backend {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    /// Listens at a free port of `address` for messages of `size_bytes`, in threads on `processors`.
    ///
    /// # Errors
    /// [`Failure`] when no port is free or a thread cannot be started.
    pub fn start(address: IpAddr, size_bytes: usize, processors: Option<CpuSet>) -> Result<Self> {
        let listener = TcpListener::bind((address, 0)).doing("listening behind the proxy")?;
        let address = listener.local_addr().doing("listening behind the proxy")?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = std::thread::Builder::new()
            .name("backend".to_owned())
            .spawn(move || {
                // Other processors only make it slower.
                let _ = bind_thread(processors);
                accept(&listener, size_bytes, &stop);
            })
            .doing("starting a thread")?;
        Ok(Self { address, stopping, thread: Some(thread) })
    }

    /// Returns the address at which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections.
        drop(TcpStream::connect_timeout(&self.address, PERIOD));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, size_bytes: usize, stopping: &AtomicBool) {
    std::thread::scope(|scope| {
        while let Ok((stream, _)) = listener.accept() {
            if stopping.load(Ordering::Relaxed) {
                break;
            }
            scope.spawn(move || {
                // The client reports wrong and missing bytes.
                let _ = echo(stream, size_bytes, stopping);
            });
        }
    });
}

fn echo(mut stream: TcpStream, size_bytes: usize, stopping: &AtomicBool) -> Result<()> {
    let what = "echoing behind the proxy";
    stream.set_nodelay(true).doing(what)?;
    stream.set_read_timeout(Some(PERIOD)).doing(what)?;
    stream.set_write_timeout(Some(super::TIMEOUT)).doing(what)?;
    let mut message = vec![0; size_bytes];
    loop {
        let mut filled = 0;
        while filled < size_bytes {
            match stream.read(&mut message[filled..]) {
                Ok(0) => return Ok(()),
                Ok(got) => filled += got,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if stopping.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                }
                Err(error) => return Err(Failure::while_doing(what, &error)),
            }
        }
        stream.write_all(&message).doing(what)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn messages_come_back_as_they_were_sent() {
        let backend = Backend::start(Ipv4Addr::LOCALHOST.into(), 100_000, None).expect("a free port");
        // The client is connected directly, without a proxy.
        let mut client = Echoes::open(backend.address(), 100_000, 1).expect("accepted");
        for number in 0..3 {
            let done = client.exchange(number).expect("the same bytes");
            assert_eq!(done.verified_bytes, 100_000);
        }
    }
}
