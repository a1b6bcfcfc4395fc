//! Options of sockets of the service's: what they are to the program, and what the service is told.
//!
//! | level | |
//! |---|---|
//! | socket | the UNIX socket's own, but for the family, the error, SO_KEEPALIVE, and that of a linger of no time the service is told |
//! | TCP | the service's; what it has nothing to do for is taken if it is legal, and changes nothing |
//! | IP | taken if it is legal, and changes nothing |
//!
//! What the program has set is kept with the socket ([`Kept`]). Whether an option and its value are legal, and what one is that the
//! program has not set, a socket of the kernel's says that is made to be asked ([`StandIn`]).

use super::kept::{Kept, MAX_TIMES, OF_TIMES};
use super::stand_in::StandIn;
use super::{client, congestion, connecting::is_listening};
use core::ffi::c_int;
use libc::socklen_t;
use uncopy_net::board::Condition;
use uncopy_net::client::{Client, Known};
use uncopy_net::message::Info;
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::lock::Critical;
use uncopy_sys::readable::{is_readable, writable_bytes};

/// TCP_MD5SIG_EXT and TCP_AO_ADD_KEY to TCP_AO_REPAIR (linux/tcp.h).
const MD5SIG_EXT: c_int = 32;
const AO: core::ops::RangeInclusive<c_int> = 38..=42;
/// SO_PEERPIDFD (asm-generic/socket.h).
const SO_PEERPIDFD: c_int = 77;
/// All there are (linux/tcp.h, Linux 6.18).
const KNOWN: core::ops::RangeInclusive<c_int> = 1..=46;
/// TCP_MSS_DEFAULT.
const DEFAULT_MSS: c_int = 536;

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
    /// Nothing, if the kernel's TCP takes it.
    Legal,
    /// The name of a congestion control is kept.
    Congestion,
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
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => Setting::Legal,
        (libc::IPPROTO_TCP, libc::TCP_CORK) => with(&|kept, value| kept.corks = value != 0),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Setting::Congestion,
        // Programs set it after every receive.
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) if value.is_some() => Setting::Done,
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
        (libc::IPPROTO_TCP, libc::TCP_INQ | libc::TCP_MD5SIG | MD5SIG_EXT) => {
            Setting::Refused(libc::ENOPROTOOPT)
        }
        // As a kernel that has no module for it.
        (libc::IPPROTO_TCP, libc::TCP_ULP) => Setting::Refused(libc::ENOENT),
        (libc::IPPROTO_TCP, name) if AO.contains(&name) => Setting::Refused(libc::ENOPROTOOPT),
        (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Setting::Refused(libc::EPERM),
        (libc::IPPROTO_TCP, name) if KNOWN.contains(&name) => Setting::Legal,
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
        Setting::Legal => {
            // Where no descriptor is left it counts as legal.
            let asked = StandIn::new(is_v6(&known));
            // SAFETY: as the caller says.
            return Some(asked.map_or(Ok(()), |asked| unsafe { asked.set(level, name, value, len_bytes) }));
        }
        Setting::Congestion => {
            let Some(asked) = StandIn::new(is_v6(&known)) else { return Some(Err(Errno(libc::ENOBUFS))) };
            // SAFETY: as the caller says.
            if let Err(why) = unsafe { asked.set(level, name, value, len_bytes) } {
                return Some(Err(why));
            }
            (Kept { congestion: congestion::number_of(asked.fd()), ..before }, Some(Ok(())))
        }
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
            let bytes = information(client, fd, &known);
            // SAFETY: as the caller says.
            return Some(bytes.and_then(|bytes| unsafe { put(&bytes, value, len) }));
        }
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            // SAFETY: as the caller says.
            return Some(unsafe { put(&u64::MAX.to_ne_bytes(), value, len) });
        }
        (libc::SOL_SOCKET, libc::SO_PEERCRED) => {
            // No process, user -1, group -1, as of any socket that is no UNIX socket.
            let nobody = [0i32, -1, -1].map(i32::to_ne_bytes).concat();
            // SAFETY: as the caller says.
            return Some(unsafe { put(&nobody, value, len) });
        }
        (libc::SOL_SOCKET, libc::SO_PEERGROUPS | SO_PEERPIDFD) => return Some(Err(Errno(libc::ENODATA))),
        (libc::SOL_SOCKET, _) => number_of_socket(fd, &known, name)?,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let name = congestion::name(Kept::of(fd).congestion, client.congestion());
            // SAFETY: as the caller says.
            return Some(unsafe { put(&name, value, len) });
        }
        // What is read from a kernel's connection, which there is not.
        (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE | libc::TCP_REPAIR) => {
            return Some(Err(Errno(libc::ENOPROTOOPT)));
        }
        (libc::IPPROTO_TCP, _) if let Some(number) = number(client, fd, &known, name) => number,
        _ => {
            let Some(asked) = StandIn::new(is_v6(&known)) else {
                return Some(Err(Errno(libc::ENOPROTOOPT)));
            };
            // SAFETY: as the caller says.
            return Some(unsafe { asked.get(level, name, value, len) });
        }
    };
    // SAFETY: as the caller says.
    Some(unsafe { put(&found.to_ne_bytes(), value, len) })
}

/// Whether a socket is one of IPv6 to the program.
const fn is_v6(known: &Known) -> bool {
    match known {
        Known::Connection { is_v6, .. } => *is_v6,
        Known::Bound(bound) => bound.is_v6(),
    }
}

/// What is the kernel's no more; `None`: it is.
fn number_of_socket(fd: c_int, known: &Known, name: c_int) -> Option<c_int> {
    match name {
        libc::SO_DOMAIN if is_v6(known) => Some(libc::AF_INET6),
        libc::SO_DOMAIN => Some(libc::AF_INET),
        libc::SO_PROTOCOL => Some(libc::IPPROTO_TCP),
        libc::SO_KEEPALIVE => Some(Kept::of(fd).keep_alive.into()),
        libc::SO_REUSEADDR => Some(Kept::of(fd).reuses_address.into()),
        libc::SO_REUSEPORT => Some(Kept::of(fd).reuses_port.into()),
        _ => None,
    }
}

/// Options of TCP that are the service's, or are kept, and are a number; `None`: it is another one.
fn number(client: &Client, fd: c_int, known: &Known, name: c_int) -> Option<c_int> {
    Some(match name {
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
        libc::TCP_CORK => Kept::of(fd).corks.into(),
        _ => return None,
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

fn information(client: &Client, fd: c_int, known: &Known) -> Result<[u8; INFO_BYTES], Errno> {
    let _critical = Critical::enter();
    Ok(tcp_info(&match known {
        Known::Bound(_) if is_listening(fd) => Info { state: LISTENING, ..Info::default() },
        Known::Bound(_) => Info { state: CLOSED, ..Info::default() },
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
        assert!(matches!(set(tcp, libc::TCP_CORK, 1), Setting::Kept(kept) if kept.corks));
        assert!(matches!(set(tcp, libc::TCP_SYNCNT, 1), Setting::Legal));
        assert!(matches!(set(tcp, libc::TCP_CONGESTION, 1), Setting::Congestion));
        assert!(matches!(set(tcp, libc::TCP_ULP, 1), Setting::Refused(libc::ENOENT)));
        assert!(matches!(set(libc::SOL_SOCKET, libc::SO_LINGER, 1), Setting::Both(kept) if kept.resets));
        assert!(matches!(set(libc::SOL_SOCKET, libc::SO_LINGER, 0), Setting::Both(kept) if !kept.resets));
        assert!(matches!(set(libc::SOL_SOCKET, libc::SO_SNDBUF, 1), Setting::Kernels));
        assert!(matches!(set(libc::IPPROTO_IP, libc::IP_TOS, 1), Setting::Legal));
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
