//! Programs whose TCP is that of `uncopy net`: with clients and servers of the kernel's, and with each other.

use std::time::Duration;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::{bin_dir, packaged, plain_only};
use uncopy_tests::programs::compiled;
use uncopy_tests::running::{Finished, Running};
use uncopy_tests::scratch::wait_until;
use uncopy_tests::service::{FAR, FarHost, KERNEL, Network, SERVICE, SERVICE_V6, Service};
use uncopy_tests::{Mode, Program, Scratch};

const LIMIT: Duration = Duration::from_secs(90);

/// What scripts have in common.
const COMMON: &str = r#"
import errno, hashlib, os, random, select, socket, struct, sys, threading, time
def whole(connection, length):
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 1 << 20))
        assert part, "the other end closed"
        parts += part
    return bytes(parts)
def message(number, length):
    return hashlib.shake_128(b"%d" % number).digest(length)
def lengths(seed, count, most):
    choose = random.Random(seed)
    return [min(most, int(2 ** choose.uniform(0, 21))) for _ in range(count)]
def expect(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")
"#;

/// A server that echoes what each connection sends, then ends as it does.
const ECHO: &str = r#"
def serve(connection):
    while part := connection.recv(1 << 20):
        connection.sendall(part)
    # tcpi_total_retrans
    print("again", *struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100))
    connection.shutdown(socket.SHUT_WR)
    connection.close()
address = sys.argv[1]
listener = socket.create_server((address, int(sys.argv[2])), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=64)
print("ready", listener.getsockname()[1], flush=True)
for _ in range(int(sys.argv[3])):
    connection, peer = listener.accept()
    assert connection.getpeername() == peer
    print("accepted", peer[0], flush=True)
    thread = threading.Thread(target=serve, args=(connection,))
    thread.start()
thread.join()
"#;

/// A client that sends messages of all lengths and compares.
const CLIENT: &str = r#"
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
seed = int(sys.argv[3])
for number, length in enumerate(lengths(seed, int(sys.argv[4]), 1 << 21)):
    sent = message(seed * 1000 + number, length)
    writer = threading.Thread(target=connection.sendall, args=(sent,))
    writer.start()
    assert whole(connection, length) == sent, (number, length)
    writer.join()
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b""
"#;

fn python(scratch: &Scratch, name: &str, script: &str, words: &[&str]) -> Program {
    let script = scratch.write(&format!("{name}.py"), format!("{COMMON}{script}"));
    Program::new("/usr/bin/python3").args([script]).args(words)
}

/// The same at the kernel's side.
fn outside(service: &Service, scratch: &Scratch, name: &str, script: &str, words: &[&str]) -> Program {
    let script = scratch.write(&format!("{name}.py"), format!("{COMMON}{script}"));
    service.outside(&["python3", script.to_str().expect("UTF-8")]).args(words)
}

fn well(done: Finished, other: &Running) -> Finished {
    assert!(done.status.success(), "{}\n{}", done.text(), other.errors());
    done
}

#[test]
fn clients_of_the_kernel_are_echoed() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-echo");
    let service = Service::start(&scratch, &[]);
    for (mode, server_address, to) in
        [(Mode::Always, "0.0.0.0", SERVICE), (Mode::Auto, "::", SERVICE_V6), (Mode::Lanes, "::", SERVICE)]
    {
        let server = python(&scratch, "server", ECHO, &[server_address, "7000", "2"]);
        let server = service.program(server, mode).start(&scratch, "server");
        let port = server.wait_for_line("ready ");
        let client = |seed| outside(&service, &scratch, "client", CLIENT, &[to, &port, seed, "40"]);
        let clients = ["1", "2"].map(|seed| client(seed).start(&scratch, &format!("client{seed}")));
        for client in clients {
            well(client.finish(LIMIT), &server);
        }
        // By reference, though the service is in a network namespace of its own.
        let done = server.finish(LIMIT).expect_counters(&[Counter::LaneReceivedBytes]);
        assert!(done.status.success(), "{}", done.text());
        let peer = if server_address == "::" && to == SERVICE {
            "::ffff:10.77.0.1"
        } else if to == SERVICE {
            KERNEL
        } else {
            "fd77::1"
        };
        assert_eq!(done.text().matches(&format!("accepted {peer}")).count(), 2, "{}", done.text());
        service.wait_until_empty();
    }
    service.stop();
}

#[test]
fn programs_connect_to_servers_of_the_kernel_and_to_each_other() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-connect");
    let service = Service::start(&scratch, &[]);
    let kernel =
        outside(&service, &scratch, "server", ECHO, &[KERNEL, "7001", "1"]).start(&scratch, "kernel");
    let _ = kernel.wait_for_line("ready ");
    let client = python(&scratch, "client", CLIENT, &[KERNEL, "7001", "3", "40"]);
    let client = service.program(client, Mode::Always).start(&scratch, "client").finish(LIMIT);
    well(client, &kernel);
    assert!(kernel.finish(LIMIT).text().contains("accepted 10.77.0.2"));

    let server = python(&scratch, "server", ECHO, &[SERVICE, "7002", "1"]);
    let server = service.program(server, Mode::Always).start(&scratch, "server");
    let _ = server.wait_for_line("ready ");
    let client = python(&scratch, "client", CLIENT, &[SERVICE, "7002", "4", "40"]);
    let client = service.program(client, Mode::Auto).start(&scratch, "client").finish(LIMIT);
    well(client, &server);
    let done = server.finish(LIMIT);
    assert!(done.status.success(), "{}", done.text());
    service.wait_until_empty();
    service.stop();
}

/// What `connect`, and calls after it, say.
const ERRORS: &str = r#"
service, kernel = sys.argv[1], sys.argv[2]
# Nobody listens there: at once, or by SO_ERROR.
expect(errno.ECONNREFUSED, socket.create_connection, (kernel, 9))
expect(errno.ECONNREFUSED, socket.create_connection, (service, 9))
one = socket.socket()
one.setblocking(False)
watch = select.epoll()
watch.register(one, select.EPOLLOUT | select.EPOLLIN)
assert one.connect_ex((kernel, 9)) == errno.EINPROGRESS
events = watch.poll(10)
assert events and events[0][0] == one.fileno() and events[0][1] & select.EPOLLERR, events
assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
# Nobody has that address.
two = socket.socket()
two.setblocking(False)
assert two.connect_ex(("10.77.0.77", 9)) == errno.EINPROGRESS
assert not select.select([], [two], [], 0.2)[1], "it is not connected"
assert two.connect_ex(("10.77.0.77", 9)) == errno.EALREADY
expect(errno.ENOTCONN, two.getpeername)
two.close()
# Addresses and options are TCP's.
listener = socket.create_server((service, 0))
port = listener.getsockname()[1]
assert port >= 49152 and listener.getsockname()[0] == service
expect(errno.EADDRINUSE, socket.create_server, (service, port))
expect(errno.EADDRINUSE, socket.create_server, ("0.0.0.0", port))
expect(errno.EADDRNOTAVAIL, socket.socket().bind, ("10.77.0.77", 0))
near = socket.create_connection((service, port), timeout=20)
far, peer = listener.accept()
assert near.getsockname() == peer == far.getpeername() and near.getpeername() == far.getsockname() == (service, port)
for name, value in ((socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 77)):
    near.setsockopt(socket.IPPROTO_TCP, name, value)
    assert near.getsockopt(socket.IPPROTO_TCP, name) == value
assert near.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET
assert near.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_TCP
assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0] == 1
expect(errno.EISCONN, near.connect, (service, port))
# One side ends, the other goes on.
near.sendall(b"question")
near.shutdown(socket.SHUT_WR)
assert whole(far, 8) == b"question" and far.recv(1) == b""
far.sendall(b"answer")
far.close()
assert whole(near, 6) == b"answer" and near.recv(1) == b""
near.close()
# Closed with something unread: the peer is reset.
near = socket.create_connection((service, port), timeout=20)
far, _ = listener.accept()
near.sendall(b"unread")
far.recv(1)
far.close()
expect(errno.ECONNRESET, near.recv, 1)
near.close()
near = socket.create_connection((service, port), timeout=20)
far, _ = listener.accept()
near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
near.close()
far.settimeout(20)
expect(errno.ECONNRESET, far.recv, 1)
# What is not the service's stays the kernel's.
other = socket.create_server(("127.0.0.1", 0))
same = socket.create_connection(other.getsockname())
assert same.getpeername()[0] == "127.0.0.1"
# A forked child has the connection, too; a program that is executed as well.
near = socket.create_connection((service, port), timeout=20)
far, _ = listener.accept()
child = os.fork()
if child == 0:
    near.sendall(b"child")
    os.set_inheritable(near.fileno(), True)
    script = "import socket,sys; s = socket.socket(fileno=int(sys.argv[1])); assert s.getpeername()[1] == int(sys.argv[2]); s.sendall(b'executed')"
    os.execv(sys.executable, [sys.executable, "-c", script, str(near.fileno()), str(port)])
assert whole(far, 13) == b"childexecuted"
assert os.waitpid(child, 0)[1] == 0
near.sendall(b"parent")
assert whole(far, 6) == b"parent"
near.close()
assert far.recv(1) == b""
# Nobody listens any more.
listener.close()
expect(errno.ECONNREFUSED, socket.create_connection, (service, port))
print("well")
"#;

#[test]
fn errors_addresses_and_options_are_those_of_tcp() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-errors");
    let service = Service::start(&scratch, &[]);
    for mode in [Mode::Always, Mode::Auto] {
        let program = python(&scratch, "errors", ERRORS, &[SERVICE, KERNEL]);
        let done = service.program(program, mode).start(&scratch, "errors").finish(LIMIT);
        assert!(done.status.success() && done.text().contains("well"), "{}", done.text());
        service.wait_until_empty();
    }
    service.stop();
}

/// Both ends are told when the service is gone, and the kernel's when a program is.
#[test]
fn whoever_is_killed_is_missed() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-killed");
    let service = Service::start(&scratch, &[]);
    let waits = r#"
connection = socket.create_connection((sys.argv[1], 7003), timeout=30)
connection.sendall(b"here")
whole(connection, 4)
print("ready", flush=True)
try:
    print("ended with", len(connection.recv(1)), flush=True)
except ConnectionResetError:
    print("reset", flush=True)
"#;
    let server = || {
        let server = python(&scratch, "server", ECHO, &["0.0.0.0", "7003", "4"]);
        let server = service.program(server, Mode::Always).start(&scratch, "server");
        let _ = server.wait_for_line("ready ");
        server
    };
    let killed = server();
    let client = outside(&service, &scratch, "waits", waits, &[SERVICE]).start(&scratch, "outside");
    let _ = client.wait_for_line("ready");
    killed.signal(libc::SIGKILL);
    let done = client.finish(LIMIT);
    assert!(done.text().contains("ended with 0"), "as the kernel does it: {}", done.text());
    drop(killed.finish(LIMIT));
    service.wait_until_empty();

    let _server = server();
    let program = python(&scratch, "waits", waits, &[SERVICE]);
    let client = service.program(program, Mode::Always).start(&scratch, "inside");
    let _ = client.wait_for_line("ready");
    service.kill();
    let done = client.finish(LIMIT);
    assert!(done.text().contains("reset"), "{}", done.text());
}

/// A client of the kernel's far away, which is echoed. What it and the server say.
fn far_client_is_echoed(
    service: &Service,
    scratch: &Scratch,
    network: Network,
    script: &str,
) -> [Finished; 2] {
    let far = FarHost::start(service, scratch, network);
    let server = python(scratch, "server", ECHO, &["0.0.0.0", "7000", "1"]);
    let server = service.program(server, Mode::Always).start(scratch, "server");
    let port = server.wait_for_line("ready ");
    let script = scratch.write("client.py", format!("{COMMON}{script}"));
    let script = script.to_str().expect("UTF-8");
    let client = far.program(&["python3", script, SERVICE, &port, "9", "12"]).start(scratch, "client");
    let client = well(client.finish(LIMIT), &server);
    let done = server.finish(LIMIT);
    assert!(done.status.success() && done.text().contains(&format!("accepted {FAR}")), "{}", done.text());
    far.stop();
    [client, done]
}

#[test]
fn a_bad_network_delivers_the_same_bytes() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-relay");
    let service = Service::start(&scratch, &[]);
    let network = Network {
        seed: 7,
        loss: 0.02,
        delay_ms: 5.0,
        jitter_ms: 4.0,
        duplicates: 0.01,
        ..Network::default()
    };
    let [_, server] = far_client_is_echoed(&service, &scratch, network, CLIENT);
    let count = service.list()["traffic"]["retransmissions"].as_u64().expect("a number");
    let said = server.text().lines().find_map(|line| line.strip_prefix("again ")?.parse::<u64>().ok());
    // Its last segments were sent after it was asked.
    assert!(said.is_some_and(|said| said > 0 && said <= count), "{said:?} {count}");
    service.stop();
}

/// The kernel's TCP asks for ECN, and routers mark what they would lose.
#[test]
fn a_network_that_marks_packets_is_heard_by_both_ends() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-marks");
    let network = Network { seed: 7, delay_ms: 5.0, marked: 0.05, ..Network::default() };
    // TCPI_OPT_ECN, TCPI_OPT_ECN_SEEN; tcpi_total_retrans, tcpi_delivered_ce (linux/tcp.h).
    let client = format!(
        "open('/proc/sys/net/ipv4/tcp_ecn', 'w').write('1')\n{CLIENT}{}",
        r#"
info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
retransmitted, = struct.unpack_from("I", info, 100)
marked, = struct.unpack_from("I", info, 196)
print("ecn", info[5] >> 3 & 1, "seen", info[5] >> 4 & 1, "retransmitted", retransmitted, "marked", marked > 0)
"#
    );
    for (option, expected) in [
        ("accept", "ecn 1 seen 1 retransmitted 0 marked True"),
        ("off", "ecn 0 seen 0 retransmitted 0 marked False"),
    ] {
        let service = Service::start(&scratch, &["--ecn", option]);
        let [done, server] = far_client_is_echoed(&service, &scratch, network, &client);
        assert!(done.text().contains(expected), "{option}: {}", done.text());
        assert!(server.text().contains("again 0\n"), "{}", server.text());
        service.stop();
    }
}

/// A server of the kernel's agrees where the service asks.
#[test]
fn a_service_that_requests_ecn_has_it_with_the_kernel() {
    if plain_only() {
        return;
    }
    let server = r#"
listener = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
connection, _ = listener.accept()
whole(connection, 1 << 20)
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
        let service = Service::start(&scratch, &["--ecn", option]);
        let server = outside(&service, &scratch, "server", server, &[]).start(&scratch, "kernel");
        let _ = server.wait_for_line("ready");
        let client = python(&scratch, "client", client, &[KERNEL]);
        well(service.program(client, Mode::Always).start(&scratch, "client").finish(LIMIT), &server);
        let done = server.finish(LIMIT);
        assert!(done.text().contains(expected), "{option}: {}", done.text());
        service.stop();
    }
}

/// SYNs of peers that do not exist, and a client between them.
#[test]
fn a_flood_of_syns_keeps_nobody_out_and_takes_little_memory() {
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
    let service = Service::start(&scratch, &[]);
    let server = python(&scratch, "server", ECHO, &[SERVICE, "7000", "2"]);
    let server = service.program(server, Mode::Always).start(&scratch, "server");
    let port = server.wait_for_line("ready ");
    // TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK and TCPI_OPT_WSCALE.
    let client = format!(
        "{CLIENT}{}",
        "print('options', connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[5] & 7)"
    );
    let echoes = |name: &str, options: &str| {
        let client = outside(&service, &scratch, "client", &client, &[SERVICE, &port, "5", "12"]);
        let done = well(client.start(&scratch, name).finish(LIMIT), &server);
        assert!(done.text().contains(options), "{}", done.text());
    };
    echoes("before", "options 7");
    let before_bytes = service.resident_bytes();
    let flooded = outside(&service, &scratch, "flood", flood, &[SERVICE, &port, "20000"])
        .start(&scratch, "flood")
        .finish(LIMIT);
    assert!(flooded.status.success(), "{}", flooded.text());
    // By a cookie.
    echoes("after", "options 0");
    let grown_bytes = service.resident_bytes().saturating_sub(before_bytes);
    assert!(grown_bytes < 4 << 20, "20,000 SYNs took {grown_bytes} bytes");
    drop(server.finish(LIMIT).expect_success());
    service.stop();
}

/// A server that reads nothing of its connections, and sends without end or nothing.
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

/// Peers of the kernel's that take and give as little as they can.
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

/// Connections by hand whose bytes all leave out the one before: nothing of them can be given to anybody.
const GAPS: &str = r#"
kind, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
service, source = socket.inet_aton(address), bytes([10, 77, 0, 9])
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
heard.bind(("utun0", 0))
heard.settimeout(20)
def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
def send(own, flags, sequence, acknowledgement, payload=b""):
    tcp = struct.pack("!HHIIBBHHH", own, port, sequence & 0xFFFFFFFF, acknowledgement, (5 + (flags == 2)) << 4, flags, 60000, 0, 0)
    # The window is as large as it may be.
    tcp += b"\x03\x03\x07\x01" * (flags == 2) + payload
    summed = checksum(source + service + struct.pack("!HH", socket.IPPROTO_TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", summed) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, socket.IPPROTO_TCP, 0) + source + service
    raw.sendto(ip + tcp, (address, 0))
for number in range(count):
    own = 2000 + os.getpid() % 30000 + number
    # The numbers wrap on the way.
    first = 0xFFFFFFFF - 1000
    send(own, 2, first, 0)
    while True:
        packet = heard.recv(65535)
        if packet[12:16] == service and packet[22:24] == struct.pack("!H", own) and packet[33] & 0x12 == 0x12:
            break
    acknowledgement = (struct.unpack("!I", packet[24:28])[0] + 1) & 0xFFFFFFFF
    send(own, 16, first + 1, acknowledgement)
    length, step, end = (1000, 1001, 4 << 20) if kind == "parts" else (1, 3, 50000)
    for place in range(3, end, step):
        send(own, 16, first + 1 + place, acknowledgement, b"x" * length)
print("done", flush=True)
time.sleep(600)
"#;

/// Of each kind of peer, memory for a connection is bounded, whatever the peer does, and goes with it.
#[test]
fn peers_that_take_memory_take_a_bounded_amount() {
    if plain_only() {
        return;
    }
    const CONNECTIONS: u64 = 4;
    for (kind, script, serves, max_own_bytes, max_shared_bytes) in [
        // A send buffer, by reference or not, and what was read of the program last.
        ("stops", GREEDY, "sends", 6 << 20, 8 << 20),
        // 4096 pieces in order, and as many that wait for the program: copied out, so that a byte keeps no page.
        ("bytes", GREEDY, "waits", 1 << 20, 1 << 20),
        ("gaps", GAPS, "waits", 1 << 20, 1 << 20),
        // The receive buffer, all of it copied out.
        ("parts", GAPS, "waits", 5 << 20, 1 << 20),
    ] {
        let scratch = Scratch::new(&format!("net-{kind}"));
        let service = Service::start(&scratch, &[]);
        let server = python(&scratch, "server", IDLE, &[SERVICE, "7000", serves]);
        let server = service.program(server, Mode::Always).start(&scratch, "server");
        let port = server.wait_for_line("ready ");
        let peers = |name: &str, count: &str| {
            let peers = outside(&service, &scratch, "peers", script, &[kind, SERVICE, &port, count]);
            let peers = peers.start(&scratch, name);
            let _ = peers.wait_for_line("done");
            peers
        };
        let settled = || {
            let mut before = (0, 0);
            wait_until("memory that does not grow", LIMIT, || {
                std::thread::sleep(Duration::from_millis(300));
                let now = (service.resident_bytes(), service.shared_bytes());
                (std::mem::replace(&mut before, now) == now).then_some(now)
            })
        };
        // What is made once.
        drop(peers("first", "1").stop(libc::SIGKILL));
        let (own_bytes, shared_bytes) = settled();
        let peers = peers("peers", &CONNECTIONS.to_string());
        let (own_after, shared_after) = settled();
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

/// A program that holds what connects, and its descriptors alone.
const HOLDS: &str = r#"
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
listener = socket.create_server((sys.argv[1], 7000), backlog=64)
print("ready", flush=True)
held = []
while True:
    connection, _ = listener.accept()
    connection.sendall(whole(connection, 1000))
    held.append(connection.detach())
"#;

/// Clients that say something, are answered, and say nothing more.
const SILENT: &str = r#"
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
kept = []
for _ in range(int(sys.argv[2])):
    connection = socket.create_connection((sys.argv[1], 7000), timeout=60)
    connection.sendall(b"x" * 1000)
    assert whole(connection, 1000) == b"x" * 1000
    kept.append(connection)
print("done", flush=True)
time.sleep(600)
"#;

/// What a service keeps of a connection that has been used and is idle is less than what the kernel keeps of a socket.
#[test]
fn an_idle_connection_takes_little_memory() {
    if plain_only() {
        return;
    }
    const CONNECTIONS: usize = 1000;
    const MAX_BYTES: u64 = 1536;
    let scratch = Scratch::new("net-idle");
    let service = Service::start(&scratch, &[]);
    let server = python(&scratch, "server", HOLDS, &[SERVICE]);
    let server = service.program(server, Mode::Auto).start(&scratch, "server");
    let _ = server.wait_for_line("ready");
    let connect = |name: &str, count: usize| {
        let clients = outside(&service, &scratch, "silent", SILENT, &[SERVICE, &count.to_string()]);
        let clients = clients.start(&scratch, name);
        let _ = clients.wait_for_line("done");
        clients
    };
    let first = connect("first", 16);
    let taken = || (service.resident_bytes() + service.shared_bytes(), server.status_bytes("VmRSS:"));
    let before = taken();
    let others = connect("others", CONNECTIONS);
    let after = taken();
    let of_service = after.0.saturating_sub(before.0) / CONNECTIONS as u64;
    let of_program = after.1.saturating_sub(before.1) / CONNECTIONS as u64;
    println!("an idle connection takes {of_service} bytes of the service and {of_program} of the program");
    assert_eq!(service.list()["connections"].as_array().map(Vec::len), Some(16 + CONNECTIONS));
    assert!(of_service + of_program <= MAX_BYTES, "{of_service} of the service, {of_program} of the program");
    drop(first.stop(libc::SIGKILL));
    drop(others.stop(libc::SIGKILL));
    drop(server.stop(libc::SIGKILL));
    service.wait_until_empty();
    service.stop();
}

/// Both ends send at the same time, and hash what they send and what comes: once that is over, each tells the other.
const HASHES: &str = r#"
def exchange(connection, own, length):
    block = message(own, (1 << 20) + 77)
    def send():
        left, number = length, 0
        sent = hashlib.sha256()
        while left:
            begin = number * 4099 % 65536
            part = memoryview(block)[begin:begin + min(left, len(block) - 65536 - number % 3)]
            sent.update(part)
            connection.sendall(part)
            left, number = left - len(part), number + 1
        connection.sendall(sent.digest())
    sender = threading.Thread(target=send)
    sender.start()
    came, left, room = hashlib.sha256(), length, memoryview(bytearray(1 << 20))
    while left:
        got = connection.recv_into(room, min(left, len(room)))
        assert got, "the other end closed"
        came.update(room[:got])
        left -= got
    assert whole(connection, 32) == came.digest(), "other bytes came than were sent"
    sender.join()
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""
    print("well", length, came.hexdigest(), flush=True)
"#;

/// 128 MiB each way at once; a whole GiB by `make test-net`.
#[test]
fn long_streams_both_ways_have_the_hashes_of_what_was_sent() {
    if plain_only() {
        return;
    }
    let bytes =
        std::env::var("UNCOPY_TEST_NET_BYTES").map_or(128 << 20, |bytes| bytes.parse().expect("a number"));
    let limit = LIMIT + Duration::from_secs(bytes >> 20);
    let length = bytes.to_string();
    let server = format!(
        "{HASHES}{}",
        r#"
listener = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
connection, _ = listener.accept()
exchange(connection, 1, int(sys.argv[2]))
"#
    );
    let client = format!(
        "{HASHES}{}",
        "exchange(socket.create_connection((sys.argv[1], 7000), timeout=60), 2, int(sys.argv[2]))"
    );
    let scratch = Scratch::new("net-hashes");
    let service = Service::start(&scratch, &[]);
    for mode in [Mode::Always, Mode::Auto] {
        let server = python(&scratch, "server", &server, &[SERVICE, &length]);
        let server = service.program(server, mode).start(&scratch, "server");
        let _ = server.wait_for_line("ready");
        let client =
            outside(&service, &scratch, "client", &client, &[SERVICE, &length]).start(&scratch, "client");
        let client = well(client.finish(limit), &server);
        let server = server.finish(limit);
        assert!(server.status.success(), "{}", server.text());
        for done in [client, server] {
            assert!(done.text().contains(&format!("well {length} ")), "{}", done.text());
        }
        service.wait_until_empty();
    }
    service.stop();
}

/// What programs of epoll do, and what most do not.
#[test]
fn a_program_of_epoll_finds_what_it_knows() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-epoll");
    let service = Service::start(&scratch, &[]);
    let path = compiled(&scratch, "service", &[]);
    for mode in [Mode::Always, Mode::Auto] {
        let program = service.program(Program::new(&path).args([SERVICE, "7100"]), mode);
        let done = program.start(&scratch, "service-program").finish(LIMIT);
        assert!(done.status.success() && done.text().contains("done"), "{}", done.text());
        service.wait_until_empty();
    }
    service.stop();
}

/// Servers that nobody has changed, and clients of theirs outside.
#[test]
fn packaged_servers_serve() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-servers");
    let service = Service::start(&scratch, &[]);
    let directory = scratch.path().to_str().expect("UTF-8");
    let redis = Program::new(packaged("/usr/bin/redis-server", "redis-server")).args([
        "--port",
        "6379",
        "--bind",
        "0.0.0.0",
        "--protected-mode",
        "no",
        "--save",
        "",
        "--dir",
        directory,
    ]);
    let redis = service.program(redis, Mode::Always).start(&scratch, "redis");
    let memcached = Program::new(packaged("/usr/bin/memcached", "memcached"))
        .args(["-l", "0.0.0.0", "-p", "11211", "-U", "0", "-u", "root", "-I", "4m"]);
    let memcached = service.program(memcached, Mode::Always).start(&scratch, "memcached");
    let page: Vec<u8> = (0..3_000_000u32).flat_map(|word| word.to_ne_bytes()).collect();
    scratch.write("page", &page);
    let configuration = format!(
        "user root; worker_processes 2; daemon off; pid {directory}/pid; error_log {directory}/error.log warn;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; sendfile off; server {{ listen 80 reuseport; root {directory}; }} }}\n"
    );
    let file = scratch.write("nginx.conf", configuration);
    let nginx =
        Program::new(packaged("/usr/sbin/nginx", "nginx")).args(["-c", file.to_str().expect("UTF-8")]);
    let nginx = service.program(nginx, Mode::Always).start(&scratch, "nginx");
    let clients = r#"
import urllib.request
service = sys.argv[1]
def there(port):
    for _ in range(400):
        try:
            return socket.create_connection((service, port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError(f"nobody listens at {port}")
def line(connection):
    text = b""
    while not text.endswith(b"\r\n"):
        text += whole(connection, 1)
    return text
redis, memcached = there(6379), there(11211)
for number, length in enumerate(lengths(5, 60, 1 << 21)):
    value = message(number, length)
    redis.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n" % (length, value))
    assert line(redis) == b"+OK\r\n"
    redis.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
    assert line(redis) == b"$%d\r\n" % length and whole(redis, length + 2)[:-2] == value
    memcached.sendall(b"set k 0 0 %d\r\n%s\r\n" % (length, value))
    assert line(memcached) == b"STORED\r\n"
    memcached.sendall(b"get k\r\n")
    assert line(memcached).startswith(b"VALUE") and whole(memcached, length + 7)[:-7] == value
there(80).close()
for _ in range(20):
    page = urllib.request.urlopen(f"http://{service}/page", timeout=30).read()
    assert hashlib.sha256(page).hexdigest() == sys.argv[2]
redis.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
"#;
    let expected = sha256(&page);
    let done = outside(&service, &scratch, "clients", clients, &[SERVICE, &expected])
        .start(&scratch, "clients")
        .finish(LIMIT);
    assert!(done.status.success(), "{}\nnginx {}\nredis {}", done.text(), nginx.errors(), redis.errors());
    let redis = redis.finish(LIMIT);
    assert!(redis.status.success(), "{}", redis.text());
    let nginx = nginx.stop(libc::SIGQUIT);
    assert!(nginx.status.success(), "{}", nginx.text());
    drop(memcached.stop(libc::SIGTERM));
    service.wait_until_empty();
    service.stop();
}

fn sha256(bytes: &[u8]) -> String {
    let scratch = Scratch::new("net-sum");
    let file = scratch.write("bytes", bytes);
    let summed = std::process::Command::new("sha256sum").arg(file).output().expect("started");
    String::from_utf8_lossy(&summed.stdout).split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn over_an_ethernet_by_af_xdp_bytes_are_the_same_both_ways() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-xdp");
    let capture = scratch.join("packets");
    let Some(service) = Service::start_by_xdp(&scratch, &["--pcap", capture.to_str().expect("UTF-8")]) else {
        return;
    };
    let cable = service.cable().expect("it has one");
    assert!(cable.has_program(&scratch));
    // The other end of the cable finds the service by ARP and by neighbour discovery.
    for (mode, server_address, to) in [(Mode::Always, "0.0.0.0", SERVICE), (Mode::Auto, "::", SERVICE_V6)] {
        let server = python(&scratch, "server", ECHO, &[server_address, "7000", "2"]);
        let server = service.program(server, mode).start(&scratch, "server");
        let port = server.wait_for_line("ready ");
        let client = |seed| outside(&service, &scratch, "client", CLIENT, &[to, &port, seed, "40"]);
        let clients = ["1", "2"].map(|seed| client(seed).start(&scratch, &format!("client{seed}")));
        for client in clients {
            well(client.finish(LIMIT), &server);
        }
        let done = server.finish(LIMIT);
        assert!(done.status.success(), "{}", done.text());
        service.wait_until_empty();
    }
    // And the service the other end.
    for (address, port) in [(KERNEL, "7001"), ("fd77::1", "7002")] {
        let kernel =
            outside(&service, &scratch, "server", ECHO, &[address, port, "1"]).start(&scratch, "kernel");
        let _ = kernel.wait_for_line("ready ");
        let client = python(&scratch, "client", CLIENT, &[address, port, "3", "40"]);
        let client = service.program(client, Mode::Always).start(&scratch, "client").finish(LIMIT);
        well(client, &kernel);
        drop(kernel.finish(LIMIT));
    }
    let nobody = r#"
for address, family in ("10.77.0.77", socket.AF_INET), ("fd77::77", socket.AF_INET6):
    one = socket.socket(family)
    one.settimeout(60)
    expect(errno.EHOSTUNREACH, one.connect, (address, 9))
"#;
    let program = service.program(python(&scratch, "nobody", nobody, &[]), Mode::Always);
    drop(program.start(&scratch, "nobody").finish(LIMIT).expect_success());
    service.wait_until_empty();
    service.stop();
    assert!(std::fs::metadata(&capture).expect("written").len() > 1 << 20);
}

#[test]
fn the_program_of_a_killed_service_leaves_its_device_and_the_next_can_have_it() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-xdp-killed");
    let Some(service) = Service::start_by_xdp(&scratch, &[]) else { return };
    let cable = service.cable().expect("it has one");
    assert!(cable.has_program(&scratch));
    // A control socket's path is short.
    let room = Scratch::in_memory("net");
    let begin = |device: &str| {
        let uncopy = bin_dir().join("uncopy");
        let control = room.join("n/control");
        cable
            .near(&[uncopy.to_str().expect("UTF-8"), "net", "--xdp", device, "--address", "10.77.0.2/24"])
            .args(["--socket".as_ref(), control.as_os_str()])
            .start(&scratch, "again")
    };
    let refused = |device: &str, why: &str| {
        let done = begin(device).finish(LIMIT);
        assert_eq!(done.status.code(), Some(1));
        assert!(done.text().contains(why), "{}", done.text());
    };
    refused("near", "somebody has its queue 0; end that, or give another: --xdp near:QUEUE");
    refused("near:7", "it has no queue 7; ethtool -l near says how many it has");
    refused("other", "there is no such device; ip link lists them");
    refused("lo", "it is no Ethernet device");
    service.kill();
    wait_until("the device without a program", LIMIT, || (!cable.has_program(&scratch)).then_some(()));
    let next = begin("near");
    wait_until("the next service", LIMIT, || {
        assert!(!next.has_ended(), "{}", next.errors());
        next.errors().contains("run programs by").then_some(())
    });
    assert!(next.stop(libc::SIGTERM).status.success());
    assert!(!cable.has_program(&scratch));
}

/// What is missing is said as commands, which make it there; and what the kernel would look for elsewhere is refused.
#[test]
fn a_device_that_was_made_ready_takes_no_privileges() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-ready");
    let room = Scratch::in_memory("net");
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
        .env("control", room.join(""))
        .mode(Mode::Plain)
        .start(&scratch, "ready")
        .finish(LIMIT);
    assert!(done.status.success(), "{}", done.text());
    for said in [
        "type it again with sudo, or make one for this user: sudo ip tuntap add utun0 mode tun user 0",
        "utun0 is not ready, and making it so takes CAP_NET_ADMIN; type: sudo ip link set utun0 mtu 4148",
        "the kernel looks for 10.77.0.3 at utun0, which has 10.77.0.1/24; give an --address in a network of its own",
    ] {
        assert!(done.text().contains(said), "{}", done.text());
    }
}
