//! The command line of `uncopy net`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint, value_parser};
use std::ffi::OsString;
use std::net::IpAddr;
use uncopy_core::size;

// Ids of options and arguments, as they are typed.
pub const TUN: &str = "tun";
pub const XDP: &str = "xdp";
pub const ADDRESS: &str = "address";
pub const PEER: &str = "peer";
pub const MTU: &str = "mtu";
pub const SOCKET: &str = "socket";
pub const PCAP: &str = "pcap";
pub const API_COPIES: &str = "api-copies";
pub const MEMORY: &str = "memory";
pub const MEMORY_DIR: &str = "memory-dir";
pub const CONGESTION: &str = "congestion";
pub const ECN: &str = "ecn";
pub const JSON: &str = "json";

const NOTES: &str = "\
Examples:
  sudo uncopy net --tun utun0 --address 10.77.0.2/24
      Serve 10.77.0.2 on a network where the kernel has 10.77.0.1.
  uncopy run --net utun0 -- redis-server --bind 0.0.0.0 --protected-mode no
      Run Redis on that address: redis-cli -h 10.77.0.2
  uncopy net ls utun0
      List listeners and connections.
  sudo uncopy net --xdp eth1 --address 192.168.7.2/24
      Serve other hosts on that Ethernet, past the kernel's TCP/IP stack.

Runs a TCP/IP stack in this process, for programs of the same user under 'uncopy run --net'. Programs get what it \
receives by reference, and what they send goes to the device from where it is. Connections to addresses in its \
network go through the service, all others through the kernel. --tun creates a TUN device, which needs \
CAP_NET_ADMIN; the device disappears when SIGINT or SIGTERM ends the service. --xdp takes the packets for the \
service's addresses from an existing device; the kernel gets all others. docs/net.md describes the service.

Exit status: 0; 1 if the service could not start or its device is gone; 2 for a wrong command line.";

fn parse_address(text: &str) -> Result<(IpAddr, u8), String> {
    let legal = "it must be an address with a prefix length, such as 10.77.0.2/24 or fd77::2/64";
    let (address, bits) = text.split_once('/').ok_or(legal)?;
    let address: IpAddr = address.parse().map_err(|_| legal)?;
    let bits: u8 = bits.parse().map_err(|_| legal)?;
    let most = if address.is_ipv4() { 30 } else { 126 };
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err("it must be a host's address, not an unspecified, multicast or loopback one".to_owned());
    }
    if (1..=most).contains(&bits) {
        Ok((address, bits))
    } else {
        Err(format!("the prefix length must be 1 to {most}"))
    }
}

fn parse_queue(text: &str) -> Result<(String, u32), String> {
    let legal = "it must be a device, or a device and a queue number, such as eth1 or eth1:2";
    let (device, queue) = text.split_once(':').unwrap_or((text, "0"));
    match queue.parse() {
        Ok(queue) if !device.is_empty() => Ok((device.to_owned(), queue)),
        _ => Err(legal.to_owned()),
    }
}

fn service_arg() -> Arg {
    Arg::new(SOCKET)
        .value_name("NAME|SOCKET")
        .help("The service, by the name of its device or by its control socket")
        .required(true)
        .value_parser(value_parser!(OsString))
        .value_hint(ValueHint::FilePath)
}

fn json_arg() -> Arg {
    Arg::new(JSON).long(JSON).help("Print one JSON object").action(ArgAction::SetTrue)
}

/// Returns the definition of `uncopy net`.
pub fn command() -> Command {
    let value = |id: &'static str, name: &'static str, help: &'static str| {
        Arg::new(id).long(id).value_name(name).help(help).action(ArgAction::Set)
    };
    Command::new("net")
        .about("Serve a user-level TCP to programs under 'uncopy run --net'")
        .override_usage(
            "uncopy net --tun NAME --address ADDRESS/BITS [OPTIONS]\n       uncopy net --xdp IFACE[:QUEUE] --address ADDRESS/BITS [OPTIONS]\n       uncopy net ls|stats [--json] NAME|SOCKET",
        )
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .arg(value(TUN, "NAME", "Create a TUN device of this name").required_unless_present(XDP).value_parser(value_parser!(OsString)))
        .arg(
            value(XDP, "IFACE[:QUEUE]", "Take packets from this queue of an Ethernet device, by AF_XDP [default queue: 0]")
                .conflicts_with_all([TUN, MTU])
                .value_parser(parse_queue),
        )
        .arg(
            value(ADDRESS, "ADDRESS/BITS", "The service's address and prefix length; may be repeated, for IPv4 and IPv6")
                .required(true)
                .action(ArgAction::Append)
                .value_parser(parse_address),
        )
        .arg(
            value(PEER, "ADDRESS", "With --tun, the kernel's address in that network [default: the first free one]; with --xdp, the router to other networks [default: none]")
                .action(ArgAction::Append)
                .value_parser(value_parser!(IpAddr)),
        )
        .arg(
            value(MTU, "BYTES", "MTU of the device; with 4148, the payload of a packet is one page")
                .default_value("4148")
                .value_parser(value_parser!(u16).range(1280..)),
        )
        .arg(
            value(SOCKET, "PATH", "Control socket, in a directory that only this user can enter [default: named after the device]")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            value(PCAP, "FILE", "Write every packet to FILE, for Wireshark or tcpdump -r")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            value(API_COPIES, "make|elide", "Make or elide the copy between the TCP and programs that the kernel's sockets make")
                .default_value("elide")
                .value_parser(PossibleValuesParser::new(["make", "elide"])),
        )
        .arg(
            value(MEMORY, "SIZE", "Memory shared with programs (16M to 64G)")
                .default_value("256M")
                .value_parser(|text: &str| size::parse_within::<u64>(text, 16 << 20..=64 << 30)),
        )
        .arg(
            value(MEMORY_DIR, "DIR", "Keep that memory in DIR, the directory of 'run --log DIR --log-mode only', so that logs refer to what arrives")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::DirPath),
        )
        .arg(
            value(CONGESTION, "cubic|newreno", "Congestion control")
                .default_value("cubic")
                .value_parser(PossibleValuesParser::new(["cubic", "newreno"])),
        )
        .arg(
            value(ECN, "off|accept|request", "Explicit congestion notification: off, accepted from peers that request it, or requested")
                .default_value("accept")
                .value_parser(PossibleValuesParser::new(["off", "accept", "request"])),
        )
        .subcommands([
            Command::new("ls").about("List listeners and connections").arg(service_arg()).arg(json_arg()),
            Command::new("stats").about("Print traffic totals").arg(service_arg()).arg(json_arg()),
        ])
        .after_help(NOTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_addresses_of_hosts() {
        assert_eq!(parse_address("10.77.0.2/24"), Ok(("10.77.0.2".parse().expect("an address"), 24)));
        assert!(parse_address("fd77::2/64").is_ok());
        for bad in [
            "10.77.0.2",
            "10.77.0.2/31",
            "10.77.0.2/0",
            "0.0.0.0/8",
            "127.0.0.1/8",
            "::1/64",
            "x/24",
            "224.0.0.1/24",
        ] {
            assert!(parse_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_queue_is_that_of_a_device() {
        assert_eq!(parse_queue("eth1"), Ok(("eth1".to_owned(), 0)));
        assert_eq!(parse_queue("eth1:3"), Ok(("eth1".to_owned(), 3)));
        for bad in ["", ":1", "eth1:", "eth1:x", "eth1:-1", "eth1:1:2"] {
            assert!(parse_queue(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn it_serves_or_shows() {
        let parses = |line: &[&str]| command().try_get_matches_from([&["net"], line].concat()).is_ok();
        assert!(parses(&["--tun", "u0", "--address", "10.7.0.2/24"]));
        assert!(parses(&["--xdp", "eth1:2", "--address", "10.7.0.2/24"]));
        assert!(parses(&["ls", "u0"]) && parses(&["stats", "--json", "u0"]));
        for bad in [
            &["--address", "10.7.0.2/24"][..],
            &["--xdp", "eth1"],
            &["--xdp", "eth1", "--tun", "u0", "--address", "10.7.0.2/24"],
            &["--xdp", "eth1", "--mtu", "1500", "--address", "10.7.0.2/24"],
            &["--tun", "u0"],
            &["ls"],
            &["--tun", "u0", "--address", "10.7.0.2/24", "ls", "u0"],
        ] {
            assert!(!parses(bad), "{bad:?}");
        }
    }
}
