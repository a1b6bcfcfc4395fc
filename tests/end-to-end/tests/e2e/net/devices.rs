//! The service's devices: Ethernet by AF_XDP, and a TUN device that was prepared for it.

use super::{echo_by_kernel_server, echo_two_kernel_clients, python};
use uncopy_tests::artifacts::{bin_dir, plain_only};
use uncopy_tests::net_service::{KERNEL_V4, NetService, SERVICE_V4, SERVICE_V6};
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

#[test]
fn af_xdp_transfers_bytes_intact_both_ways() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-xdp");
    let capture = scratch.join("packets");
    let Some(service) = NetService::start_by_xdp(&scratch, &["--pcap", capture.to_str().expect("UTF-8")])
    else {
        return;
    };
    let veth_pair = service.veth_pair().expect("it has one");
    assert!(veth_pair.has_program(&scratch));
    // The kernel's end finds the service by ARP and by neighbour discovery.
    for (mode, server_address, to) in [(Mode::Always, "0.0.0.0", SERVICE_V4), (Mode::Auto, "::", SERVICE_V6)]
    {
        let _ = echo_two_kernel_clients(&service, &scratch, mode, server_address, to);
        service.wait_until_no_connections();
    }
    // The service finds the kernel's end.
    for (address, port) in [(KERNEL_V4, "7001"), ("fd77::1", "7002")] {
        let _ = echo_by_kernel_server(&service, &scratch, address, port);
    }
    let nobody = r#"
for address, family in ("10.77.0.77", socket.AF_INET), ("fd77::77", socket.AF_INET6):
    one = socket.socket(family)
    one.settimeout(60)
    expect(errno.EHOSTUNREACH, one.connect, (address, 9))
"#;
    let program = service.program(python(&scratch, "nobody", nobody, &[]), Mode::Always);
    drop(program.start(&scratch, "nobody").finish().expect_success());
    service.wait_until_no_connections();
    service.stop();
    assert!(std::fs::metadata(&capture).expect("written").len() > 1 << 20);
}

#[test]
fn killed_service_releases_its_device_for_the_next() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-xdp-killed");
    let Some(service) = NetService::start_by_xdp(&scratch, &[]) else { return };
    let veth_pair = service.veth_pair().expect("it has one");
    assert!(veth_pair.has_program(&scratch));
    // A control socket's path has at most 107 bytes.
    let directory = Scratch::in_memory("net");
    let start_service = |device: &str| {
        let uncopy = bin_dir().join("uncopy");
        let control = directory.join("n/control");
        veth_pair
            .near(&[uncopy.to_str().expect("UTF-8"), "net", "--xdp", device, "--address", "10.77.0.2/24"])
            .args(["--socket".as_ref(), control.as_os_str()])
            .start(&scratch, "again")
    };
    let expect_refused = |device: &str, why: &str| {
        let done = start_service(device).finish();
        assert_eq!(done.status.code(), Some(1));
        assert!(done.text().contains(why), "{}", done.text());
    };
    expect_refused("near", "queue 0 is in use; end its user, or give another: --xdp near:QUEUE");
    expect_refused("near:7", "it has no queue 7; ethtool -l near shows the number of queues");
    expect_refused("other", "there is no such device; ip link lists them");
    expect_refused("lo", "it is not an Ethernet device");
    service.kill();
    wait_until("the device without a program", || (!veth_pair.has_program(&scratch)).then_some(()));
    let next = start_service("near");
    wait_until("the next service", || {
        assert!(!next.has_ended(), "{}", next.errors());
        next.errors().contains("run programs by").then_some(())
    });
    assert!(next.stop(libc::SIGTERM).status.success());
    assert!(!veth_pair.has_program(&scratch));
}

/// Without a ready device the service prints the commands that make one. An address that the kernel
/// routes to another device is refused.
#[test]
fn prepared_tun_device_needs_no_privileges() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-ready");
    let directory = Scratch::in_memory("net");
    let script = r#"
ip link set lo up
bare="setpriv --bounding-set -all --inh-caps -all"
serve() { tun=$1; address=$2; shift 2; exec "$@" "$uncopy" net --tun $tun --address $address --socket "$control$tun/n/control"; }
types() { sed -n 's/.*: sudo /sudo /p' | sed 's/sudo //g'; }
made=$(serve utun0 10.77.0.2/24 $bare 2>&1 >/dev/null) && exit 3
echo "$made" >&2
eval "$(echo "$made" | types)"
ready=$(serve utun0 10.77.0.2/24 $bare 2>&1 >/dev/null) && exit 4
echo "$ready" >&2
eval "$(echo "$ready" | types)"
serve utun0 10.77.0.2/24 $bare &
first=$!
tries=0
until [ -e "$control"utun0/n/control ]; do tries=$((tries + 1)); [ $tries -lt 400 ]; sleep 0.05; done
other=$(serve utun1 10.77.0.3/24 2>&1 >/dev/null) && exit 5
echo "$other" >&2
serve utun1 10.78.0.2/24 &
second=$!
tries=0
until [ -e "$control"utun1/n/control ]; do tries=$((tries + 1)); [ $tries -lt 400 ]; sleep 0.05; done
for address in 10.77.0.2 10.78.0.2; do
    python3 -c 'import errno, socket, sys; sys.exit(socket.socket().connect_ex((sys.argv[1], 9)) != errno.ECONNREFUSED)' $address
done
kill $first $second
wait $first
wait $second
"#;
    let done = Program::new("/usr/bin/unshare")
        .args(["--net", "sh", "-ec", script])
        .env("uncopy", bin_dir().join("uncopy"))
        .env("control", directory.join(""))
        .mode(Mode::Plain)
        .start(&scratch, "ready")
        .finish();
    assert!(done.status.success(), "{}", done.text());
    for message in [
        "retry with sudo, or create it for this user: sudo ip tuntap add utun0 mode tun user 0",
        "utun0 is not configured, which needs CAP_NET_ADMIN; type: sudo ip link set utun0 mtu 4148",
        "the kernel routes 10.77.0.3 to utun0, which has 10.77.0.1/24; give an --address in another network",
    ] {
        assert!(done.text().contains(message), "{}", done.text());
    }
}
