//! The experiment on ways to transmit (ZCopy §4, zIO §5.3.1): one thread repeatedly sends bodies of a set, in irregular
//! order, each with a header and a trailer, as a cache does; another reads, compares every byte and acknowledges.
//!
//! Both threads are in this program, so that only the way differs. Only the sender's processor time counts.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths of messages, structures, options"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use uncopy_transmit::{ProgramFd, set_break_even};

use crate::experiments::transmit::bodies::{Bodies, checked};
use crate::experiments::transmit::sender::{
    BATCH, HEADER_BYTES, SEND_FILE, SEND_ZC, SPLICE, Sender, WINDOW, ZERO_COPY, trailer,
};
use crate::kit::figures::{self, LEGEND};
use crate::kit::network::{client_address, in_server_namespace, server_address};
use crate::kit::processes::cpu_time::thread_cpu_ns;
use crate::kit::{
    CommonOptions, Comparison, Experiment, Failure, Outcome, Plot, Progress, Report, ReportEntry, Result,
    Rounds, Sample, Scale, Side, While, claim, entry, format_size, processors, run_with_noise_reduction,
    seconds, size_parser,
};
use crate::servers::sending::ways::enable_zerocopy;

mod bodies;
mod first_writes;
mod send_zc;
mod sender;

/// Maximum number of bytes in flight.
const WINDOW_BYTES: usize = 512 << 10;
/// Maximum length of a body in a datagram with header and trailer, bytes.
const DATAGRAM_BODY_BYTES: usize = 60 << 10;
/// Time limit of a wait for the other end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of messages before the clock starts.
const WARM_UP: u64 = 200;

/// Ways to transmit: copied, spliced, sendfile, MSG_ZEROCOPY, SENDMSG_ZC, and what uncopy chooses (ZCopy, section 4)
#[derive(Debug, Args)]
pub struct Transmit {
    /// Body sizes, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "1024,4096,8192,16384,32768,61440,131072,262144,524288,1048576",
        default_value_if("quick", "true", "1024,16384,61440,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Sockets that messages pass through
    #[arg(
        long,
        value_name = "SOCKET,...",
        default_value = "tcp,unix,udp",
        value_delimiter = ',',
        value_enum
    )]
    pub sockets: Vec<Socket>,
    /// Total size of all bodies, in bytes; 1: a single body, which stays in the processor's cache
    #[arg(long, value_name = "SIZE", default_value = "67108864", value_parser = size_parser())]
    pub set: usize,
    /// Number of rounds; each runs every side once. N..M: from N to M rounds, until the medians are precise
    #[arg(long, value_name = "N|N..M", default_value = "7", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Approximate duration of each measurement
    #[arg(long, value_name = "SECONDS", default_value = "0.3", default_value_if("quick", "true", "0.05"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Transmit {
    const ENTRIES: &'static [ReportEntry] = &[entry(
        "transmit",
        "Ways to transmit, and the first write to a page in flight",
        &[claim(
            "ZCopy, Table 2 (§4.3)",
            "A write-protection fault takes 2,803 cycles, a native page fault 6,247, a getpid 1,150.",
        )],
        "transmit --sizes 4096,16384,61440,262144,1048576 --rounds 5..7",
        "transmit --quick",
    )];
    const REPORT_POSITION: u8 = 130;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |_, progress| {
            let mut comparisons = self.measure(progress);
            comparisons.push(first_writes::measure(self.rounds, progress));
            Ok(Report::of(comparisons, render, plot))
        })
    }
}

/// A kind of socket that messages pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Socket {
    /// TCP connection to the reader
    Tcp,
    /// UNIX stream to the reader
    Unix,
    /// A connected UDP socket; bodies up to 60 KiB
    Udp,
}

impl Socket {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "UNIX",
            Self::Udp => "UDP",
        }
    }

    /// Returns the sending end, which is at the server's address, and the receiving one.
    fn pair(self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok(match self {
            Self::Tcp => {
                let listener = TcpListener::bind((client_address(), 0))?;
                let address = listener.local_addr()?;
                let here = in_server_namespace(|| TcpStream::connect(address))?;
                let (there, _) = listener.accept()?;
                here.set_nodelay(true)?;
                there.set_nodelay(true)?;
                (here.into(), there.into())
            }
            Self::Unix => {
                let (here, there) = UnixStream::pair()?;
                (here.into(), there.into())
            }
            Self::Udp => {
                let here = in_server_namespace(|| UdpSocket::bind((server_address(), 0)))?;
                let there = UdpSocket::bind((client_address(), 0))?;
                here.connect(there.local_addr()?)?;
                there.connect(here.local_addr()?)?;
                (here.into(), there.into())
            }
        })
    }
}

/// Reads, compares and acknowledges messages, until the sender closes. Returns the number of bytes compared.
fn receive(fd: OwnedFd, bodies: &Bodies) -> Result<u64> {
    let len = HEADER_BYTES + bodies.len + trailer().len();
    let mut file = std::fs::File::from(fd);
    let mut buffer = vec![0; len.max(64 << 10)];
    let (mut verified, mut number) = (0u64, 0u64);
    loop {
        let mut filled = 0;
        while filled < len {
            // A datagram that is too long is truncated, and the next message is found to be wrong.
            match file.read(&mut buffer[filled..len]).doing("reading a message")? {
                0 | 1 if filled == 0 => return Ok(verified),
                0 => return Err(Failure::new("a message was truncated")),
                more => filled += more,
            }
        }
        let right = filled == len
            && buffer[..8] == number.to_le_bytes()
            && buffer[HEADER_BYTES..len - trailer().len()] == *bodies.body(number)
            && buffer[len - trailer().len()..len] == *trailer();
        if !right {
            return Err(Failure::new(format!("message {number} has wrong bytes")));
        }
        number += 1;
        verified += len as u64;
        file.write_all(b".").doing("acknowledging")?;
    }
}

/// Sends under a side for about `duration`.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn sample(socket: Socket, side: Side, bodies: &Bodies, duration: Duration) -> Result<Sample> {
    let (here, there) = socket.pair().doing("creating a connection")?;
    for fd in [&here, &there] {
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(fd, which, Some(TIMEOUT)).doing("setting a time limit")?;
        }
    }
    if side == ZERO_COPY {
        enable_zerocopy(here.as_fd()).doing("SO_ZEROCOPY")?;
    }
    set_break_even((side != Side::Uncopy).then_some(1));
    let fd = here.as_raw_fd();
    uncopy_transmit::declare_owner(ProgramFd::new(fd), uncopy_transmit::SocketOwner::default());
    let mut sender = Sender::new(fd, side, bodies);
    let window = (WINDOW_BYTES / sender.len()).clamp(1, if socket == Socket::Udp { 2 } else { WINDOW });
    let (verified, sent) = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            processors::bind_thread(processors::of_clients(1))?;
            receive(there, bodies)
        });
        let sending = scope.spawn(|| {
            processors::bind_thread(processors::of_server(1))?;
            send(&mut sender, duration, window)
        });
        let sent = sending.join().unwrap_or_else(|_| Err(Failure::new("the sender panicked")));
        drop(signal_end(socket, here));
        (receiver.join().unwrap_or_else(|_| Err(Failure::new("the reader panicked"))), sent)
    });
    set_break_even(None);
    // If the sender fails, its error says more than the reader's.
    let (messages, elapsed, cpu) = sent?;
    let verified = verified?;
    Ok(Sample {
        operations_per_s: Some(messages as f64 / elapsed.as_secs_f64()),
        cpu_us: Some(cpu.as_secs_f64() * 1e6 / messages.max(1) as f64),
        verified_bytes: Some(verified),
        ..Sample::default()
    })
}

/// Tells the reader that no message follows.
fn signal_end(socket: Socket, here: OwnedFd) -> OwnedFd {
    if socket == Socket::Udp {
        // SAFETY: send(2) reads one byte of a static string.
        unsafe { libc::send(here.as_raw_fd(), b".".as_ptr().cast(), 1, 0) };
    }
    here
}

/// Sends for `duration`. Returns the number of messages, and the elapsed and processor time.
fn send(sender: &mut Sender<'_>, duration: Duration, window: usize) -> Result<(u64, Duration, Duration)> {
    let (mut sent, mut acknowledged) = (0u64, 0u64);
    let mut measured_from = None;
    let result = loop {
        // The first messages fill caches and the policy's accounts.
        if measured_from.is_none() && sent >= WARM_UP {
            measured_from = Some((sent, Instant::now(), thread_cpu_ns()));
        }
        if let Some((messages, start, start_cpu_ns)) = measured_from
            && sent % BATCH as u64 == 0
            && start.elapsed() >= duration
        {
            break (sent - messages, start.elapsed(), Duration::from_nanos(thread_cpu_ns() - start_cpu_ns));
        }
        sender.send().doing("sending")?;
        sent += 1;
        while sent - acknowledged >= window as u64 {
            acknowledged += acknowledgement(sender.fd())?;
        }
    };
    while acknowledged < sent {
        acknowledged += acknowledgement(sender.fd())?;
    }
    Ok(result)
}

/// Waits for acknowledgements and returns their number.
fn acknowledgement(fd: i32) -> Result<u64> {
    let mut read = [0u8; WINDOW];
    // SAFETY: recv(2) writes at most `read.len()` bytes to `read`, a local array of that length.
    let count = checked(unsafe { libc::recv(fd, read.as_mut_ptr().cast(), read.len(), 0) });
    match count.doing("waiting for an acknowledgement")? {
        0 => Err(Failure::new("the reader closed the connection")),
        more => Ok(more as u64),
    }
}

impl Transmit {
    /// Makes a comparison for each socket and size.
    #[expect(clippy::cast_precision_loss, reason = "sizes of bodies")]
    fn measure(&self, progress: &mut Progress) -> Vec<Comparison> {
        let mut comparisons = Vec::new();
        for socket in &self.sockets {
            for body_bytes in &self.sizes {
                let mut sides = vec![Side::Plain, SPLICE, SEND_FILE, ZERO_COPY, SEND_ZC, Side::Uncopy];
                match socket {
                    Socket::Tcp => {}
                    // A datagram that begins with MSG_MORE and ends with a send would be a third one for sendfile.
                    Socket::Udp if *body_bytes > DATAGRAM_BODY_BYTES => continue,
                    Socket::Udp => sides.retain(|side| *side != SEND_FILE),
                    // UNIX sockets have no MSG_ZEROCOPY, and so no SENDMSG_ZC.
                    Socket::Unix => sides.retain(|side| !matches!(*side, ZERO_COPY | SEND_ZC)),
                }
                let title = format!("{} {}", socket.name(), format_size(*body_bytes as u64));
                let len = (HEADER_BYTES + body_bytes + trailer().len()) as u64;
                let mut comparison =
                    Comparison::new(&title, len, &sides).with_parameter("size_bytes", *body_bytes as f64);
                match Bodies::new(*body_bytes, self.set).doing("creating the bodies") {
                    Err(failure) => comparison.fail(&failure),
                    Ok(bodies) => self.rounds.run_one(&mut comparison, progress, |side, _| {
                        sample(*socket, side, &bodies, self.seconds)
                    }),
                }
                comparisons.push(comparison);
            }
        }
        comparisons
    }
}

fn render(comparisons: &[Comparison]) -> String {
    format!(
        "{}\n\
         plain: one sendmsg of header, body and trailer\n\
         spliced: by reference at every size\n\
         sendfile: the body from a file in memory, header and trailer by send\n\
         MSG_ZEROCOPY: with completions read in batches\n\
         SENDMSG_ZC: by io_uring\n\
         uncopy: the way that uncopy chooses\n\
         first write to a page: plain is a new page of the kernel; protected is a page whose transmission has \
         completed;\n\
         in flight is a page that the write replaces by a copy. p50 is the time of the write.\n\
         CPU is that of the sender.\n\
         {LEGEND}",
        figures::table(comparisons, &[])
    )
}

/// Plots processor time relative to plain over the length of bodies.
fn plot(comparisons: &[Comparison]) -> Plot {
    let mut series = Vec::new();
    for socket in [Socket::Tcp, Socket::Unix, Socket::Udp] {
        let of_socket: Vec<Comparison> = comparisons
            .iter()
            .filter(|comparison| comparison.title().starts_with(socket.name()))
            .cloned()
            .collect();
        let x = ("body size", Scale::Doubling);
        let plot = Plot::by_side("", x, "", &of_socket, "size_bytes", |comparison, side| {
            (side != Side::Plain).then(|| comparison.ratio(side, figures::CPU)).flatten()
        });
        for mut line in plot.series.into_iter().filter(|line| !line.points.is_empty()) {
            line.name = format!("{}, {}", socket.name(), line.name);
            series.push(line);
        }
    }
    Plot {
        title: "Ways to transmit".to_owned(),
        x: ("body size".to_owned(), Scale::Doubling),
        y: "sender's processor time over plain".to_owned(),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_sends_the_right_bytes() {
        for socket in [Socket::Tcp, Socket::Unix, Socket::Udp] {
            for body_bytes in [1, 5000, 60 << 10] {
                let options = Transmit {
                    sizes: vec![body_bytes],
                    sockets: vec![socket],
                    set: 1 << 20,
                    rounds: Rounds::exactly(1),
                    seconds: Duration::from_millis(5),
                    common: CommonOptions::default(),
                };
                let comparisons = options.measure(&mut Progress::new());
                assert!(comparisons[0].is_verified(), "{:?}", comparisons[0].notes());
            }
        }
    }
}
