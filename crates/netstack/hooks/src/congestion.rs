//! TCP_CONGESTION. The kernel decides which names a program may choose. A choice that the service does not
//! implement is stored and reported by getsockopt(2), and has no effect.

use super::probe_socket::ProbeSocket;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use uncopy_net::message::Congestion;
use uncopy_sys::descriptor::{Descriptor, ProgramFd};
use uncopy_sys::tcp;

/// Length of a name in getsockopt(2), bytes (TCP_CA_NAME_MAX).
pub const NAME_BYTES: usize = 16;
/// Maximum number of a name, which takes five bits of a note.
pub const MAX_NUMBER: u8 = 31;

/// Names that Linux has (net/ipv4/tcp_*.c and bpf-tcp-ca.c, Linux 6.18), numbered from 1.
const NAMES: [&[u8]; 18] = [
    b"reno",
    b"cubic",
    b"bbr",
    b"bic",
    b"cdg",
    b"dctcp",
    b"dctcp-reno",
    b"highspeed",
    b"htcp",
    b"hybla",
    b"illinois",
    b"lp",
    b"nv",
    b"scalable",
    b"vegas",
    b"veno",
    b"westwood",
    b"yeah",
];
const _: () = assert!(NAMES.len() <= MAX_NUMBER as usize);

/// Returns the number of a kernel socket's congestion control; 0: unknown.
pub fn number_of(fd: impl Descriptor) -> u8 {
    let mut name = [0u8; NAME_BYTES];
    let mut len = NAME_BYTES as u32;
    // SAFETY: getsockopt(2) writes at most `len` bytes, the length of the local array `name`.
    let asked = unsafe {
        tcp::raw_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_mut_ptr(), &raw mut len)
    };
    if asked.is_err() {
        return 0;
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    NAMES.iter().position(|known| *known == &name[..end]).map_or(0, |at| at as u8 + 1)
}

/// Number of a new socket's congestion control, cached: asking takes a socket.
static DEFAULT: AtomicU8 = AtomicU8::new(u8::MAX);

/// Returns the number that a program has chosen for a kernel socket; 0: the default.
pub fn chosen_number(fd: ProgramFd) -> u8 {
    let found = number_of(fd);
    let default = match DEFAULT.load(Relaxed) {
        u8::MAX => {
            let default = ProbeSocket::new(false).map_or(found, |fresh| number_of(fresh.fd()));
            DEFAULT.store(default, Relaxed);
            default
        }
        default => default,
    };
    if found == default { 0 } else { found }
}

/// Sets the congestion control of a kernel socket, unless `number` is 0.
pub fn set_number(fd: impl Descriptor, number: u8) {
    if let Some(name) = usize::from(number).checked_sub(1).and_then(|at| NAMES.get(at)) {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        // SAFETY: setsockopt(2) reads `name.len()` bytes of `name`, a static string.
        let _ = unsafe { tcp::set_raw_option(fd, level, option, name.as_ptr(), name.len() as u32) };
    }
}

/// Converts a number to the service's congestion control; `None`: the service's default.
pub const fn to_service(number: u8) -> Option<Congestion> {
    match number {
        1 => Some(Congestion::Reno),
        2 => Some(Congestion::Cubic),
        _ => None,
    }
}

/// Returns the name for getsockopt(2); `own` is the service's default, for the number 0.
pub fn name(number: u8, own: Congestion) -> [u8; NAME_BYTES] {
    let number = match (number, own) {
        (0, Congestion::Reno) => 1,
        (0, Congestion::Cubic) => 2,
        (number, _) => number,
    };
    let mut name = [0; NAME_BYTES];
    let known = NAMES.get(usize::from(number.max(1)) - 1).copied().unwrap_or_default();
    name[..known.len()].copy_from_slice(known);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_the_kernels_and_one_of_the_services_have_names() {
        assert_eq!(&name(0, Congestion::Reno)[..5], b"reno\0");
        assert_eq!(&name(0, Congestion::Cubic)[..6], b"cubic\0");
        assert_eq!(&name(3, Congestion::Cubic)[..4], b"bbr\0");
        let fd = tcp::stream(libc::AF_INET).expect("a socket");
        assert_eq!(chosen_number(fd.as_program()), 0);
        // Every kernel has reno.
        // SAFETY: setsockopt(2) reads 4 bytes, the length of the static string.
        unsafe { tcp::set_raw_option(&fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno".as_ptr(), 4) }
            .expect("set");
        assert_eq!((number_of(&fd), to_service(number_of(&fd))), (1, Some(Congestion::Reno)));
    }
}
