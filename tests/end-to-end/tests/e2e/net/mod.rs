//! Programs whose TCP is that of `uncopy net`: with the kernel's clients and servers, and with each other.

mod control;
mod devices;
mod ends;
mod logged;
mod peers;

use std::net::Ipv4Addr;
use std::time::Duration;

use uncopy_core::stats::Counter;
use uncopy_testbed::servers::{self, Memcached, Nginx, Redis};
use uncopy_tests::artifacts::{bin_dir, plain_only};
use uncopy_tests::net_service::{KERNEL_V4, NetService, SERVICE_V4, SERVICE_V6};
use uncopy_tests::packaged_server::program;
use uncopy_tests::programs::compile;
use uncopy_tests::random::test_size;
use uncopy_tests::running::{Finished, Running};
use uncopy_tests::scratch::HANG_LIMIT;
use uncopy_tests::{Mode, Program, Scratch};

/// Prelude common to all scripts.
const PRELUDE: &str = r#"
import errno, hashlib, os, random, select, socket, struct, sys, threading, time
def receive_exactly(connection, length):
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 1 << 20))
        assert part, "the other end closed"
        parts += part
    return bytes(parts)
def message(number, length):
    return hashlib.shake_128(b"%d" % number).digest(length)
def lengths(seed, count, max_length):
    choose = random.Random(seed)
    return [min(max_length, int(2 ** choose.uniform(0, 21))) for _ in range(count)]
def expect(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")
"#;

/// A server that echoes each connection's data until the client shuts it down.
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
    assert receive_exactly(connection, length) == sent, (number, length)
    writer.join()
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b""
"#;

fn python(scratch: &Scratch, name: &str, script: &str, arguments: &[&str]) -> Program {
    let script = scratch.write(&format!("{name}.py"), format!("{PRELUDE}{script}"));
    Program::new("/usr/bin/python3").args([script]).args(arguments)
}

/// Returns a Python program that runs on the kernel's TCP.
fn kernel_python(
    service: &NetService,
    scratch: &Scratch,
    name: &str,
    script: &str,
    arguments: &[&str],
) -> Program {
    let script = scratch.write(&format!("{name}.py"), format!("{PRELUDE}{script}"));
    service.kernel_program(&["python3", script.to_str().expect("UTF-8")]).args(arguments)
}

fn check_success(done: Finished, other: &Running) -> Finished {
    assert!(done.status.success(), "{}\n{}", done.text(), other.errors());
    done
}

/// Runs two kernel clients against a program listening at `listens_at`; returns the finished program.
fn echo_two_kernel_clients(
    service: &NetService,
    scratch: &Scratch,
    mode: Mode,
    listens_at: &str,
    to: &str,
) -> Finished {
    let server = python(scratch, "server", ECHO, &[listens_at, "7000", "2"]);
    let server = service.program(server, mode).start(scratch, "server");
    let port = server.wait_for_line("ready ");
    let client = |seed| kernel_python(service, scratch, "client", CLIENT, &[to, &port, seed, "40"]);
    let clients = ["1", "2"].map(|seed| client(seed).start(scratch, &format!("client{seed}")));
    for client in clients {
        check_success(client.finish(), &server);
    }
    let done = server.finish();
    assert!(done.status.success(), "{}", done.text());
    done
}

/// Runs a program against an echo server of the kernel's; returns the finished server.
fn echo_by_kernel_server(service: &NetService, scratch: &Scratch, address: &str, port: &str) -> Finished {
    let kernel =
        kernel_python(service, scratch, "server", ECHO, &[address, port, "1"]).start(scratch, "kernel");
    let _ = kernel.wait_for_line("ready ");
    let client = python(scratch, "client", CLIENT, &[address, port, "3", "40"]);
    let client = service.program(client, Mode::Always).start(scratch, "client").finish();
    check_success(client, &kernel);
    kernel.finish()
}

#[test]
fn service_echoes_kernel_clients() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-echo");
    let service = NetService::start(&scratch, &[]);
    for (mode, server_address, to) in [
        (Mode::Always, "0.0.0.0", SERVICE_V4),
        (Mode::Auto, "::", SERVICE_V6),
        (Mode::Lanes, "::", SERVICE_V4),
    ] {
        // Data goes by reference, though the service is in its own network namespace.
        let done = echo_two_kernel_clients(&service, &scratch, mode, server_address, to)
            .expect_counters(&[Counter::LaneReceivedBytes]);
        let peer = if server_address == "::" && to == SERVICE_V4 {
            "::ffff:10.77.0.1"
        } else if to == SERVICE_V4 {
            KERNEL_V4
        } else {
            "fd77::1"
        };
        assert_eq!(done.text().matches(&format!("accepted {peer}")).count(), 2, "{}", done.text());
        service.wait_until_no_connections();
    }
    service.stop();
}

#[test]
fn programs_connect_to_kernel_servers_and_to_each_other() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-connect");
    let service = NetService::start(&scratch, &[]);
    let kernel = echo_by_kernel_server(&service, &scratch, KERNEL_V4, "7001");
    assert!(kernel.text().contains("accepted 10.77.0.2"));

    let server = python(&scratch, "server", ECHO, &[SERVICE_V4, "7002", "1"]);
    let server = service.program(server, Mode::Always).start(&scratch, "server");
    let _ = server.wait_for_line("ready ");
    let client = python(&scratch, "client", CLIENT, &[SERVICE_V4, "7002", "4", "40"]);
    let client = service.program(client, Mode::Auto).start(&scratch, "client").finish();
    check_success(client, &server);
    let done = server.finish();
    assert!(done.status.success(), "{}", done.text());
    service.wait_until_no_connections();
    service.stop();
}

/// Results of `connect`, and of the calls after it.
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
near.connect((service, port))
expect(errno.EISCONN, near.connect, (service, port))
# One side ends, the other goes on.
near.sendall(b"question")
near.shutdown(socket.SHUT_WR)
assert receive_exactly(far, 8) == b"question" and far.recv(1) == b""
far.sendall(b"answer")
far.close()
assert receive_exactly(near, 6) == b"answer" and near.recv(1) == b""
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
assert receive_exactly(far, 13) == b"childexecuted"
assert os.waitpid(child, 0)[1] == 0
near.sendall(b"parent")
assert receive_exactly(far, 6) == b"parent"
near.close()
assert far.recv(1) == b""
# Nobody listens any more.
listener.close()
expect(errno.ECONNREFUSED, socket.create_connection, (service, port))
print("well")
"#;

#[test]
fn errors_addresses_and_options_match_tcp() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-errors");
    let service = NetService::start(&scratch, &[]);
    for mode in [Mode::Always, Mode::Auto] {
        let program = python(&scratch, "errors", ERRORS, &[SERVICE_V4, KERNEL_V4]);
        let done = service.program(program, mode).start(&scratch, "errors").finish();
        assert!(done.status.success() && done.text().contains("well"), "{}", done.text());
        service.wait_until_no_connections();
    }
    service.stop();
}

/// Both ends notice the end of the service, and the kernel's end that of a program.
#[test]
fn peers_notice_killed_programs_and_a_killed_service() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-killed");
    let service = NetService::start(&scratch, &[]);
    let waits = r#"
connection = socket.create_connection((sys.argv[1], 7003), timeout=30)
connection.sendall(b"here")
receive_exactly(connection, 4)
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
    let client = kernel_python(&service, &scratch, "waits", waits, &[SERVICE_V4]).start(&scratch, "outside");
    let _ = client.wait_for_line("ready");
    killed.signal(libc::SIGKILL);
    let done = client.finish();
    assert!(done.text().contains("ended with 0"), "as the kernel does it: {}", done.text());
    drop(killed.finish());
    service.wait_until_no_connections();

    let _server = server();
    let program = python(&scratch, "waits", waits, &[SERVICE_V4]);
    let client = service.program(program, Mode::Always).start(&scratch, "inside");
    let _ = client.wait_for_line("ready");
    service.kill();
    let done = client.finish();
    assert!(done.text().contains("reset"), "{}", done.text());
}

/// Both ends send concurrently, and hash sent and received data; then each tells the other its hashes.
const HASHES: &str = r#"
def exchange(connection, seed, length):
    block = message(seed, (1 << 20) + 77)
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
    received, left, buffer = hashlib.sha256(), length, memoryview(bytearray(1 << 20))
    while left:
        got = connection.recv_into(buffer, min(left, len(buffer)))
        assert got, "the other end closed"
        received.update(buffer[:got])
        left -= got
    assert receive_exactly(connection, 32) == received.digest(), "other bytes came than were sent"
    sender.join()
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""
    print("well", length, received.hexdigest(), flush=True)
"#;

/// 16 MiB each way concurrently, or 1 GiB by `make test-net`.
#[test]
fn long_streams_arrive_intact_both_ways() {
    if plain_only() {
        return;
    }
    let bytes = test_size() * (16 << 20);
    let limit = HANG_LIMIT + Duration::from_secs(bytes >> 20);
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
    let service = NetService::start(&scratch, &[]);
    for mode in [Mode::Always, Mode::Auto] {
        let server = python(&scratch, "server", &server, &[SERVICE_V4, &length]);
        let server = service.program(server, mode).start(&scratch, "server");
        let _ = server.wait_for_line("ready");
        let client = kernel_python(&service, &scratch, "client", &client, &[SERVICE_V4, &length])
            .start(&scratch, "client");
        let client = check_success(client.finish_within(limit), &server);
        let server = server.finish_within(limit);
        assert!(server.status.success(), "{}", server.text());
        for done in [client, server] {
            assert!(done.text().contains(&format!("well {length} ")), "{}", done.text());
        }
        service.wait_until_no_connections();
    }
    service.stop();
}

/// Common and rare uses of epoll.
#[test]
fn epoll_reports_expected_events() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-epoll");
    let service = NetService::start(&scratch, &[]);
    let path = compile(&scratch, "epoll", &[]);
    for mode in [Mode::Always, Mode::Auto] {
        let program = service.program(Program::new(&path).args([SERVICE_V4, "7100"]), mode);
        let done = program.start(&scratch, "service-program").finish();
        assert!(done.status.success() && done.text().contains("done"), "{}", done.text());
        service.wait_until_no_connections();
    }
    service.stop();
}

/// Starts a packaged server on one of the service's ports.
fn serve<S: servers::Service>(service: &NetService, scratch: &Scratch, server: &S, port: u16) -> Running {
    let arguments = server.arguments((Ipv4Addr::UNSPECIFIED, port).into(), scratch.path());
    let program = program(S::PROGRAM, Mode::Plain).args(arguments.expect("its configuration"));
    service.program(program, Mode::Always).start(scratch, S::PROGRAM.program)
}

/// Unmodified servers, with unmodified clients on the kernel's side.
#[test]
fn packaged_servers_serve_kernel_clients() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-servers");
    let service = NetService::start(&scratch, &[]);
    let page: Vec<u8> = (0..3_000_000u32).flat_map(|word| word.to_ne_bytes()).collect();
    scratch.write("page", &page);
    let nginx = Nginx {
        workers: Some(2),
        http: "sendfile off;\n",
        listen: "reuseport",
        server: &format!("root {};\n", scratch.path().display()),
    };
    let memcached = Memcached { threads: 4, memory_mib: 64, value_mib: 4, by_udp: false };
    let redis = serve(&service, &scratch, &Redis::default(), 6379);
    let memcached = serve(&service, &scratch, &memcached, 11_211);
    let nginx = serve(&service, &scratch, &nginx, 80);
    let clients = r#"
import urllib.request
service = sys.argv[1]
def connect_when_listening(port):
    for _ in range(400):
        try:
            return socket.create_connection((service, port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError(f"nobody listens at {port}")
def receive_line(connection):
    text = b""
    while not text.endswith(b"\r\n"):
        text += receive_exactly(connection, 1)
    return text
redis, memcached = connect_when_listening(6379), connect_when_listening(11211)
for number, length in enumerate(lengths(5, 60, 1 << 21)):
    value = message(number, length)
    redis.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n" % (length, value))
    assert receive_line(redis) == b"+OK\r\n"
    redis.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
    assert receive_line(redis) == b"$%d\r\n" % length and receive_exactly(redis, length + 2)[:-2] == value
    memcached.sendall(b"set k 0 0 %d\r\n%s\r\n" % (length, value))
    assert receive_line(memcached) == b"STORED\r\n"
    memcached.sendall(b"get k\r\n")
    assert receive_line(memcached).startswith(b"VALUE") and receive_exactly(memcached, length + 7)[:-7] == value
connect_when_listening(80).close()
for _ in range(20):
    page = urllib.request.urlopen(f"http://{service}/page", timeout=30).read()
    assert hashlib.sha256(page).hexdigest() == sys.argv[2]
redis.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
"#;
    let expected = sha256(&page);
    let done = kernel_python(&service, &scratch, "clients", clients, &[SERVICE_V4, &expected])
        .start(&scratch, "clients")
        .finish();
    assert!(done.status.success(), "{}\nnginx {}\nredis {}", done.text(), nginx.errors(), redis.errors());
    let redis = redis.finish();
    assert!(redis.status.success(), "{}", redis.text());
    let nginx = nginx.stop(libc::SIGQUIT);
    assert!(nginx.status.success(), "{}", nginx.text());
    drop(memcached.stop(libc::SIGTERM));
    service.wait_until_no_connections();
    service.stop();
}

fn sha256(bytes: &[u8]) -> String {
    let scratch = Scratch::new("net-sum");
    let file = scratch.write("bytes", bytes);
    let summed = std::process::Command::new("sha256sum").arg(file).output().expect("started");
    String::from_utf8_lossy(&summed.stdout).split(' ').next().unwrap_or_default().to_owned()
}

/// The report of `--explain` shows which connections are the service's.
#[test]
fn explain_reports_which_connections_use_the_service() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-explained");
    let service = NetService::start(&scratch, &[]);
    let program = r#"
for address in "10.77.0.2", "127.0.0.1":
    with socket.create_server((address, 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=30)
        far, _ = listener.accept()
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        near.close(), far.close()
"#;
    let program = scratch.write("explained.py", format!("{PRELUDE}{program}"));
    for file in ["sites", "sites.json"].map(|name| scratch.join(name)) {
        let done = Program::new(bin_dir().join("uncopy"))
            .args(["run".as_ref(), "--net".as_ref(), service.control().as_os_str()])
            .args([
                "--explain".as_ref(),
                file.as_os_str(),
                "--".as_ref(),
                "/usr/bin/python3".as_ref(),
                program.as_os_str(),
            ])
            .mode(Mode::Plain)
            .start(&scratch, "explained")
            .finish();
        assert!(done.status.success(), "{}", done.text());
    }
    let table = std::fs::read_to_string(scratch.join("sites")).expect("written");
    assert!(table.contains("connections of TCP: 2 through the service that --net names"), "{table}");
    assert!(table.contains("connections of TCP: 2 not: the service does not have"), "{table}");
    let report = std::fs::read_to_string(scratch.join("sites.json")).expect("written");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let streams = &report["processes"][0]["streams"];
    assert_eq!((&streams["served"], &streams["unserved"]), (&2.into(), &2.into()), "{report:#}");
    service.wait_until_no_connections();
    service.stop();
}
