//! Options of the service's sockets, as the program sees them and as the service is told.
//!
//! | level | |
//! |---|---|
//! | socket | the UNIX socket's, except for family, error, SO_KEEPALIVE, and SO_LINGER of zero |
//! | TCP | the service's; others are accepted if they are legal, and have no effect |
//! | IP | accepted if they are legal, without effect |
//!
//! The socket's note keeps what the program has set ([`SocketNote`]). A temporary kernel socket decides whether
//! an option is legal, and provides defaults ([`ProbeSocket`]).

use super::congestion;
use super::connecting::is_listening;
use super::probe_socket::ProbeSocket;
use super::service::client;
use super::socket_note::{KEEPALIVE_OPTIONS, MAX_KEEPALIVE_TIMES, SocketNote};
use core::ffi::c_int;
use libc::socklen_t;
use uncopy_net::client::{Client, ServiceSocket};
use uncopy_net::message::Info;
use uncopy_net::state_table::ConnectionState;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::lock::Critical;
use uncopy_sys::readable::{is_readable, writable_bytes};

/// TCP_MD5SIG_EXT and TCP_AO_ADD_KEY to TCP_AO_REPAIR (linux/tcp.h).
const MD5SIG_EXT: c_int = 32;
const AO: core::ops::RangeInclusive<c_int> = 38..=42;
/// SO_PEERPIDFD of asm-generic/socket.h (Linux 6.5).
const SO_PEERPIDFD: c_int = 77;
/// Range of TCP options (linux/tcp.h, Linux 6.18).
const KNOWN: core::ops::RangeInclusive<c_int> = 1..=46;
/// TCP_MSS_DEFAULT of include/net/tcp.h, bytes.
const DEFAULT_MSS: c_int = 536;

/// Handling of an option that a program sets.
enum Setting {
    /// The kernel sets it on the UNIX socket.
    Kernels,
    /// The kernel sets it, and the note is changed.
    Both(SocketNote),
    /// Only the note is changed.
    Note(SocketNote),
    /// Accepted, and without effect.
    Done,
    /// Accepted without effect if a kernel socket accepts it.
    Legal,
    /// The note gets the named congestion control.
    Congestion,
    /// Refused with this errno.
    Refused(c_int),
}

/// Decides on an option for a socket with the note `before`, given the first two words of its value.
fn setting(before: SocketNote, level: c_int, name: c_int, [value, second]: [Option<c_int>; 2]) -> Setting {
    let with = |change: &dyn Fn(&mut SocketNote, c_int)| match value {
        None => Setting::Refused(libc::EINVAL),
        Some(value) => {
            let mut note = before;
            change(&mut note, value);
            Setting::Note(note)
        }
    };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => with(&|note, value| note.keep_alive = value != 0),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let resets_on_close = second == Some(0) && value.is_some_and(|value| value != 0);
            Setting::Both(SocketNote { resets_on_close, ..before })
        }
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => with(&|note, value| note.reuses_address = value != 0),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => with(&|note, value| note.reuses_port = value != 0),
        // The note of a socket is stored in this option of the UNIX socket.
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => Setting::Done,
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => Setting::Legal,
        (libc::IPPROTO_TCP, libc::TCP_CORK) => with(&|note, value| note.is_corked = value != 0),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Setting::Congestion,
        // Some programs set this after every receive, so no kernel socket is asked.
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) if value.is_some() => Setting::Done,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => with(&|note, value| note.no_delay = value != 0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
            let at = KEEPALIVE_OPTIONS.iter().position(|of| *of == name).unwrap_or(0);
            let is_legal = |value: &c_int| (1..=c_int::from(MAX_KEEPALIVE_TIMES[at])).contains(value);
            match value.filter(is_legal) {
                None => Setting::Refused(libc::EINVAL),
                Some(_) => with(&|note, value| note.keepalive_times[at] = value as u16),
            }
        }
        // Programs have a fallback for a kernel without these.
        (libc::IPPROTO_TCP, libc::TCP_INQ | libc::TCP_MD5SIG | MD5SIG_EXT) => {
            Setting::Refused(libc::ENOPROTOOPT)
        }
        // The errno of a kernel without a ULP module.
        (libc::IPPROTO_TCP, libc::TCP_ULP) => Setting::Refused(libc::ENOENT),
        (libc::IPPROTO_TCP, name) if AO.contains(&name) => Setting::Refused(libc::ENOPROTOOPT),
        (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Setting::Refused(libc::EPERM),
        (libc::IPPROTO_TCP, name) if KNOWN.contains(&name) => Setting::Legal,
        (libc::IPPROTO_TCP, _) => Setting::Refused(libc::ENOPROTOOPT),
        _ => Setting::Kernels,
    }
}

/// Implements setsockopt(2) for a socket of the service; `None`: the kernel must do it.
///
/// # Safety
/// `value` and `len_bytes` are the arguments of setsockopt(2).
pub unsafe fn set(
    fd: ProgramFd,
    level: c_int,
    name: c_int,
    value: *const u8,
    len_bytes: socklen_t,
) -> Option<Result<(), Errno>> {
    if !matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6) {
        return None;
    }
    let client = client()?;
    let _errno = errno::SavedErrno::new();
    let known = client.service_socket(fd)?;
    let words = (len_bytes as usize / size_of::<c_int>()).min(2);
    if !is_readable(value as usize, words * size_of::<c_int>()) {
        return Some(Err(Errno::EFAULT));
    }
    // SAFETY: `is_readable` found that `words` words at `value` can be read, and `at` is below that.
    let word = |at: usize| (at < words).then(|| unsafe { value.cast::<c_int>().add(at).read_unaligned() });
    let before = SocketNote::load(fd);
    let (note, result) = match setting(before, level, name, [word(0), word(1)]) {
        Setting::Kernels => return None,
        Setting::Done => return Some(Ok(())),
        Setting::Legal => {
            // If no descriptor is left, the option counts as legal.
            let asked = ProbeSocket::new(is_v6(&known));
            // SAFETY: `value` and `len_bytes` are the program's arguments, which the kernel checks.
            return Some(asked.map_or(Ok(()), |asked| unsafe { asked.set(level, name, value, len_bytes) }));
        }
        Setting::Congestion => {
            let Some(asked) = ProbeSocket::new(is_v6(&known)) else { return Some(Err(Errno(libc::ENOBUFS))) };
            // SAFETY: `value` and `len_bytes` are the program's arguments, which the kernel checks.
            if let Err(why) = unsafe { asked.set(level, name, value, len_bytes) } {
                return Some(Err(why));
            }
            (SocketNote { congestion: congestion::number_of(asked.fd()), ..before }, Some(Ok(())))
        }
        Setting::Refused(why) => return Some(Err(Errno(why))),
        Setting::Both(note) => (note, None),
        Setting::Note(note) => (note, Some(Ok(()))),
    };
    if note != before {
        note.store(fd);
        if let ServiceSocket::Connection { connection, .. } = known {
            let _critical = Critical::enter();
            let _ = client.set_options(&connection, note.options());
        }
    }
    result
}

/// Implements getsockopt(2) for a socket of the service; `None`: `kernel` must do it.
///
/// # Safety
/// `value` and `len` are the arguments of getsockopt(2).
pub unsafe fn get(
    fd: ProgramFd,
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
    let _errno = errno::SavedErrno::new();
    let known = client.service_socket(fd)?;
    if level == libc::SOL_SOCKET && name == libc::SO_ERROR {
        // SAFETY: `value` and `len` are the program's arguments, as this function's caller promises.
        return unsafe { error(client, fd, &known, value, len, kernel) };
    }
    let found = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            let bytes = information(client, fd, &known);
            // SAFETY: `value` and `len` are the program's arguments, which `put` checks.
            return Some(bytes.and_then(|bytes| unsafe { put(&bytes, value, len) }));
        }
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            // SAFETY: `value` and `len` are the program's arguments, which `put` checks.
            return Some(unsafe { put(&u64::MAX.to_ne_bytes(), value, len) });
        }
        (libc::SOL_SOCKET, libc::SO_PEERCRED) => {
            // The kernel's answer for a socket that is not UNIX: process 0, user -1, group -1.
            let nobody = [0i32, -1, -1].map(i32::to_ne_bytes).concat();
            // SAFETY: `value` and `len` are the program's arguments, which `put` checks.
            return Some(unsafe { put(&nobody, value, len) });
        }
        (libc::SOL_SOCKET, libc::SO_PEERGROUPS | SO_PEERPIDFD) => return Some(Err(Errno(libc::ENODATA))),
        (libc::SOL_SOCKET, _) => number_of_socket(fd, &known, name)?,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let name = congestion::name(SocketNote::load(fd).congestion, client.congestion());
            // SAFETY: `value` and `len` are the program's arguments, which `put` checks.
            return Some(unsafe { put(&name, value, len) });
        }
        // These options need a connection of the kernel.
        (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE | libc::TCP_REPAIR) => {
            return Some(Err(Errno(libc::ENOPROTOOPT)));
        }
        (libc::IPPROTO_TCP, _) if let Some(number) = number(client, fd, &known, name) => number,
        _ => {
            let Some(asked) = ProbeSocket::new(is_v6(&known)) else {
                return Some(Err(Errno(libc::ENOPROTOOPT)));
            };
            // SAFETY: `value` and `len` are the program's arguments, which the kernel checks.
            return Some(unsafe { asked.get(level, name, value, len) });
        }
    };
    // SAFETY: `value` and `len` are the program's arguments, which `put` checks.
    Some(unsafe { put(&found.to_ne_bytes(), value, len) })
}

const fn is_v6(known: &ServiceSocket) -> bool {
    match known {
        ServiceSocket::Connection { is_v6, .. } => *is_v6,
        ServiceSocket::Bound(bound) => bound.is_v6(),
    }
}

/// Returns a socket-level option that differs from the UNIX socket's; `None`: the kernel's value is right.
fn number_of_socket(fd: ProgramFd, known: &ServiceSocket, name: c_int) -> Option<c_int> {
    match name {
        libc::SO_DOMAIN if is_v6(known) => Some(libc::AF_INET6),
        libc::SO_DOMAIN => Some(libc::AF_INET),
        libc::SO_PROTOCOL => Some(libc::IPPROTO_TCP),
        libc::SO_KEEPALIVE => Some(SocketNote::load(fd).keep_alive.into()),
        libc::SO_REUSEADDR => Some(SocketNote::load(fd).reuses_address.into()),
        libc::SO_REUSEPORT => Some(SocketNote::load(fd).reuses_port.into()),
        _ => None,
    }
}

/// Returns an integer option of TCP from the service or the note; `None`: another option.
fn number(client: &Client, fd: ProgramFd, known: &ServiceSocket, name: c_int) -> Option<c_int> {
    Some(match name {
        libc::TCP_NODELAY => SocketNote::load(fd).no_delay.into(),
        libc::TCP_MAXSEG => match known {
            ServiceSocket::Connection { connection, .. } => {
                let _critical = Critical::enter();
                client.info(connection).map_or(DEFAULT_MSS, |info| info.mss.cast_signed())
            }
            ServiceSocket::Bound(_) => DEFAULT_MSS,
        },
        libc::TCP_KEEPIDLE => SocketNote::load(fd).keepalive_times[0].into(),
        libc::TCP_KEEPINTVL => SocketNote::load(fd).keepalive_times[1].into(),
        libc::TCP_KEEPCNT => SocketNote::load(fd).keepalive_times[2].into(),
        libc::TCP_QUICKACK => 1,
        libc::TCP_CORK => SocketNote::load(fd).is_corked.into(),
        _ => return None,
    })
}

/// Implements SO_ERROR: the kernel's answer, replaced by the connection's own error if there is one.
unsafe fn error(
    client: &Client,
    fd: ProgramFd,
    known: &ServiceSocket,
    value: *mut u8,
    len: *mut socklen_t,
    kernel: &dyn Fn() -> c_int,
) -> Option<Result<(), Errno>> {
    let ServiceSocket::Connection { connection, .. } = known else { return None };
    if kernel() != 0 {
        return Some(Err(Errno(errno::get())));
    }
    if let Some(ConnectionState::Failed(why)) = client.connection_state(connection) {
        let why = if SocketNote::mark_error_reported(fd) { why } else { 0 };
        // SAFETY: getsockopt(2) has just succeeded, so the length at `len` can be read, and that many bytes at
        // `value`, at most those of an int, can be written.
        unsafe {
            let len_bytes = (len.read_unaligned() as usize).min(size_of::<c_int>());
            core::ptr::copy_nonoverlapping(why.to_ne_bytes().as_ptr(), value, len_bytes);
        }
    }
    Some(Ok(()))
}

/// Writes the value of an option, cut to the program's buffer, as the kernel does.
unsafe fn put(bytes: &[u8], value: *mut u8, len: *mut socklen_t) -> Result<(), Errno> {
    let len_of_len = size_of::<socklen_t>();
    if len.is_null() || writable_bytes(len as usize, len_of_len) < len_of_len {
        return Err(Errno::EFAULT);
    }
    // SAFETY: `writable_bytes` found that the length at `len` can be written, and so be read.
    let room_bytes = unsafe { len.read_unaligned() };
    if room_bytes > i32::MAX.cast_unsigned() {
        return Err(Errno::EINVAL);
    }
    let count = bytes.len().min(room_bytes as usize);
    if writable_bytes(value as usize, count) < count {
        return Err(Errno::EFAULT);
    }
    // SAFETY: `writable_bytes` found that `count` bytes at `value` and the length at `len` can be written;
    // `bytes` has at least `count` bytes, and the regions do not overlap.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), value, count);
        len.write_unaligned(count as socklen_t);
    }
    Ok(())
}

/// Size of `struct tcp_info` (linux/tcp.h) in Linux 5.5, bytes.
const INFO_BYTES: usize = 232;
/// TCP_CLOSE and TCP_LISTEN (include/net/tcp_states.h).
const CLOSED: u8 = 7;
const LISTENING: u8 = 10;

fn information(client: &Client, fd: ProgramFd, known: &ServiceSocket) -> Result<[u8; INFO_BYTES], Errno> {
    let _critical = Critical::enter();
    Ok(tcp_info(&match known {
        ServiceSocket::Bound(_) if is_listening(fd) => Info { state: LISTENING, ..Info::default() },
        ServiceSocket::Bound(_) => Info { state: CLOSED, ..Info::default() },
        ServiceSocket::Connection { connection, .. } => match client.info(connection) {
            Err(Errno(libc::ENOTCONN)) => Info { state: CLOSED, ..Info::default() },
            found => found?,
        },
    }))
}

fn tcp_info(info: &Info) -> [u8; INFO_BYTES] {
    let mut bytes = [0; INFO_BYTES];
    // Fields tcpi_state and tcpi_retransmits.
    bytes[0] = info.state;
    bytes[2] = u8::try_from(info.timeouts).unwrap_or(u8::MAX);
    let mss = info.mss.max(1);
    let window = u32::try_from(info.window_bytes / u64::from(mss)).unwrap_or(u32::MAX);
    // Fields tcpi_snd_mss, rcv_mss, lost, retrans, pmtu, rtt, rttvar, snd_ssthresh, snd_cwnd, advmss,
    // total_retrans.
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
    // Fields tcpi_bytes_acked and tcpi_bytes_received.
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
        let set =
            |level, name, value: c_int| setting(SocketNote::default(), level, name, [Some(value), Some(0)]);
        let tcp = libc::IPPROTO_TCP;
        assert!(matches!(set(tcp, libc::TCP_NODELAY, 7), Setting::Note(note) if note.no_delay));
        assert!(
            matches!(set(tcp, libc::TCP_KEEPCNT, 127), Setting::Note(note) if note.keepalive_times == [7200, 75, 127])
        );
        for value in [0, -1, 128] {
            assert!(matches!(set(tcp, libc::TCP_KEEPCNT, value), Setting::Refused(libc::EINVAL)));
        }
        let short = setting(SocketNote::default(), tcp, libc::TCP_NODELAY, [None, None]);
        assert!(matches!(short, Setting::Refused(libc::EINVAL)));
        assert!(matches!(set(tcp, libc::TCP_CORK, 1), Setting::Note(note) if note.is_corked));
        assert!(matches!(set(tcp, libc::TCP_SYNCNT, 1), Setting::Legal));
        assert!(matches!(set(tcp, libc::TCP_CONGESTION, 1), Setting::Congestion));
        assert!(matches!(set(tcp, libc::TCP_ULP, 1), Setting::Refused(libc::ENOENT)));
        assert!(
            matches!(set(libc::SOL_SOCKET, libc::SO_LINGER, 1), Setting::Both(note) if note.resets_on_close)
        );
        assert!(
            matches!(set(libc::SOL_SOCKET, libc::SO_LINGER, 0), Setting::Both(note) if !note.resets_on_close)
        );
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
        // SAFETY: `tcp_info` consists of integers and is no longer than `bytes`; the read is unaligned.
        let read = unsafe { bytes.as_ptr().cast::<libc::tcp_info>().read_unaligned() };
        assert_eq!((read.tcpi_state, read.tcpi_snd_mss, read.tcpi_rtt), (1, 1460, 99));
        assert_eq!((read.tcpi_snd_cwnd, read.tcpi_total_retrans), (10, 3));
        assert_eq!((read.tcpi_retransmits, read.tcpi_lost, read.tcpi_retrans), (1, 4, 2));
    }
}
