//! The experiment on ways to transmit (ZCopy §4, zIO §5.3.1): one thread sends bodies of a set again and again, in no
//! order, each with a header and a trailer, as a cache does; another reads, compares every byte and acknowledges.
//!
//! Both run in this program, so that only the way differs. The sender's own processor time counts.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths of messages, structures, options"
)]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use uncopy_transmit::{Envelope, Errno, Part, set_break_even};

use crate::experiments::transmit::send_zc::ZeroCopyRing;
use crate::kit::arguments::{Form, seconds, size_parser};
use crate::kit::comparison::{Comparison, Sample};
use crate::kit::experiment::{Entry, Experiment, Outcome, claim, entry, measured};
use crate::kit::failure::{Failure, Result, While};
use crate::kit::figures::{self, LEGEND};
use crate::kit::network::{among_servers, client_address, server_address};
use crate::kit::plot::{Plot, Scale};
use crate::kit::processes::cpu_time::thread_cpu_ns;
use crate::kit::processors;
use crate::kit::progress::Progress;
use crate::kit::random::Random;
use crate::kit::report::Report;
use crate::kit::rounds::Rounds;
use crate::kit::side::Side;
use crate::kit::table::size;

pub mod mutations;
mod send_zc;

/// By vmsplice and splice, whatever the size.
const SPLICE: Side = Side::Way("spliced");
/// The body by sendfile from a file in memory.
const SEND_FILE: Side = Side::Way("sendfile");
/// By MSG_ZEROCOPY.
const ZERO_COPY: Side = Side::Way("zerocopy");
/// By io_uring's SENDMSG_ZC.
const SEND_ZC: Side = Side::Way("send_zc");
const PAGE_BYTES: usize = 4096;
/// In front of each body: as long as a cache's `VALUE key flags bytes`.
const HEADER_BYTES: usize = 48;
/// Behind each body.
static TRAILER: OnOnePage<[u8; 7]> = OnOnePage(*b"\r\nEND\r\n");

/// Few bytes that do not lie across the end of a page: MSG_ZEROCOPY takes 17 pages of a datagram, and 15 are the largest
/// body's.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct OnOnePage<T>(T);
/// Bytes under way at a time, at most; and messages.
const WINDOW_BYTES: usize = 512 << 10;
const WINDOW: usize = 8;
/// The largest body that goes into a datagram with header and trailer.
const DATAGRAM_BODY_BYTES: usize = 60 << 10;
/// Longest wait for the other end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Messages before the clock starts.
const WARM_UP: u64 = 200;
/// Messages between two looks at the clock.
const BATCH: usize = 16;

/// Ways to transmit: copied, spliced, sendfile, MSG_ZEROCOPY, SENDMSG_ZC, and what uncopy chooses (ZCopy, section 4)
#[derive(Debug, Args)]
pub struct Transmit {
    /// Lengths of bodies, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "1024,4096,8192,16384,32768,61440,131072,262144,524288,1048576",
        default_value_if("quick", "true", "1024,16384,61440,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// What they go through
    #[arg(
        long,
        value_name = "SOCKET,...",
        default_value = "tcp,unix,udp",
        value_delimiter = ',',
        value_enum
    )]
    pub sockets: Vec<Socket>,
    /// Bytes of all bodies together; 1: the same body each time, which stays in the processor's cache
    #[arg(long, value_name = "BYTES", default_value = "67108864", value_parser = size_parser())]
    pub set: usize,
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "7", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.3", default_value_if("quick", "true", "0.05"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Transmit {
    const ENTRIES: &'static [Entry] = &[entry(
        "transmit",
        "Ways to transmit, and a write to what is in flight",
        &[claim(
            "ZCopy, Table 2 (§4.3)",
            "A write-protection fault takes 2,803 cycles, a native page fault 6,247, a getpid 1,150.",
        )],
        "transmit --sizes 4096,16384,61440,262144,1048576 --rounds 5..7",
        "transmit --quick",
    )];
    const PLACE: u8 = 130;

    fn run(&self) -> Result<Outcome> {
        measured(&self.form, |_, progress| {
            let mut comparisons = self.measure(progress);
            comparisons.push(mutations::measure(self.rounds, progress));
            Ok(Report::of(comparisons, render, plot))
        })
    }
}

/// What the messages go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Socket {
    /// A TCP connection
    Tcp,
    /// A UNIX stream
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

    /// The sending end, which is where servers are, and the receiving one.
    fn pair(self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok(match self {
            Self::Tcp => {
                let listener = TcpListener::bind((client_address(), 0))?;
                let address = listener.local_addr()?;
                let here = among_servers(|| TcpStream::connect(address))?;
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
                let here = among_servers(|| UdpSocket::bind((server_address(), 0)))?;
                let there = UdpSocket::bind((client_address(), 0))?;
                here.connect(there.local_addr()?)?;
                there.connect(here.local_addr()?)?;
                (here.into(), there.into())
            }
        })
    }
}

/// Bodies, in private memory and in a file in memory.
struct Bodies {
    /// Length of each, bytes.
    len: usize,
    count: usize,
    /// Bytes from one to the next: whole pages, as twin memory's large objects have.
    stride: usize,
    mapped: usize,
    file: std::fs::File,
}

impl Bodies {
    /// As many of `len` bytes as `set_bytes` have room for, one at least.
    fn new(len: usize, set_bytes: usize) -> std::io::Result<Self> {
        let stride = len.next_multiple_of(PAGE_BYTES);
        let count = (set_bytes / stride).max(1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping disturbs nothing.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), stride * count, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a terminated name.
        let file = checked(unsafe { libc::memfd_create(c"bodies".as_ptr(), libc::MFD_CLOEXEC) } as isize)?;
        // SAFETY: made just now, and the file's from here on.
        let mut file = unsafe { std::fs::File::from_raw_fd(file as i32) };
        // SAFETY: the mapping is that long, and nobody else knows it yet. Small pages, as twin memory has.
        let bytes = unsafe {
            libc::madvise(mapped, stride * count, libc::MADV_NOHUGEPAGE);
            std::slice::from_raw_parts_mut(mapped.cast::<u8>(), stride * count)
        };
        let pattern = Random::new(7).bytes(stride);
        for (number, body) in bytes.chunks_exact_mut(stride).enumerate() {
            body.copy_from_slice(&pattern);
            body[..len.min(8)].copy_from_slice(&(number as u64).to_le_bytes()[..len.min(8)]);
        }
        file.write_all(bytes)?;
        Ok(Self { len, count, stride, mapped: mapped as usize, file })
    }

    /// Where the body of a message begins: in no order.
    fn offset(&self, message: u64) -> usize {
        (message.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize % self.count * self.stride
    }

    fn of(&self, message: u64) -> &[u8] {
        let start = self.mapped + self.offset(message);
        // SAFETY: inside the mapping of `new`, which is not written to any more and unmapped when dropped.
        unsafe { std::slice::from_raw_parts(start as *const u8, self.len) }
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, used by nobody any more.
        unsafe { libc::munmap(self.mapped as *mut _, self.stride * self.count) };
    }
}

fn checked(result: isize) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

/// The sender of one side.
struct Sender<'a> {
    fd: i32,
    side: Side,
    bodies: &'a Bodies,
    /// One for each message that may be under way, because MSG_ZEROCOPY refers to them.
    headers: [OnOnePage<[u8; HEADER_BYTES]>; WINDOW + 1],
    messages: u64,
    /// Completions of MSG_ZEROCOPY that were not read yet.
    awaited: usize,
}

impl Sender<'_> {
    fn len(&self) -> usize {
        HEADER_BYTES + self.bodies.len + TRAILER.0.len()
    }

    /// Sends the next message.
    fn send(&mut self) -> std::io::Result<()> {
        let message = self.messages;
        self.messages += 1;
        let OnOnePage(header) = &mut self.headers[(message % (WINDOW as u64 + 1)) as usize];
        header[..8].copy_from_slice(&message.to_le_bytes());
        let parts = [&header[..], self.bodies.of(message), &TRAILER.0];
        let sent = match self.side {
            SEND_FILE => {
                send_file(self.fd, parts, self.bodies.file.as_raw_fd(), self.bodies.offset(message))?
            }
            Side::Plain => send_message(self.fd, parts, 0)?,
            ZERO_COPY => send_message(self.fd, parts, libc::MSG_ZEROCOPY)?,
            SEND_ZC => send_by_ring(self.fd, parts)?,
            _ => send_parts(self.fd, parts)?,
        };
        if self.side == ZERO_COPY {
            self.awaited += 1;
            if self.awaited >= BATCH {
                self.read_completions()?;
            }
        }
        if sent == self.len() { Ok(()) } else { Err(std::io::Error::other("a blocking send was cut")) }
    }

    /// Reads what the socket's error queue holds.
    fn read_completions(&mut self) -> std::io::Result<()> {
        loop {
            let mut control = [0u64; 16];
            // SAFETY: all-zero is a valid header.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            // SAFETY: room for control data of that length.
            let read =
                unsafe { libc::recvmsg(self.fd, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
            match checked(read) {
                Ok(_) => self.awaited = 0,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// By the transmit engine: the body lent.
fn send_parts(fd: i32, [header, body, trailer]: [&[u8]; 3]) -> std::io::Result<usize> {
    let parts = [
        Part::Copied { ptr: header.as_ptr(), len: header.len() },
        Part::Lent { ptr: body.as_ptr(), len: body.len() },
        Part::Copied { ptr: trailer.as_ptr(), len: trailer.len() },
    ];
    let envelope = Envelope::default();
    let total = header.len() + body.len() + trailer.len();
    let plan = uncopy_transmit::plan(fd, total, body.len(), 0, &envelope);
    uncopy_transmit::send(fd, &parts, 0, &envelope, plan)
        .map(|sent| sent.len_bytes)
        .map_err(|Errno(number)| std::io::Error::from_raw_os_error(number))
}

fn vectors(parts: [&[u8]; 3]) -> [libc::iovec; 3] {
    parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
}

fn header_of(vectors: &mut [libc::iovec; 3]) -> libc::msghdr {
    // SAFETY: all-zero is a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    message
}

thread_local! {
    /// One for all messages of a thread, never closed: the kernel interrupts what the thread waits in when it takes a ring
    /// apart, which it does some time after that.
    static RING: RefCell<Option<ZeroCopyRing>> = const { RefCell::new(None) };
}

/// By one request to a ring; now and then waits until the pages of all earlier ones are free.
fn send_by_ring(fd: i32, parts: [&[u8]; 3]) -> std::io::Result<usize> {
    RING.with_borrow_mut(|ring| {
        let ring = match ring {
            Some(ring) => ring,
            none => none.insert(ZeroCopyRing::new()?),
        };
        let mut vectors = vectors(parts);
        let message = header_of(&mut vectors);
        // SAFETY: the kernel copies the header and the vectors before the request's first completion, which is waited
        // for (io_uring_enter(2)); the parts outlive the connection, and a header is written to again only after its
        // message was acknowledged.
        let sent = unsafe { ring.send(fd, &raw const message) }?;
        if ring.held() >= BATCH {
            ring.settle()?;
        }
        Ok(sent)
    })
}

/// By one `sendmsg`.
fn send_message(fd: i32, parts: [&[u8]; 3], flags: i32) -> std::io::Result<usize> {
    let mut vectors = vectors(parts);
    let message = header_of(&mut vectors);
    // SAFETY: the header and what it names live until the call is over; with MSG_ZEROCOPY the parts outlive the
    // connection, and none is written to before the message was acknowledged.
    checked(unsafe { libc::sendmsg(fd, &raw const message, flags) })
}

/// By `send` with MSG_MORE, `sendfile` and `send`.
fn send_file(
    fd: i32,
    [header, body, trailer]: [&[u8]; 3],
    file: i32,
    offset: usize,
) -> std::io::Result<usize> {
    let mut at = offset as libc::off_t;
    // SAFETY: the parts live; sendfile writes its offset only.
    unsafe {
        let mut sent = checked(libc::send(fd, header.as_ptr().cast(), header.len(), libc::MSG_MORE))?;
        while (at as usize) < offset + body.len() {
            let left = offset + body.len() - at as usize;
            sent += checked(libc::sendfile(fd, file, &raw mut at, left))?;
        }
        Ok(sent + checked(libc::send(fd, trailer.as_ptr().cast(), trailer.len(), 0))?)
    }
}

/// Reads messages, compares them and acknowledges each by a byte, until the sender closes. Bytes compared.
fn receive(fd: OwnedFd, bodies: &Bodies) -> Result<u64> {
    let len = HEADER_BYTES + bodies.len + TRAILER.0.len();
    let mut file = std::fs::File::from(fd);
    let mut buffer = vec![0; len.max(64 << 10)];
    let (mut verified, mut number) = (0u64, 0u64);
    loop {
        let mut filled = 0;
        while filled < len {
            // A datagram that is too long is cut, and then the next one is not where it should be.
            match file.read(&mut buffer[filled..len]).doing("reading a message")? {
                0 | 1 if filled == 0 => return Ok(verified),
                0 => return Err(Failure::new("a message was cut")),
                more => filled += more,
            }
        }
        let right = filled == len
            && buffer[..8] == number.to_le_bytes()
            && buffer[HEADER_BYTES..len - TRAILER.0.len()] == *bodies.of(number)
            && buffer[len - TRAILER.0.len()..len] == TRAILER.0;
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
    let (here, there) = socket.pair().doing("making a connection")?;
    for fd in [&here, &there] {
        let time = libc::timeval { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_usec: 0 };
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            // SAFETY: a valid structure of that length.
            let set = unsafe {
                let value = (&raw const time).cast();
                libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, value, size_of_val(&time) as u32)
            };
            checked(set as isize).doing("setting a time limit")?;
        }
    }
    if side == ZERO_COPY {
        let one = 1i32;
        // SAFETY: a valid integer.
        let set = unsafe {
            let value = (&raw const one).cast();
            libc::setsockopt(here.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, 4)
        };
        checked(set as isize).doing("SO_ZEROCOPY")?;
    }
    set_break_even((side != Side::Uncopy).then_some(1));
    let fd = here.as_raw_fd();
    uncopy_transmit::own(fd, uncopy_transmit::Owner::default());
    let headers = [OnOnePage([b' '; HEADER_BYTES]); WINDOW + 1];
    let mut sender = Sender { fd, side, bodies, headers, messages: 0, awaited: 0 };
    let window = (WINDOW_BYTES / sender.len()).clamp(1, if socket == Socket::Udp { 2 } else { WINDOW });
    let (verified, sent) = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            processors::bind_to(processors::of_clients(1))?;
            receive(there, bodies)
        });
        let sending = scope.spawn(|| {
            processors::bind_to(processors::of_server(1))?;
            send(&mut sender, duration, window)
        });
        let sent = sending.join().unwrap_or_else(|_| Err(Failure::new("the sender panicked")));
        drop(end(socket, here));
        (receiver.join().unwrap_or_else(|_| Err(Failure::new("the reader panicked"))), sent)
    });
    set_break_even(None);
    // A sender that fails leaves the reader with an error that says less.
    let (messages, elapsed, cpu) = sent?;
    let verified = verified?;
    Ok(Sample {
        operations_per_s: Some(messages as f64 / elapsed.as_secs_f64()),
        cpu_us: Some(cpu.as_secs_f64() * 1e6 / messages.max(1) as f64),
        verified_bytes: Some(verified),
        ..Sample::default()
    })
}

/// Tells the reader that nothing follows.
fn end(socket: Socket, here: OwnedFd) -> OwnedFd {
    if socket == Socket::Udp {
        // SAFETY: one byte of static memory.
        unsafe { libc::send(here.as_raw_fd(), b".".as_ptr().cast(), 1, 0) };
    }
    here
}

/// Messages sent, and the time and the processor time that they took.
fn send(sender: &mut Sender<'_>, duration: Duration, window: usize) -> Result<(u64, Duration, Duration)> {
    let (mut sent, mut acknowledged) = (0u64, 0u64);
    let mut begun = None;
    let result = loop {
        // The first messages fill caches and accounts.
        if begun.is_none() && sent >= WARM_UP {
            begun = Some((sent, Instant::now(), thread_cpu_ns()));
        }
        if let Some((messages, start, start_cpu_ns)) = begun
            && sent % BATCH as u64 == 0
            && start.elapsed() >= duration
        {
            break (sent - messages, start.elapsed(), Duration::from_nanos(thread_cpu_ns() - start_cpu_ns));
        }
        sender.send().doing("sending")?;
        sent += 1;
        while sent - acknowledged >= window as u64 {
            acknowledged += acknowledgement(sender.fd)?;
        }
    };
    while acknowledged < sent {
        acknowledged += acknowledgement(sender.fd)?;
    }
    Ok(result)
}

/// Waits for acknowledgements; their number.
fn acknowledgement(fd: i32) -> Result<u64> {
    let mut read = [0u8; WINDOW];
    // SAFETY: room for as many bytes as is said.
    let count = checked(unsafe { libc::recv(fd, read.as_mut_ptr().cast(), read.len(), 0) });
    match count.doing("waiting for an acknowledgement")? {
        0 => Err(Failure::new("the reader has gone")),
        more => Ok(more as u64),
    }
}

impl Transmit {
    /// One comparison for each socket and size.
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
                    // There is no MSG_ZEROCOPY, and so no SENDMSG_ZC.
                    Socket::Unix => sides.retain(|side| !matches!(*side, ZERO_COPY | SEND_ZC)),
                }
                let title = format!("{} {}", socket.name(), size(*body_bytes as u64));
                let len = (HEADER_BYTES + body_bytes + TRAILER.0.len()) as u64;
                let mut comparison =
                    Comparison::new(&title, len, &sides).with("size_bytes", *body_bytes as f64);
                match Bodies::new(*body_bytes, self.set).doing("making bodies") {
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

/// The figures.
#[must_use]
pub fn render(comparisons: &[Comparison]) -> String {
    format!(
        "{}\nplain: one sendmsg of header, body and trailer; spliced: by reference whatever the size; sendfile: the body \
         from a file\nin memory, header and trailer by send; MSG_ZEROCOPY: its completions read in batches; SENDMSG_ZC: io_uring; uncopy: the way \
         that it chooses.\nCPU: the sender's. first write to a page: plain, one that the kernel gives; protected, one whose sending \
         has completed;\nin flight, one that is replaced by a copy; p50 is the time of the write. {LEGEND}",
        figures::table(comparisons, &[])
    )
}

/// Processor time over plain, over the length of bodies.
#[must_use]
pub fn plot(comparisons: &[Comparison]) -> Plot {
    let mut series = Vec::new();
    for socket in [Socket::Tcp, Socket::Unix, Socket::Udp] {
        let of_socket: Vec<Comparison> = comparisons
            .iter()
            .filter(|comparison| comparison.title().starts_with(socket.name()))
            .cloned()
            .collect();
        let x = ("length of a body", Scale::Doubling);
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
        x: ("length of a body".to_owned(), Scale::Doubling),
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
                    form: Form::default(),
                };
                let comparisons = options.measure(&mut Progress::new());
                assert!(comparisons[0].is_verified(), "{:?}", comparisons[0].notes());
            }
        }
    }
}
