//! Networks that lose, delay and mark packets, and peers that take as much memory as they can.

use super::{CLIENT, ECHO, PRELUDE, check_success, kernel_python, python};
use std::time::Duration;
use uncopy_tests::artifacts::plain_only;
use uncopy_tests::net_service::{FAR, FarHost, KERNEL_V4, NetService, NetworkFaults, SERVICE_V4};
use uncopy_tests::running::Finished;
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Scratch};

/// Runs a kernel client behind a simulated network against an echo server; returns the output of both.
fn echo_far_client(
    service: &NetService,
    scratch: &Scratch,
    network: NetworkFaults,
    script: &str,
) -> [Finished; 2] {
    let far = FarHost::start(service, scratch, network);
    let server = python(scratch, "server", ECHO, &["0.0.0.0", "7000", "1"]);
    let server = service.program(server, Mode::Always).start(scratch, "server");
    let port = server.wait_for_line("ready ");
    let script = scratch.write("client.py", format!("{PRELUDE}{script}"));
    let script = script.to_str().expect("UTF-8");
    let client = far.program(&["python3", script, SERVICE_V4, &port, "9", "12"]).start(scratch, "client");
    let client = check_success(client.finish(), &server);
    let done = server.finish();
    assert!(done.status.success() && done.text().contains(&format!("accepted {FAR}")), "{}", done.text());
    far.stop();
    [client, done]
}

#[test]
fn bytes_arrive_intact_over_a_lossy_network() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-relay");
    let service = NetService::start(&scratch, &[]);
    let network = NetworkFaults {
        seed: 7,
        loss: 0.02,
        delay_ms: 5.0,
        jitter_ms: 4.0,
        duplicates: 0.01,
        ..NetworkFaults::default()
    };
    let [_, server] = echo_far_client(&service, &scratch, network, CLIENT);
    let count = service.list()["traffic"]["retransmissions"].as_u64().expect("a number");
    let repeated = server.text().lines().find_map(|line| line.strip_prefix("again ")?.parse::<u64>().ok());
    // The last segments were sent after the query.
    assert!(repeated.is_some_and(|printed| printed > 0 && printed <= count), "{repeated:?} {count}");
    service.stop();
}

/// The kernel's TCP requests ECN, and routers mark packets that they would drop.
#[test]
fn ecn_marks_are_seen_by_both_ends() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-marks");
    let network = NetworkFaults { seed: 7, delay_ms: 5.0, marked: 0.05, ..NetworkFaults::default() };
    // TCPI_OPT_ECN, TCPI_OPT_ECN_SEEN; tcpi_total_retrans, tcpi_delivered_ce (linux/tcp.h).
    let client = format!(
        "open('/proc/sys/net/ipv4/tcp_ecn', 'w').write('1')\n{CLIENT}{}",
        r#"
info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
retransmitted, = struct.unpack_from("I", info, 100)
marked, = struct.unpack_from("I", info, 196)
print("ecn", info[5] >> 3 & 1, "seen", info[5] >> 4 & 1, "marked", marked > 0)
# A machine that stands still for 200 ms lets either end repeat something.
print("repeats what is marked", retransmitted >= marked)
"#
    );
    for (option, expected) in [
        ("accept", "ecn 1 seen 1 marked True\nrepeats what is marked False\n"),
        ("off", "ecn 0 seen 0 marked False\n"),
    ] {
        let service = NetService::start(&scratch, &["--ecn", option]);
        let [done, _] = echo_far_client(&service, &scratch, network, &client);
        assert!(done.text().contains(expected), "{option}: {}", done.text());
        service.stop();
    }
}

/// A kernel server accepts ECN when the service requests it.
#[test]
fn service_negotiates_ecn_with_the_kernel() {
    if plain_only() {
        return;
    }
    let server = r#"
listener = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
connection, _ = listener.accept()
receive_exactly(connection, 1 << 20)
options = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)[5]
print("ecn", options >> 3 & 1, "seen", options >> 4 & 1)
"#;
    let client = r#"
connection = socket.create_connection((sys.argv[1], 7000), timeout=30)
connection.sendall(bytes(1 << 20))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b""
"#;
    let scratch = Scratch::new("net-requests");
    for (option, expected) in [("request", "ecn 1 seen 1"), ("accept", "ecn 0 seen 0")] {
        let service = NetService::start(&scratch, &["--ecn", option]);
        let server = kernel_python(&service, &scratch, "server", server, &[]).start(&scratch, "kernel");
        let _ = server.wait_for_line("ready");
        let client = python(&scratch, "client", client, &[KERNEL_V4]);
        check_success(service.program(client, Mode::Always).start(&scratch, "client").finish(), &server);
        let done = server.finish();
        assert!(done.text().contains(expected), "{option}: {}", done.text());
        service.stop();
    }
}

/// SYNs from peers that do not exist, and a real client among them.
#[test]
fn syn_flood_blocks_no_client_and_uses_little_memory() {
    if plain_only() {
        return;
    }
    let flood = r#"
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
service, port = socket.inet_aton(sys.argv[1]), int(sys.argv[2])
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for number in range(int(sys.argv[3])):
    source = bytes([10, 77, 0, 3 + number % 250])
    tcp = struct.pack("!HHIIBBHHH", 1024 + number // 250, port, number, 0, 5 << 4, 2, 1000, 0, 0)
    summed = checksum(source + service + struct.pack("!HH", socket.IPPROTO_TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", summed) + tcp[18:]
    # The kernel writes the checksum of the IP header.
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, socket.IPPROTO_TCP, 0) + source + service
    raw.sendto(ip + tcp, (sys.argv[1], 0))
print("sent", flush=True)
"#;
    let scratch = Scratch::new("net-flood");
    let service = NetService::start(&scratch, &[]);
    let server = python(&scratch, "server", ECHO, &[SERVICE_V4, "7000", "2"]);
    let server = service.program(server, Mode::Always).start(&scratch, "server");
    let port = server.wait_for_line("ready ");
    // TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK and TCPI_OPT_WSCALE.
    let client = format!(
        "{CLIENT}{}",
        "print('options', connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[5] & 7)"
    );
    let echoes = |name: &str, options: &str| {
        let client = kernel_python(&service, &scratch, "client", &client, &[SERVICE_V4, &port, "5", "12"]);
        let done = check_success(client.start(&scratch, name).finish(), &server);
        assert!(done.text().contains(options), "{}", done.text());
    };
    echoes("before", "options 7");
    let before_bytes = service.resident_bytes();
    let flooded = kernel_python(&service, &scratch, "flood", flood, &[SERVICE_V4, &port, "20000"])
        .start(&scratch, "flood")
        .finish();
    assert!(flooded.status.success(), "{}", flooded.text());
    // The connection was made by a SYN cookie, without options.
    echoes("after", "options 0");
    let grown_bytes = service.resident_bytes().saturating_sub(before_bytes);
    assert!(grown_bytes < 4 << 20, "20,000 SYNs took {grown_bytes} bytes");
    drop(server.finish().expect_success());
    service.stop();
}

/// A server that reads nothing, and sends without end or not at all.
const IDLE: &str = r#"
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=64)
print("ready", listener.getsockname()[1], flush=True)
kept = []
while True:
    connection, peer = listener.accept()
    kept.append(connection)
    if sys.argv[3] == "sends":
        def send(connection=connection):
            try:
                while True:
                    connection.sendall(bytes(1 << 20))
            except OSError:
                pass
        threading.Thread(target=send, daemon=True).start()
"#;

/// Kernel peers that read nothing, or send single bytes.
const GREEDY: &str = r#"
kind, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
kept = []
for _ in range(count):
    connection = socket.create_connection((address, port), timeout=60)
    kept.append(connection)
    if kind == "bytes":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(0.3)
        try:
            for _ in range(100000):
                connection.send(b"x")
        except TimeoutError:
            pass
print("done", flush=True)
time.sleep(600)
"#;

/// Raw connections with gaps between all segments, so that nothing can be delivered.
const GAPS: &str = r#"
kind, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
service, source = socket.inet_aton(address), bytes([10, 77, 0, 9])
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
sniffer.bind(("utun0", 0))
sniffer.settimeout(20)
def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
def send(own_port, flags, sequence, acknowledgement, payload=b""):
    tcp = struct.pack("!HHIIBBHHH", own_port, port, sequence & 0xFFFFFFFF, acknowledgement, (5 + (flags == 2)) << 4, flags, 60000, 0, 0)
    # The window is as large as it may be.
    tcp += b"\x03\x03\x07\x01" * (flags == 2) + payload
    summed = checksum(source + service + struct.pack("!HH", socket.IPPROTO_TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", summed) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, socket.IPPROTO_TCP, 0) + source + service
    raw.sendto(ip + tcp, (address, 0))
for number in range(count):
    own_port = 2000 + os.getpid() % 30000 + number
    # The numbers wrap on the way.
    first = 0xFFFFFFFF - 1000
    send(own_port, 2, first, 0)
    while True:
        packet = sniffer.recv(65535)
        if packet[12:16] == service and packet[22:24] == struct.pack("!H", own_port) and packet[33] & 0x12 == 0x12:
            break
    acknowledgement = (struct.unpack("!I", packet[24:28])[0] + 1) & 0xFFFFFFFF
    send(own_port, 16, first + 1, acknowledgement)
    length, step, end = (1000, 1001, 4 << 20) if kind == "parts" else (1, 3, 50000)
    for offset in range(3, end, step):
        send(own_port, 16, first + 1 + offset, acknowledgement, b"x" * length)
print("done", flush=True)
time.sleep(600)
"#;

/// The memory of a connection is bounded for every kind of peer, and freed with the connection.
#[test]
fn peers_that_take_memory_take_a_bounded_amount() {
    if plain_only() {
        return;
    }
    const CONNECTIONS: u64 = 4;
    for (kind, script, serves, max_own_bytes, max_shared_bytes) in [
        // A send buffer, by reference or copied, and the data read last from the program.
        ("stops", GREEDY, "sends", 6 << 20, 8 << 20),
        // 4,096 pieces in order, and as many waiting for the program; these are copied, so that a
        // byte does not hold a page.
        ("bytes", GREEDY, "waits", 1 << 20, 1 << 20),
        ("gaps", GAPS, "waits", 1 << 20, 1 << 20),
        // The receive buffer, with all data copied.
        ("parts", GAPS, "waits", 5 << 20, 1 << 20),
    ] {
        let scratch = Scratch::new(&format!("net-{kind}"));
        let service = NetService::start(&scratch, &[]);
        let server = python(&scratch, "server", IDLE, &[SERVICE_V4, "7000", serves]);
        let server = service.program(server, Mode::Always).start(&scratch, "server");
        let port = server.wait_for_line("ready ");
        let peers = |name: &str, count: &str| {
            let peers = kernel_python(&service, &scratch, "peers", script, &[kind, SERVICE_V4, &port, count]);
            let peers = peers.start(&scratch, name);
            let _ = peers.wait_for_line("done");
            peers
        };
        let wait_for_stable_memory = || {
            let mut before = (0, 0);
            wait_until("memory that does not grow", || {
                std::thread::sleep(Duration::from_millis(300));
                let now = (service.resident_bytes(), service.shared_bytes());
                (std::mem::replace(&mut before, now) == now).then_some(now)
            })
        };
        // The first peers make the allocations that happen only once.
        drop(peers("first", "1").stop(libc::SIGKILL));
        let (own_bytes, shared_bytes) = wait_for_stable_memory();
        let peers = peers("peers", &CONNECTIONS.to_string());
        let (own_after, shared_after) = wait_for_stable_memory();
        let own = own_after.saturating_sub(own_bytes) / CONNECTIONS;
        let shared = shared_after.saturating_sub(shared_bytes) / CONNECTIONS;
        println!("{kind}: a connection takes {} KiB of its own and {} KiB shared", own >> 10, shared >> 10);
        assert!(own <= max_own_bytes, "{kind}: {own} bytes of its own");
        assert!(shared <= max_shared_bytes, "{kind}: {shared} bytes shared");
        drop(peers.stop(libc::SIGKILL));
        drop(server.stop(libc::SIGKILL));
        service.stop();
    }
}

/// A program that only holds accepted connections.
const HOLDS: &str = r#"
import resource
max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, max_descriptors))
listener = socket.create_server((sys.argv[1], 7000), backlog=64)
print("ready", flush=True)
held = []
while True:
    connection, _ = listener.accept()
    connection.sendall(receive_exactly(connection, 1000))
    held.append(connection.detach())
"#;

/// Clients that exchange one message and are then idle.
const SILENT: &str = r#"
import resource
max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, max_descriptors))
kept = []
for _ in range(int(sys.argv[2])):
    connection = socket.create_connection((sys.argv[1], 7000), timeout=60)
    connection.sendall(b"x" * 1000)
    assert receive_exactly(connection, 1000) == b"x" * 1000
    kept.append(connection)
print("done", flush=True)
time.sleep(600)
"#;

/// An idle connection that has been used takes less memory in the service than a socket in the kernel.
#[test]
fn idle_connection_uses_little_memory() {
    if plain_only() {
        return;
    }
    const CONNECTIONS: usize = 1000;
    const MAX_BYTES: u64 = 1536;
    let scratch = Scratch::new("net-idle");
    let service = NetService::start(&scratch, &[]);
    let server = python(&scratch, "server", HOLDS, &[SERVICE_V4]);
    let server = service.program(server, Mode::Auto).start(&scratch, "server");
    let _ = server.wait_for_line("ready");
    let connect = |name: &str, count: usize| {
        let clients = kernel_python(&service, &scratch, "silent", SILENT, &[SERVICE_V4, &count.to_string()]);
        let clients = clients.start(&scratch, name);
        let _ = clients.wait_for_line("done");
        clients
    };
    let first = connect("first", 16);
    let memory_used = || (service.resident_bytes() + service.shared_bytes(), server.status_bytes("VmRSS:"));
    let before = memory_used();
    let others = connect("others", CONNECTIONS);
    let after = memory_used();
    let of_service = after.0.saturating_sub(before.0) / CONNECTIONS as u64;
    let of_program = after.1.saturating_sub(before.1) / CONNECTIONS as u64;
    println!("an idle connection takes {of_service} bytes of the service and {of_program} of the program");
    assert_eq!(service.list()["connections"].as_array().map(Vec::len), Some(16 + CONNECTIONS));
    assert!(of_service + of_program <= MAX_BYTES, "{of_service} of the service, {of_program} of the program");
    drop(first.stop(libc::SIGKILL));
    drop(others.stop(libc::SIGKILL));
    drop(server.stop(libc::SIGKILL));
    service.wait_until_no_connections();
    service.stop();
}
