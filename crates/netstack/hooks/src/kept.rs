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
/// Linux's defaults of [`OF_TIMES`]: seconds of idle time, seconds between probes, number of probes (tcp(7)).
pub const TIMES: [u16; 3] = [7200, 75, 9];
/// Linux's maximum values of [`OF_TIMES`] (MAX_TCP_KEEPIDLE and so on, include/net/tcp.h).
pub const MAX_TIMES: [u16; 3] = [32_767, 32_767, 127];
pub const OF_TIMES: [c_int; 3] = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
/// Options that the program has set on a socket, and the state of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketNote {
    pub no_delay: bool,
    pub keep_alive: bool,
    pub resets: bool,
    pub is_error_reported: bool,
    pub reuses_address: bool,
    pub reuses_port: bool,
    pub corks: bool,
    pub is_shut_for_reading: bool,
    /// Whether the program knows that the connection is established, from `connect` or `accept`.
    pub knows_established: bool,
    /// TCP_CONGESTION as a number of [`congestion`]; 0: the service's default.
    pub congestion: u8,
    pub times: [u16; 3],
}

impl Default for SocketNote {
    fn default() -> Self {
        Self::of_flags([false; FLAGS], 0, TIMES)
    }
}

impl SocketNote {
    const fn of_flags(flags: [bool; FLAGS], congestion: u8, times: [u16; 3]) -> Self {
        let [
            no_delay,
            keep_alive,
            resets,
            is_error_reported,
            reuses_address,
            reuses_port,
            corks,
            is_shut,
            knows_established,
        ] = flags;
        Self {
            no_delay,
            keep_alive,
            resets,
            is_error_reported,
            reuses_address,
            reuses_port,
            corks,
            is_shut_for_reading: is_shut,
            knows_established,
            congestion,
            times,
        }
    }

    fn bits(self) -> u64 {
        let flags = [
            self.no_delay,
            self.keep_alive,
            self.resets,
            self.is_error_reported,
            self.reuses_address,
            self.reuses_port,
            self.corks,
            self.is_shut_for_reading,
            self.knows_established,
        ];
        let [idle, interval, probes] = self.times.map(u64::from);
        let bits = flags.into_iter().enumerate().map(|(at, flag)| u64::from(flag) << at).sum::<u64>();
        bits | u64::from(self.congestion) << FLAGS | idle << 16 | interval << 32 | probes << 48
    }

    fn of_bits(bits: u64) -> Self {
        let flags = core::array::from_fn(|at| bits >> at & 1 != 0);
        let congestion = (bits >> FLAGS & u64::from(congestion::MAX_NUMBER)) as u8;
        Self::of_flags(flags, congestion, [(bits >> 16) as u16, (bits >> 32) as u16, (bits >> 48) as u16])
    }

    pub fn of_tcp(fd: ProgramFd) -> Self {
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
            is_error_reported: false,
            reuses_address: is_set(libc::SOL_SOCKET, libc::SO_REUSEADDR),
            reuses_port: is_set(libc::SOL_SOCKET, libc::SO_REUSEPORT),
            corks: is_set(libc::IPPROTO_TCP, libc::TCP_CORK),
            is_shut_for_reading: false,
            knows_established: false,
            congestion: congestion::chosen(fd),
            times,
        }
    }

    pub fn set(self, fd: impl Descriptor) {
        let set = |level, name, value| _ = tcp::set_option(fd, level, name, value);
        set(libc::IPPROTO_TCP, libc::TCP_NODELAY, self.no_delay.into());
        set(libc::IPPROTO_TCP, libc::TCP_CORK, self.corks.into());
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, self.keep_alive.into());
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, self.reuses_address.into());
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, self.reuses_port.into());
        for (time, name) in self.times.into_iter().zip(OF_TIMES) {
            set(libc::IPPROTO_TCP, name, time.into());
        }
        congestion::choose(fd, self.congestion);
    }

    /// Reads the note of a socket of the service.
    pub fn of(fd: ProgramFd) -> Self {
        unix::note(fd).map_or_else(Self::default, Self::of_bits)
    }

    /// Stores the note of a socket of the service.
    pub fn keep(self, fd: ProgramFd) {
        let _ = unix::set_note(fd, self.bits());
    }

    /// Notes that the program gets a connection's error. Returns true the first time.
    pub fn report_error(fd: ProgramFd) -> bool {
        let note = Self::of(fd);
        if !note.is_error_reported {
            Self { is_error_reported: true, ..note }.keep(fd);
        }
        !note.is_error_reported
    }

    /// Copies the options of a listener to an accepted connection.
    pub fn copy_to_accepted(listener: ProgramFd, accepted: ProgramFd) {
        let _errno = errno::Keep::new();
        if let Some(bits) = unix::note(listener)
            && unix::own_name(accepted).is_some()
        {
            Self { knows_established: true, ..Self::of_bits(bits) }.keep(accepted);
        }
    }

    /// Notes that the program learns that a connection is established. Returns true the first time.
    pub fn report_established(fd: ProgramFd) -> bool {
        let note = Self::of(fd);
        if !note.knows_established {
            Self { knows_established: true, ..note }.keep(fd);
        }
        !note.knows_established
    }

    pub const fn reuses_port(self) -> bool {
        self.reuses_port
    }

    pub fn options(self) -> Options {
        Options {
            no_delay: self.no_delay,
            keepalive: self.keep_alive.then_some(self.times),
            resets: self.resets,
            congestion: congestion::of_service(self.congestion),
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
            SocketNote { knows_established: false, ..note },
            SocketNote { congestion: 0, ..note },
        ] {
            assert_eq!(SocketNote::of_bits(note.bits()), note);
            assert_ne!(note.bits(), u64::MAX, "which would be nothing");
        }
        assert_eq!(SocketNote::default().options(), Options::default());
        assert_eq!(note.options().keepalive, Some([1, 32_767, 127]));
    }
}
