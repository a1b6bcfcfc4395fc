//! `uncopy net --tun …` and `--xdp …`: the service itself.

use super::{args, device};
use crate::log;
use crate::os;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Quoted, Reason};
use clap::ArgMatches;
use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use uncopy_net::message::{MAX_PREFIXES, Prefix};
use uncopy_netd::service::Service;
use uncopy_netd::settings::Settings;
use uncopy_store::mapped::file::Backing;
use uncopy_tcp::config::{CongestionControl, Ecn};

/// Reason why an option has a value even if the user gives none.
const HAS_DEFAULT: &str = "the option has a default in `args`";

/// Serves until a signal ends the process.
pub fn main(matches: &ArgMatches) -> u8 {
    let ethernet = matches.get_one::<(String, u32)>(args::XDP).cloned();
    let tun = matches.get_one::<OsString>(args::TUN).cloned().unwrap_or_default();
    let name = ethernet.as_ref().map_or(tun, |(device, _)| device.into());
    let prefixes: Vec<Prefix> = matches
        .get_many::<(IpAddr, u8)>(args::ADDRESS)
        .unwrap_or_default()
        .map(|(own, bits)| Prefix { service_address: *own, bits: *bits })
        .collect();
    if prefixes.len() > MAX_PREFIXES {
        output::print_message(format_args!(
            "--address is given {} times; it may be given at most {MAX_PREFIXES} times",
            prefixes.len()
        ));
        return EXIT_USAGE;
    }
    let peers: Vec<IpAddr> = matches.get_many::<IpAddr>(args::PEER).unwrap_or_default().copied().collect();
    let mut kernel_addresses = Vec::new();
    let with_kernel: &[Prefix] = if ethernet.is_some() { &[] } else { &prefixes };
    for prefix in with_kernel {
        match kernel_address(prefix, &peers) {
            Ok(peer) => kernel_addresses.push((peer, prefix.bits)),
            Err(why) => {
                output::print_message(why);
                return EXIT_USAGE;
            }
        }
    }
    let control = super::control_path(matches.get_one::<OsString>(args::SOCKET).unwrap_or(&name));
    if super::is_too_long(&control) {
        return EXIT_USAGE;
    }
    if let Err(error) = super::make_parents(&control) {
        output::print_message(format_args!("{}: {}", Quoted(control.as_os_str()), Reason(&error)));
        return EXIT_FAILURE;
    }
    let mtu_bytes = usize::from(*matches.get_one::<u16>(args::MTU).expect(HAS_DEFAULT));
    let pcap = matches.get_one::<OsString>(args::PCAP).map(PathBuf::from);
    let opened = match &ethernet {
        Some((interface, queue)) => device::open_xdp(interface, *queue, &prefixes, &peers, pcap.as_deref()),
        None => device::open_tun(
            &name.to_string_lossy(),
            mtu_bytes,
            &prefixes,
            &kernel_addresses,
            pcap.as_deref(),
        ),
    };
    let link = match opened {
        Ok(link) => link,
        Err(why) => {
            output::print_message(why);
            return EXIT_FAILURE;
        }
    };
    if let Err(error) = os::drop_privileges() {
        output::print_message(format_args!("cannot drop privileges: {}", Reason(&error)));
        return EXIT_FAILURE;
    }
    if let Some(directory) = matches.get_one::<OsString>(args::MEMORY_DIR).map(Path::new) {
        match log::memory::of_service(directory) {
            Err(why) => {
                output::print_message(why);
                return EXIT_FAILURE;
            }
            Ok(Backing::Emulated) => output::print_message(format_args!(
                "memory in {} emulates DAX: nothing there survives power loss",
                Quoted(directory.as_os_str())
            )),
            Ok(_) => {}
        }
    }
    // Each connection takes a descriptor.
    os::raise_descriptor_limit();
    let service = match Service::begin(service_settings(matches, &control, &prefixes), link) {
        Ok(service) => service,
        Err(error) => {
            print_control_error(&control, &error);
            return EXIT_FAILURE;
        }
    };
    for (index, prefix) in prefixes.iter().enumerate() {
        let kernel = kernel_addresses
            .get(index)
            .map(|(kernel, _)| format!("; the kernel's address there is {kernel}"));
        output::print_message(format_args!(
            "{} serves {}/{}{}",
            name.to_string_lossy(),
            prefix.service_address,
            prefix.bits,
            kernel.unwrap_or_default()
        ));
    }
    let socket = matches
        .get_one::<OsString>(args::SOCKET)
        .map_or_else(|| name.to_string_lossy().into_owned(), |_| control.to_string_lossy().into_owned());
    output::print_message(format_args!("run programs by: uncopy run --net {socket} -- CMD"));
    let result = service.run();
    super::remove_parents(&control);
    match result {
        Ok(()) => EXIT_OK,
        Err(error) => {
            output::print_message(format_args!("{} is gone: {}", name.to_string_lossy(), Reason(&error)));
            EXIT_FAILURE
        }
    }
}

/// Returns the service's settings from the command line.
fn service_settings(matches: &ArgMatches, control: &Path, prefixes: &[Prefix]) -> Settings {
    let value = |id| matches.get_one::<String>(id).expect(HAS_DEFAULT).as_str();
    let memory_bytes = *matches.get_one::<u64>(args::MEMORY).expect(HAS_DEFAULT);
    Settings {
        control: control.to_owned(),
        prefixes: prefixes.to_vec(),
        makes_api_copies: value(args::API_COPIES) == "make",
        memory_bytes: usize::try_from(memory_bytes).expect("at most 64 GiB"),
        memory_directory: matches
            .get_one::<OsString>(args::MEMORY_DIR)
            .and_then(|dir| std::path::absolute(dir).ok()),
        max_connections: uncopy_net::state_table::MAX_CONNECTIONS,
        congestion_control: match value(args::CONGESTION) {
            "newreno" => CongestionControl::NewReno,
            "cubic" => CongestionControl::Cubic,
            other => unreachable!("`args` allows no congestion control {other}"),
        },
        ecn: match value(args::ECN) {
            "off" => Ecn::Off,
            "request" => Ecn::Requested,
            "accept" => Ecn::Accepted,
            other => unreachable!("`args` allows no ECN mode {other}"),
        },
    }
}

/// Prints why there can be no service with this control socket.
fn print_control_error(control: &Path, error: &io::Error) {
    let control = Quoted(control.as_os_str());
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => output::print_message(format_args!(
            "{control} belongs to a running service; end that first, or give another --socket"
        )),
        Some(libc::EPERM) => output::print_message(format_args!(
            "other users can enter the directory of {control}; it must have mode 0700 (chmod 700)"
        )),
        _ => output::print_message(format_args!("{control}: {}", Reason(error))),
    }
}

/// Returns the kernel's address in a network: the one that was given, else the first that is not
/// the service's.
fn kernel_address(prefix: &Prefix, given: &[IpAddr]) -> Result<IpAddr, String> {
    if let Some(peer) = given.iter().find(|peer| prefix.contains(**peer)) {
        return if *peer == prefix.service_address {
            Err(format!("--peer {peer} is the service's own address"))
        } else {
            Ok(*peer)
        };
    }
    if given.iter().any(|peer| peer.is_ipv4() == prefix.service_address.is_ipv4()) {
        return Err(format!("--peer has no address in {}/{}", prefix.service_address, prefix.bits));
    }
    let first = |low: u128, own: u128| if low + 1 == own { low + 2 } else { low + 1 };
    Ok(match prefix.service_address {
        IpAddr::V4(own) => {
            let own = u128::from(own.to_bits());
            let low = own >> (32 - u32::from(prefix.bits)) << (32 - u32::from(prefix.bits));
            std::net::Ipv4Addr::from_bits(u32::try_from(first(low, own)).unwrap_or(u32::MAX)).into()
        }
        IpAddr::V6(own) => {
            let own = own.to_bits();
            let low = own >> (128 - u32::from(prefix.bits)) << (128 - u32::from(prefix.bits));
            std::net::Ipv6Addr::from_bits(first(low, own)).into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_the_first_address_that_is_free() {
        let peer = |own: &str, bits, given: &[&str]| {
            let prefix = Prefix { service_address: own.parse().expect("an address"), bits };
            let given: Vec<IpAddr> = given.iter().map(|text| text.parse().expect("an address")).collect();
            kernel_address(&prefix, &given).map(|peer| peer.to_string())
        };
        assert_eq!(peer("10.77.0.2", 24, &[]).as_deref(), Ok("10.77.0.1"));
        assert_eq!(peer("10.77.0.1", 24, &[]).as_deref(), Ok("10.77.0.2"));
        assert_eq!(peer("fd77::2", 64, &["10.77.0.9"]).as_deref(), Ok("fd77::1"));
        assert_eq!(peer("10.77.0.1", 24, &["fd77::1", "10.77.0.9"]).as_deref(), Ok("10.77.0.9"));
        assert!(peer("10.77.0.1", 24, &["10.77.0.1"]).is_err());
        assert!(peer("10.77.0.1", 24, &["10.78.0.1"]).is_err());
    }
}
