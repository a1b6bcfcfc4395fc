//! Options of sockets of the service's: what they are to the program, and what the service is told.
//!
//! | level | |
//! |---|---|
//! | socket | the UNIX socket's own, but for the family, the error, SO_KEEPALIVE, and that of a linger of no time the service is told |
//! | TCP | the service's; what it has nothing to do for is taken, and changes nothing |
//! | IP | taken, and changes nothing |
//!
//! What the program has set is kept in the socket's note:
//!
//! ```text
//! bit 0        1          2        3        16      32        48      63
//!     no delay keep alive reset    told     idle    interval  probes
//! ```
//!
//! An error is told once, as the kernel does it: `told` says that it was, to whoever has the socket.

use super::client;
use core::ffi::c_int;
use libc::socklen_t;
use uncopy_net::board::Condition;
use uncopy_net::client::{Client, Known};
use uncopy_net::message::{Info, Options};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::lock::Critical;
use uncopy_sys::readable::{is_readable, writable_bytes};
use uncopy_sys::{tcp, unix};

/// Linux's defaults: seconds without a byte, seconds between probes, probes (tcp(7)).
const TIMES: [u16; 3] = [7200, 75, 9];
/// What the kernel takes at most of each (MAX_TCP_KEEPIDLE and its like, include/net/tcp.h).
const MAX_TIMES: [u16; 3] = [32_767, 32_767, 127];
/// The options of those.
const OF_TIMES: [c_int; 3] = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
/// TCP_MD5SIG_EXT and TCP_AO_ADD_KEY to TCP_AO_REPAIR (linux/tcp.h).
const MD5SIG_EXT: c_int = 32;
const AO: core::ops::RangeInclusive<c_int> = 38..=42;
/// All there are (linux/tcp.h, Linux 6.18).
const KNOWN: core::ops::RangeInclusive<c_int> = 1..=46;
/// TCP_MSS_DEFAULT.
const DEFAULT_MSS: c_int = 536;

/// What a program has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    no_delay: bool,
    keep_alive: bool,
    resets: bool,
    is_told: bool,
    reuses_address: bool,
    reuses_port: bool,
    times: [u16; 3],
}

impl Default for Kept {
    fn default() -> Self {
        Self::of_flags([false; 6], TIMES)
    }
}

impl Kept {
    const fn of_flags(flags: [bool; 6], times: [u16; 3]) -> Self {
        let [no_delay, keep_alive, resets, is_told, reuses_address, reuses_port] = flags;
        Self { no_delay, keep_alive, resets, is_told, reuses_address, reuses_port, times }
    }

    fn note(self) -> u64 {
        let Self { no_delay, keep_alive, resets, is_told, reuses_address, reuses_port, times } = self;
        let [idle, interval, probes] = times.map(u64::from);
        let flags = [no_delay, keep_alive, resets, is_told, reuses_address, reuses_port];
        let bits = flags.into_iter().enumerate().map(|(at, flag)| u64::from(flag) << at).sum::<u64>();
        bits | idle << 16 | interval << 32 | probes << 48
    }

    fn of_note(note: u64) -> Self {
        let flags = core::array::from_fn(|at| note >> at & 1 != 0);
        Self::of_flags(flags, [(note >> 16) as u16, (note >> 32) as u16, (note >> 48) as u16])
    }

    /// What was set at a socket of the kernel's.
    pub fn of_tcp(fd: c_int) -> Self {
        let ask = |level, name| tcp::option(fd, level, name).ok();
        let mut times = TIMES;
        for (time, name) in times.iter_mut().zip(OF_TIMES) {
            *time = ask(libc::IPPROTO_TCP, name).and_then(|value| u16::try_from(value).ok()).unwrap_or(*time);
        }
        let is_set = |level, name| ask(level, name).is_some_and(|value| value != 0);
        Self {
            no_delay: is_set(libc::IPPROTO_TCP, libc::TCP_NODELAY),
            keep_alive: is_set(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            resets: tcp::linger(fd) == Some((true, 0)),
            is_told: false,
            reuses_address: is_set(libc::SOL_SOCKET, libc::SO_REUSEADDR),
            reuses_port: is_set(libc::SOL_SOCKET, libc::SO_REUSEPORT),
            times,
        }
    }

    /// Sets them at one.
    pub fn set(self, fd: c_int) {
        let set = |level, name, value| _ = tcp::set_option(fd, level, name, value);
        set(libc::IPPROTO_TCP, libc::TCP_NODELAY, self.no_delay.into());
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, self.keep_alive.into());
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, self.reuses_address.into());
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, self.reuses_port.into());
        for (time, name) in self.times.into_iter().zip(OF_TIMES) {
            set(libc::IPPROTO_TCP, name, time.into());
        }
    }

    /// What was set at a socket of the service's.
    pub fn of(fd: c_int) -> Self {
        unix::note(fd).map_or_else(Self::default, Self::of_note)
    }

    /// Keeps them there.
    pub fn keep(self, fd: c_int) {
        let _ = unix::set_note(fd, self.note());
    }

    /// A program is told a connection's error: whether that is the first time.
    pub fn tell(fd: c_int) -> bool {
        let kept = Self::of(fd);
        if !kept.is_told {
            Self { is_told: true, ..kept }.keep(fd);
        }
        !kept.is_told
    }

    /// A connection has what its listener had.
    pub fn hand_on(listener: c_int, accepted: c_int) {
        let _errno = errno::Keep::new();
        if let Some(note) = unix::note(listener)
            && unix::own_name(accepted).is_some()
        {
            let _ = unix::set_note(accepted, note);
        }
    }

    /// SO_REUSEPORT.
    pub const fn reuses_port(self) -> bool {
        self.reuses_port
    }

    /// As the service is told.
    pub fn options(self) -> Options {
        Options {
            no_delay: self.no_delay,
            keepalive: self.keep_alive.then_some(self.times),
            resets: self.resets,
        }
    }
}

/// What becomes of an option that a program sets.
enum Setting {
    /// The kernel's.
    Kernels,
    /// The kernel's, and something is kept as well.
    Both(Kept),
    /// Something is kept.
    Kept(Kept),
    /// Nothing.
    Done,
    /// It is refused.
    Refused(c_int),
}

/// A socket of the service's at which `before` was set is to have an option with this value, the first word of it and the second.
fn setting(before: Kept, level: c_int, name: c_int, [value, second]: [Option<c_int>; 2]) -> Setting {
    let with = |change: &dyn Fn(&mut Kept, c_int)| match value {
        None => Setting::Refused(libc::EINVAL),
        Some(value) => {
            let mut kept = before;
            change(&mut kept, value);
            Setting::Kept(kept)
        }
    };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => with(&|kept, value| kept.keep_alive = value != 0),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let resets = second == Some(0) && value.is_some_and(|value| value != 0);
            Setting::Both(Kept { resets, ..before })
        }
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => with(&|kept, value| kept.reuses_address = value != 0),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => with(&|kept, value| kept.reuses_port = value != 0),
        // Something else is kept there.
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => Setting::Done,
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => Setting::Done,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => with(&|kept, value| kept.no_delay = value != 0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
            let at = OF_TIMES.iter().position(|of| *of == name).unwrap_or(0);
            let is_legal = |value: &c_int| (1..=c_int::from(MAX_TIMES[at])).contains(value);
            match value.filter(is_legal) {
                None => Setting::Refused(libc::EINVAL),
                Some(_) => with(&|kept, value| kept.times[at] = value as u16),
            }
        }
        // What a program does otherwise where it is refused.
        (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_INQ | libc::TCP_MD5SIG | MD5SIG_EXT) => {
            Setting::Refused(libc::ENOPROTOOPT)
        }
        (libc::IPPROTO_TCP, name) if AO.contains(&name) => Setting::Refused(libc::ENOPROTOOPT),
        (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Setting::Refused(libc::EPERM),
        (libc::IPPROTO_TCP, name) if KNOWN.contains(&name) => Setting::Done,
        (libc::IPPROTO_TCP, _) => Setting::Refused(libc::ENOPROTOOPT),
        _ => Setting::Kernels,
    }
}

/// setsockopt of a socket of the service's; `None`: it is the kernel's to do.
///
/// # Safety
/// As setsockopt.
pub unsafe fn set(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const u8,
    len_bytes: socklen_t,
) -> Option<Result<(), Errno>> {
    if !matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6) {
        return None;
    }
    let client = client()?;
    let _errno = errno::Keep::new();
    let known = client.known(fd)?;
    let words = (len_bytes as usize / size_of::<c_int>()).min(2);
    if !is_readable(value as usize, words * size_of::<c_int>()) {
        return Some(Err(Errno::EFAULT));
    }
    // SAFETY: just found to be readable.
    let word = |at: usize| (at < words).then(|| unsafe { value.cast::<c_int>().add(at).read_unaligned() });
    let before = Kept::of(fd);
    let (kept, result) = match setting(before, level, name, [word(0), word(1)]) {
        Setting::Kernels => return None,
        Setting::Done => return Some(Ok(())),
        Setting::Refused(why) => return Some(Err(Errno(why))),
        Setting::Both(kept) => (kept, None),
        Setting::Kept(kept) => (kept, Some(Ok(()))),
    };
    if kept != before {
        kept.keep(fd);
        if let Known::Connection { connection, .. } = known {
            let _critical = Critical::enter();
            let _ = client.set(&connection, kept.options());
        }
    }
    result
}

/// getsockopt of a socket of the service's; `None`: `kernel` is to do it.
///
/// # Safety
/// As getsockopt.
pub unsafe fn get(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut u8,
    len: *mut socklen_t,
    kernel: &dyn Fn() -> c_int,
) -> Option<Result<(), Errno>> {
    if !matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6) {
        return None;
    }
    let client = client()?;
    let _errno = errno::Keep::new();
    let known = client.known(fd)?;
    if level == libc::SOL_SOCKET && name == libc::SO_ERROR {
        // SAFETY: as the caller says.
        return unsafe { error(client, fd, &known, value, len, kernel) };
    }
    let found = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            let bytes = information(client, &known);
            // SAFETY: as the caller says.
            return Some(bytes.and_then(|bytes| unsafe { put(&bytes, value, len) }));
        }
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            // SAFETY: as the caller says.
            return Some(unsafe { put(&u64::MAX.to_ne_bytes(), value, len) });
        }
        (libc::SOL_SOCKET, _) => number_of_socket(fd, &known, name)?,
        (libc::IPPROTO_TCP, _) => match number(client, fd, &known, name) {
            Ok(number) => number,
            Err(why) => return Some(Err(why)),
        },
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => 64,
        (_, libc::IP_TOS) if level == libc::IPPROTO_IP => 0,
        (_, libc::IPV6_V6ONLY | libc::IPV6_TCLASS) if level == libc::IPPROTO_IPV6 => 0,
        _ => return Some(Err(Errno(libc::ENOPROTOOPT))),
    };
    // SAFETY: as the caller says.
    Some(unsafe { put(&found.to_ne_bytes(), value, len) })
}

/// What is the kernel's no more; `None`: it is.
fn number_of_socket(fd: c_int, known: &Known, name: c_int) -> Option<c_int> {
    let is_v6 = match known {
        Known::Connection { is_v6, .. } => *is_v6,
        Known::Bound(bound) => bound.is_v6(),
    };
    match name {
        libc::SO_DOMAIN if is_v6 => Some(libc::AF_INET6),
        libc::SO_DOMAIN => Some(libc::AF_INET),
        libc::SO_PROTOCOL => Some(libc::IPPROTO_TCP),
        libc::SO_KEEPALIVE => Some(Kept::of(fd).keep_alive.into()),
        libc::SO_REUSEADDR => Some(Kept::of(fd).reuses_address.into()),
        libc::SO_REUSEPORT => Some(Kept::of(fd).reuses_port.into()),
        _ => None,
    }
}

/// Options of TCP that are a number.
fn number(client: &Client, fd: c_int, known: &Known, name: c_int) -> Result<c_int, Errno> {
    Ok(match name {
        libc::TCP_NODELAY => Kept::of(fd).no_delay.into(),
        libc::TCP_MAXSEG => match known {
            Known::Connection { connection, .. } => {
                let _critical = Critical::enter();
                client.info(connection).map_or(DEFAULT_MSS, |info| info.mss.cast_signed())
            }
            Known::Bound(_) => DEFAULT_MSS,
        },
        libc::TCP_KEEPIDLE => Kept::of(fd).times[0].into(),
        libc::TCP_KEEPINTVL => Kept::of(fd).times[1].into(),
        libc::TCP_KEEPCNT => Kept::of(fd).times[2].into(),
        libc::TCP_QUICKACK => 1,
        libc::TCP_CORK
        | libc::TCP_DEFER_ACCEPT
        | libc::TCP_USER_TIMEOUT
        | libc::TCP_FASTOPEN
        | libc::TCP_FASTOPEN_CONNECT
        | libc::TCP_LINGER2
        | libc::TCP_WINDOW_CLAMP
        | libc::TCP_NOTSENT_LOWAT
        | libc::TCP_SYNCNT => 0,
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    })
}

/// SO_ERROR: what the kernel says, unless the connection's own error says why.
unsafe fn error(
    client: &Client,
    fd: c_int,
    known: &Known,
    value: *mut u8,
    len: *mut socklen_t,
    kernel: &dyn Fn() -> c_int,
) -> Option<Result<(), Errno>> {
    let Known::Connection { connection, .. } = known else { return None };
    if kernel() != 0 {
        return Some(Err(Errno(errno::get())));
    }
    if let Some(Condition::Failed(why)) = client.condition(connection) {
        let why = if Kept::tell(fd) { why } else { 0 };
        // SAFETY: the kernel has just written there so many bytes.
        unsafe {
            let len_bytes = (len.read_unaligned() as usize).min(size_of::<c_int>());
            core::ptr::copy_nonoverlapping(why.to_ne_bytes().as_ptr(), value, len_bytes);
        }
    }
    Some(Ok(()))
}

/// Gives the program as much as it has room for, as the kernel does.
unsafe fn put(bytes: &[u8], value: *mut u8, len: *mut socklen_t) -> Result<(), Errno> {
    let len_of_len = size_of::<socklen_t>();
    if len.is_null() || writable_bytes(len as usize, len_of_len) < len_of_len {
        return Err(Errno::EFAULT);
    }
    // SAFETY: it can be written.
    let room_bytes = unsafe { len.read_unaligned() };
    if room_bytes > i32::MAX.cast_unsigned() {
        return Err(Errno::EINVAL);
    }
    let count = bytes.len().min(room_bytes as usize);
    if writable_bytes(value as usize, count) < count {
        return Err(Errno::EFAULT);
    }
    // SAFETY: both can be written.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), value, count);
        len.write_unaligned(count as socklen_t);
    }
    Ok(())
}

/// Bytes of `struct tcp_info` (linux/tcp.h), as far as Linux 5.5 has it.
const INFO_BYTES: usize = 232;
/// States: CLOSE, LISTEN (include/net/tcp_states.h).
const CLOSED: u8 = 7;
const LISTENING: u8 = 10;

fn information(client: &Client, known: &Known) -> Result<[u8; INFO_BYTES], Errno> {
    let _critical = Critical::enter();
    Ok(tcp_info(&match known {
        Known::Bound(_) => Info { state: LISTENING, ..Info::default() },
        Known::Connection { connection, .. } => match client.info(connection) {
            Err(Errno(libc::ENOTCONN)) => Info { state: CLOSED, ..Info::default() },
            found => found?,
        },
    }))
}

/// As the kernel writes it.
fn tcp_info(info: &Info) -> [u8; INFO_BYTES] {
    let mut bytes = [0; INFO_BYTES];
    // tcpi_state, tcpi_retransmits.
    bytes[0] = info.state;
    bytes[2] = u8::try_from(info.timeouts).unwrap_or(u8::MAX);
    let mss = info.mss.max(1);
    let window = u32::try_from(info.window_bytes / u64::from(mss)).unwrap_or(u32::MAX);
    // tcpi_snd_mss, rcv_mss, lost, retrans, pmtu, rtt, rttvar, snd_ssthresh, snd_cwnd, advmss, total_retrans.
    for (at, value) in [
        (16, info.mss),
        (20, info.mss),
        (32, info.lost_segments),
        (36, info.retransmitted_segments),
        (60, info.mss + 40),
        (68, info.round_trip_us),
        (72, info.round_trip_us / 2),
        (76, i32::MAX.cast_unsigned()),
        (80, window),
        (84, info.mss),
        (100, info.retransmissions),
    ] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    // tcpi_bytes_acked, bytes_received.
    for (at, value) in [(120, info.acknowledged_bytes), (128, info.received_bytes)] {
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_kept() {
        let kept = Kept::of_flags([true; 6], [1, 32_767, 127]);
        for kept in
            [kept, Kept::default(), Kept { keep_alive: false, ..kept }, Kept { reuses_port: false, ..kept }]
        {
            assert_eq!(Kept::of_note(kept.note()), kept);
            assert_ne!(kept.note(), u64::MAX, "which would be nothing");
        }
        assert_eq!(Kept::default().options(), Options::default());
        assert_eq!(kept.options().keepalive, Some([1, 32_767, 127]));
    }

    #[test]
    fn options_are_kept_refused_or_taken() {
        let set = |level, name, value: c_int| setting(Kept::default(), level, name, [Some(value), Some(0)]);
        let tcp = libc::IPPROTO_TCP;
        assert!(matches!(set(tcp, libc::TCP_NODELAY, 7), Setting::Kept(kept) if kept.no_delay));
        assert!(
            matches!(set(tcp, libc::TCP_KEEPCNT, 127), Setting::Kept(kept) if kept.times == [7200, 75, 127])
        );
        for value in [0, -1, 128] {
            assert!(matches!(set(tcp, libc::TCP_KEEPCNT, value), Setting::Refused(libc::EINVAL)));
        }
        let short = setting(Kept::default(), tcp, libc::TCP_NODELAY, [None, None]);
        assert!(matches!(short, Setting::Refused(libc::EINVAL)));
        assert!(matches!(set(tcp, libc::TCP_CORK, 1), Setting::Done));
        assert!(matches!(set(tcp, libc::TCP_ULP, 1), Setting::Refused(libc::ENOPROTOOPT)));
        assert!(matches!(set(libc::SOL_SOCKET, libc::SO_LINGER, 1), Setting::Both(kept) if kept.resets));
        assert!(matches!(set(libc::SOL_SOCKET, libc::SO_LINGER, 0), Setting::Both(kept) if !kept.resets));
        assert!(matches!(set(libc::SOL_SOCKET, libc::SO_SNDBUF, 1), Setting::Kernels));
        assert!(matches!(set(libc::IPPROTO_IP, libc::IP_TOS, 1), Setting::Done));
    }

    #[test]
    fn tcp_info_is_where_linux_has_it() {
        let info = Info {
            state: 1,
            mss: 1460,
            round_trip_us: 99,
            window_bytes: 14_600,
            retransmissions: 3,
            lost_segments: 4,
            retransmitted_segments: 2,
            timeouts: 1,
            ..Info::default()
        };
        let bytes = tcp_info(&info);
        // SAFETY: plain numbers, of which libc knows the first.
        let read = unsafe { bytes.as_ptr().cast::<libc::tcp_info>().read_unaligned() };
        assert_eq!((read.tcpi_state, read.tcpi_snd_mss, read.tcpi_rtt), (1, 1460, 99));
        assert_eq!((read.tcpi_snd_cwnd, read.tcpi_total_retrans), (10, 3));
        assert_eq!((read.tcpi_retransmits, read.tcpi_lost, read.tcpi_retrans), (1, 4, 2));
    }
}
