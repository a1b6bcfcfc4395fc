//! Checks what `uncopy net` needs, a TUN device or AF_XDP, and the configuration of the devices of
//! this user's services.

use super::Check;
use crate::net;
use crate::output::Reason;
use std::io;
use uncopy_link::device::{self, DeviceSettings, QUEUE_PACKETS};

/// MTU for one page of payload after the headers of IPv4 and TCP with timestamps.
const USUAL_MTU_BYTES: usize = 4148;
const HEADER_BYTES: usize = 52;
const PAGE_BYTES: usize = uncopy_core::addr::PAGE_BYTES;

/// Returns a check each of TUN and AF_XDP, and one of each TUN device of a service.
pub fn checks() -> Vec<Check> {
    let tun = tun(net::device::why_no_tun().as_ref());
    let xdp = xdp(net::device::why_no_xdp().as_ref());
    let devices = net::service_names().into_iter().filter_map(|name| {
        let seen = device::read_settings(&name).ok().filter(|seen| seen.is_tun)?;
        Some(check_device(&name, seen))
    });
    [tun, xdp].into_iter().chain(devices).collect()
}

fn tun(why_not: Option<&io::Error>) -> Check {
    const NAME: &str = "net --tun";
    let Some(error) = why_not else { return Check::ok(NAME, "can create TUN devices") };
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            Check::warning(NAME, "there is no /dev/net/tun").with_fix("modprobe tun")
        }
        Some(libc::EPERM | libc::EACCES) => Check::warning(NAME, "creating a TUN device needs CAP_NET_ADMIN")
            .with_fix("sudo uncopy net --tun utun0 --address 10.77.0.2/24"),
        _ => Check::warning(NAME, format!("/dev/net/tun: {}", Reason(error))),
    }
}

fn xdp(why_not: Option<&io::Error>) -> Check {
    const NAME: &str = "net --xdp";
    let Some(error) = why_not else {
        return Check::ok(NAME, "can create AF_XDP sockets and load XDP programs");
    };
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            Check::warning(NAME, "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF")
                .with_fix("sudo uncopy net --xdp IFACE --address ADDRESS/BITS")
        }
        // Nothing fixes a kernel or build without AF_XDP; a TUN device serves the same purpose.
        _ => Check::warning(NAME, format!("AF_XDP is not available: {}", Reason(error)))
            .with_fix("uncopy net --tun utun0 --address 10.77.0.2/24"),
    }
}

fn check_device(name: &str, seen: DeviceSettings) -> Check {
    const NAME: &str = "net device";
    let DeviceSettings { mtu_bytes, queue_packets, .. } = seen;
    let found = format!("{name}: MTU {mtu_bytes} bytes, queue of {queue_packets} packets");
    if i64::try_from(queue_packets).is_ok_and(|packets| packets < QUEUE_PACKETS.into()) {
        let found = format!("{found}: too short for a sender's window, so packets are lost");
        return Check::warning(NAME, found)
            .with_fix(format!("ip link set {name} txqueuelen {QUEUE_PACKETS}"));
    }
    if mtu_bytes < HEADER_BYTES || !(mtu_bytes - HEADER_BYTES).is_multiple_of(PAGE_BYTES) {
        let found = format!("{found}: a packet's payload is not whole pages, so more of it is copied");
        return Check::warning(NAME, found)
            .with_fix(format!("stop the service, then: uncopy net --tun {name} --mtu {USUAL_MTU_BYTES} …"));
    }
    Check::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_device_has_whole_pages_and_a_long_queue() {
        let of = |mtu_bytes, queue_packets| {
            check_device("utun0", DeviceSettings { mtu_bytes, queue_packets, is_tun: true })
        };
        assert_eq!(of(4148, 5000).state, State::Ok);
        assert_eq!(of(8244, 9000).state, State::Ok);
        let short = of(4148, 1000);
        assert_eq!(short.state, State::Warning);
        assert_eq!(short.fix.as_deref(), Some("ip link set utun0 txqueuelen 5000"));
        for mtu_bytes in [20, 1500, 65_520] {
            let odd = of(mtu_bytes, 5000);
            assert_eq!(odd.state, State::Warning);
            assert!(odd.fix.is_some_and(|fix| fix.contains("--mtu 4148")));
        }
    }

    #[test]
    fn what_is_impossible_is_a_warning_with_what_to_type() {
        let of = |check: Check| (check.state, check.fix.unwrap_or_default());
        let error = |number| Some(io::Error::from_raw_os_error(number));
        assert_eq!(of(tun(None)), (State::Ok, String::new()));
        assert_eq!(of(xdp(None)), (State::Ok, String::new()));
        assert_eq!(of(tun(error(libc::ENOENT).as_ref())), (State::Warning, "modprobe tun".to_owned()));
        let sudo = [tun(error(libc::EPERM).as_ref()), xdp(error(libc::EPERM).as_ref())].map(of);
        assert!(
            sudo.iter().all(|(state, mend)| *state == State::Warning && mend.starts_with("sudo uncopy net"))
        );
        let (state, mend) = of(xdp(error(libc::EAFNOSUPPORT).as_ref()));
        assert!(state == State::Warning && mend.starts_with("uncopy net --tun"));
    }
}
