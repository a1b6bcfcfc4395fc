//! Options and state of a socket of the service, in a note that all processes with the socket share.
//!
//! ```text
//! bit 0  no delay        4  address is reused   8      established
//!     1  keep alive      5  port is reused      9..14  congestion control
//!     2  reset           6  cork               16..32  idle time, seconds
//!     3  error reported  7  shut for reading   32..48  interval, 48..64 probes
//! ```
//!
//! An error is reported once, as by the kernel: bit 3 is set after that.

use super::congestion;
use core::ffi::c_int;
use uncopy_net::message::Options;
use uncopy_sys::descriptor::{Descriptor, ProgramFd};
use uncopy_sys::{errno, tcp, unix};

const FLAGS: usize = 9;
/// Linux's defaults of [`KEEPALIVE_OPTIONS`]: seconds of idle time, seconds between probes, number of probes (tcp(7)).
pub const DEFAULT_KEEPALIVE_TIMES: [u16; 3] = [7200, 75, 9];
/// Linux's maximum values of [`KEEPALIVE_OPTIONS`] (MAX_TCP_KEEPIDLE and so on, include/net/tcp.h).
pub const MAX_KEEPALIVE_TIMES: [u16; 3] = [32_767, 32_767, 127];
pub const KEEPALIVE_OPTIONS: [c_int; 3] = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
/// Options that the program has set on a socket, and the state of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketNote {
    pub no_delay: bool,
    pub keep_alive: bool,
    pub resets_on_close: bool,
    pub is_error_reported: bool,
    pub reuses_address: bool,
    pub reuses_port: bool,
    pub is_corked: bool,
    pub is_shut_for_reading: bool,
    /// Whether the program knows that the connection is established, from `connect` or `accept`.
    pub is_established_reported: bool,
    /// TCP_CONGESTION as a number of [`congestion`]; 0: the service's default.
    pub congestion: u8,
    pub keepalive_times: [u16; 3],
}

impl Default for SocketNote {
    fn default() -> Self {
        Self::of_flags([false; FLAGS], 0, DEFAULT_KEEPALIVE_TIMES)
    }
}

impl SocketNote {
    const fn of_flags(flags: [bool; FLAGS], congestion: u8, keepalive_times: [u16; 3]) -> Self {
        let [
            no_delay,
            keep_alive,
            resets_on_close,
            is_error_reported,
            reuses_address,
            reuses_port,
            is_corked,
            is_shut,
            is_established_reported,
        ] = flags;
        Self {
            no_delay,
            keep_alive,
            resets_on_close,
            is_error_reported,
            reuses_address,
            reuses_port,
            is_corked,
            is_shut_for_reading: is_shut,
            is_established_reported,
            congestion,
            keepalive_times,
        }
    }

    fn bits(self) -> u64 {
        let flags = [
            self.no_delay,
            self.keep_alive,
            self.resets_on_close,
            self.is_error_reported,
            self.reuses_address,
            self.reuses_port,
            self.is_corked,
            self.is_shut_for_reading,
            self.is_established_reported,
        ];
        let [idle, interval, probes] = self.keepalive_times.map(u64::from);
        let bits = flags.into_iter().enumerate().map(|(at, flag)| u64::from(flag) << at).sum::<u64>();
        bits | u64::from(self.congestion) << FLAGS | idle << 16 | interval << 32 | probes << 48
    }

    fn of_bits(bits: u64) -> Self {
        let flags = core::array::from_fn(|at| bits >> at & 1 != 0);
        let congestion = (bits >> FLAGS & u64::from(congestion::MAX_NUMBER)) as u8;
        Self::of_flags(flags, congestion, [(bits >> 16) as u16, (bits >> 32) as u16, (bits >> 48) as u16])
    }

    pub fn from_tcp(fd: ProgramFd) -> Self {
        let ask = |level, name| tcp::option(fd, level, name).ok();
        let mut keepalive_times = DEFAULT_KEEPALIVE_TIMES;
        for (time, name) in keepalive_times.iter_mut().zip(KEEPALIVE_OPTIONS) {
            *time = ask(libc::IPPROTO_TCP, name).and_then(|value| u16::try_from(value).ok()).unwrap_or(*time);
        }
        let is_set = |level, name| ask(level, name).is_some_and(|value| value != 0);
        Self {
            no_delay: is_set(libc::IPPROTO_TCP, libc::TCP_NODELAY),
            keep_alive: is_set(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            resets_on_close: tcp::linger(fd) == Some((true, 0)),
            is_error_reported: false,
            reuses_address: is_set(libc::SOL_SOCKET, libc::SO_REUSEADDR),
            reuses_port: is_set(libc::SOL_SOCKET, libc::SO_REUSEPORT),
            is_corked: is_set(libc::IPPROTO_TCP, libc::TCP_CORK),
            is_shut_for_reading: false,
            is_established_reported: false,
            congestion: congestion::chosen_number(fd),
            keepalive_times,
        }
    }

    pub fn apply_to(self, fd: impl Descriptor) {
        let set = |level, name, value| _ = tcp::set_option(fd, level, name, value);
        set(libc::IPPROTO_TCP, libc::TCP_NODELAY, self.no_delay.into());
        set(libc::IPPROTO_TCP, libc::TCP_CORK, self.is_corked.into());
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, self.keep_alive.into());
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, self.reuses_address.into());
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, self.reuses_port.into());
        for (time, name) in self.keepalive_times.into_iter().zip(KEEPALIVE_OPTIONS) {
            set(libc::IPPROTO_TCP, name, time.into());
        }
        congestion::set_number(fd, self.congestion);
    }

    /// Reads the note of a socket of the service.
    pub fn load(fd: ProgramFd) -> Self {
        unix::stored_word(fd).map_or_else(Self::default, Self::of_bits)
    }

    /// Stores the note of a socket of the service.
    pub fn store(self, fd: ProgramFd) {
        let _ = unix::store_word(fd, self.bits());
    }

    /// Notes that the program gets a connection's error. Returns true the first time.
    pub fn mark_error_reported(fd: ProgramFd) -> bool {
        let note = Self::load(fd);
        if !note.is_error_reported {
            Self { is_error_reported: true, ..note }.store(fd);
        }
        !note.is_error_reported
    }

    /// Copies the options of a listener to an accepted connection.
    pub fn copy_to_accepted(listener: ProgramFd, accepted: ProgramFd) {
        let _errno = errno::SavedErrno::new();
        if let Some(bits) = unix::stored_word(listener)
            && unix::own_name(accepted).is_some()
        {
            Self { is_established_reported: true, ..Self::of_bits(bits) }.store(accepted);
        }
    }

    /// Notes that the program learns that a connection is established. Returns true the first time.
    pub fn mark_established_reported(fd: ProgramFd) -> bool {
        let note = Self::load(fd);
        if !note.is_established_reported {
            Self { is_established_reported: true, ..note }.store(fd);
        }
        !note.is_established_reported
    }

    pub const fn reuses_port(self) -> bool {
        self.reuses_port
    }

    pub fn options(self) -> Options {
        Options {
            no_delay: self.no_delay,
            keepalive: self.keep_alive.then_some(self.keepalive_times),
            resets_on_close: self.resets_on_close,
            congestion: congestion::to_service(self.congestion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_kept() {
        let note = SocketNote::of_flags([true; FLAGS], congestion::MAX_NUMBER, [1, 32_767, 127]);
        for note in [
            note,
            SocketNote::default(),
            SocketNote { keep_alive: false, ..note },
            SocketNote { is_established_reported: false, ..note },
            SocketNote { congestion: 0, ..note },
        ] {
            assert_eq!(SocketNote::of_bits(note.bits()), note);
            assert_ne!(note.bits(), u64::MAX, "which would be nothing");
        }
        assert_eq!(SocketNote::default().options(), Options::default());
        assert_eq!(note.options().keepalive, Some([1, 32_767, 127]));
    }
}
