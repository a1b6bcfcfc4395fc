//! TCP_CONGESTION. The kernel says which names a program may choose; what the service does not have is kept, read as it was set, and
//! changes nothing.

use super::stand_in::StandIn;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use uncopy_net::message::Congestion;
use uncopy_sys::tcp;

/// Bytes of a name as getsockopt gives it (TCP_CA_NAME_MAX).
pub const NAME_BYTES: usize = 16;
/// Greatest number of a name: there are five bits for it.
pub const MAX_NUMBER: u8 = 31;

/// The names that Linux has (net/ipv4/tcp_*.c and bpf-tcp-ca.c, Linux 6.18), by their numbers from 1 on.
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

/// The number of the congestion control that a socket of the kernel's has; 0: none that is known.
pub fn number_of(fd: c_int) -> u8 {
    let mut name = [0u8; NAME_BYTES];
    let mut len = NAME_BYTES as u32;
    // SAFETY: room for as many bytes as is said.
    let asked = unsafe {
        tcp::any_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_mut_ptr(), &raw mut len)
    };
    if asked.is_err() {
        return 0;
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    NAMES.iter().position(|known| *known == &name[..end]).map_or(0, |at| at as u8 + 1)
}

/// The number of what a new socket has, asked once for this process: for every connection that would take a socket more.
static DEFAULT: AtomicU8 = AtomicU8::new(u8::MAX);

/// The number of what a program has chosen for a socket of the kernel's; 0: it has the default one.
pub fn chosen(fd: c_int) -> u8 {
    let found = number_of(fd);
    let default = match DEFAULT.load(Relaxed) {
        u8::MAX => {
            let default = StandIn::new(false).map_or(found, |fresh| number_of(fresh.fd()));
            DEFAULT.store(default, Relaxed);
            default
        }
        default => default,
    };
    if found == default { 0 } else { found }
}

/// Chooses what has this number for a socket of the kernel's, unless it is 0.
pub fn choose(fd: c_int, number: u8) {
    if let Some(name) = usize::from(number).checked_sub(1).and_then(|at| NAMES.get(at)) {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        // SAFETY: as many valid bytes as is said.
        let _ = unsafe { tcp::set_any_option(fd, level, option, name.as_ptr(), name.len() as u32) };
    }
}

/// What of it the service has; `None`: it keeps to its own.
pub const fn of_service(number: u8) -> Option<Congestion> {
    match number {
        1 => Some(Congestion::Reno),
        2 => Some(Congestion::Cubic),
        _ => None,
    }
}

/// The name as getsockopt gives it; that of the service's own where none was chosen.
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
        assert_eq!(chosen(fd), 0);
        // reno is what every kernel has.
        // SAFETY: a valid name.
        unsafe { tcp::set_any_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno".as_ptr(), 4) }
            .expect("set");
        assert_eq!((number_of(fd), of_service(number_of(fd))), (1, Some(Congestion::Reno)));
        uncopy_sys::file::close(fd);
    }
}
