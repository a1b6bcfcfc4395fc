//! What a program has set at a socket of the service's, and what it was told: kept in the socket's note, for whoever has the socket.
//!
//! ```text
//! bit 0  no delay        4  address is reused   8  joined
//!     1  keep alive      5  port is reused      9..14  congestion control
//!     2  reset           6  cork               16..32  idle time, seconds
//!     3  told            7  shut for reading   32..48  interval, 48..64 probes
//! ```
//!
//! An error is told once, as the kernel does it: `told` says that it was.

use super::congestion;
use core::ffi::c_int;
use uncopy_net::message::Options;
use uncopy_sys::{errno, tcp, unix};

/// Flags of a note.
const FLAGS: usize = 9;
/// Linux's defaults: seconds without a byte, seconds between probes, probes (tcp(7)).
pub const TIMES: [u16; 3] = [7200, 75, 9];
/// What the kernel takes at most of each (MAX_TCP_KEEPIDLE and its like, include/net/tcp.h).
pub const MAX_TIMES: [u16; 3] = [32_767, 32_767, 127];
/// The options of those.
pub const OF_TIMES: [c_int; 3] = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
/// What a program has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub no_delay: bool,
    pub keep_alive: bool,
    pub resets: bool,
    pub is_told: bool,
    pub reuses_address: bool,
    pub reuses_port: bool,
    /// TCP_CORK.
    pub corks: bool,
    /// The program has shut the connection for reading.
    pub is_shut_for_reading: bool,
    /// The program knows that it is connected: `connect` has said so, or `accept` has given it the connection.
    pub is_joined: bool,
    /// TCP_CONGESTION, a number of [`congestion`]'s; 0: the service's own.
    pub congestion: u8,
    pub times: [u16; 3],
}

impl Default for Kept {
    fn default() -> Self {
        Self::of_flags([false; FLAGS], 0, TIMES)
    }
}

impl Kept {
    const fn of_flags(flags: [bool; FLAGS], congestion: u8, times: [u16; 3]) -> Self {
        let [no_delay, keep_alive, resets, is_told, reuses_address, reuses_port, corks, is_shut, is_joined] =
            flags;
        Self {
            no_delay,
            keep_alive,
            resets,
            is_told,
            reuses_address,
            reuses_port,
            corks,
            is_shut_for_reading: is_shut,
            is_joined,
            congestion,
            times,
        }
    }

    fn note(self) -> u64 {
        let flags = [
            self.no_delay,
            self.keep_alive,
            self.resets,
            self.is_told,
            self.reuses_address,
            self.reuses_port,
            self.corks,
            self.is_shut_for_reading,
            self.is_joined,
        ];
        let [idle, interval, probes] = self.times.map(u64::from);
        let bits = flags.into_iter().enumerate().map(|(at, flag)| u64::from(flag) << at).sum::<u64>();
        bits | u64::from(self.congestion) << FLAGS | idle << 16 | interval << 32 | probes << 48
    }

    fn of_note(note: u64) -> Self {
        let flags = core::array::from_fn(|at| note >> at & 1 != 0);
        let congestion = (note >> FLAGS & u64::from(congestion::MAX_NUMBER)) as u8;
        Self::of_flags(flags, congestion, [(note >> 16) as u16, (note >> 32) as u16, (note >> 48) as u16])
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
            corks: is_set(libc::IPPROTO_TCP, libc::TCP_CORK),
            is_shut_for_reading: false,
            is_joined: false,
            congestion: congestion::chosen(fd),
            times,
        }
    }

    /// Sets them at one.
    pub fn set(self, fd: c_int) {
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
            Self { is_joined: true, ..Self::of_note(note) }.keep(accepted);
        }
    }

    /// The program is told that a connection is there: whether that is the first time.
    pub fn join(fd: c_int) -> bool {
        let kept = Self::of(fd);
        if !kept.is_joined {
            Self { is_joined: true, ..kept }.keep(fd);
        }
        !kept.is_joined
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
            congestion: congestion::of_service(self.congestion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_kept() {
        let kept = Kept::of_flags([true; FLAGS], congestion::MAX_NUMBER, [1, 32_767, 127]);
        for kept in [
            kept,
            Kept::default(),
            Kept { keep_alive: false, ..kept },
            Kept { is_joined: false, ..kept },
            Kept { congestion: 0, ..kept },
        ] {
            assert_eq!(Kept::of_note(kept.note()), kept);
            assert_ne!(kept.note(), u64::MAX, "which would be nothing");
        }
        assert_eq!(Kept::default().options(), Options::default());
        assert_eq!(kept.options().keepalive, Some([1, 32_767, 127]));
    }
}
