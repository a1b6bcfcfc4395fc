//! Sockets that are shut down: events, and the data that still arrives. The same scripts run on the
//! kernel's TCP, which must give the same results.

use super::{kernel_python, python};
use uncopy_tests::artifacts::plain_only;
use uncopy_tests::net_service::{KERNEL_V4, NetService, SERVICE_V4};
use uncopy_tests::{Mode, Program, Scratch};

/// Runs a script at the kernel's address and at the service's, and compares the output.
fn compare_with_kernel(name: &str, script: &str) {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new(&format!("net-{name}"));
    let service = NetService::start(&scratch, &[]);
    let expect_end = |program: Program| {
        let done = program.start(&scratch, name).finish();
        assert!(done.status.success() && done.text().contains("well"), "{}", done.text());
    };
    expect_end(kernel_python(&service, &scratch, name, script, &[KERNEL_V4]));
    for mode in [Mode::Always, Mode::Auto] {
        expect_end(service.program(python(&scratch, name, script, &[SERVICE_V4]), mode));
        service.wait_until_no_connections();
    }
    service.stop();
}

/// Every kind of event loop reports a listener's end, without spinning, and accept fails because
/// there is no listener.
const LISTENER: &str = r#"
def events_of(end, wanted, limit=20000):
    poll = select.poll()
    poll.register(end, wanted)
    return dict(poll.poll(limit)).get(end.fileno(), 0)
# A port that was asked for is kept.
with socket.create_server((sys.argv[1], 0)) as free:
    name = free.getsockname()
# Whoever waits at it wakes, also by another descriptor, and by one of another process.
listener = socket.create_server(name, backlog=16)
duplicate = listener.dup()
heard = []
def accept(end):
    try:
        end.accept()
    except OSError as error:
        heard.append(error.errno)
waiters = [threading.Thread(target=accept, args=(end,)) for end in (listener, duplicate)]
for waiter in waiters:
    waiter.start()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, b"x")
    accept(listener)
    duplicate.setblocking(False)
    accept(duplicate)
    os._exit(0 if heard == [errno.EINVAL] * 2 else 1)
os.read(reader, 1)
# All of them wait by now, or find it shut.
listener.shutdown(socket.SHUT_RDWR)
for waiter in waiters:
    waiter.join(20)
    assert not waiter.is_alive()
assert heard == [errno.EINVAL] * 2, heard
assert os.waitpid(child, 0)[1] == 0
expect(errno.EINVAL, duplicate.accept)
duplicate.setblocking(False)
expect(errno.EINVAL, duplicate.accept)
duplicate.close()
listener.setblocking(True)
listener.listen(16)
def check_end(kind, *arguments):
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN | select.EPOLLET)
    first = epoll.poll(20) if events_of(listener, select.POLLIN, 0) else []
    kind(*arguments)
    found = epoll.poll(20)
    assert found and found[0][0] == listener.fileno() and found[0][1] & select.EPOLLHUP, (first, found)
    assert events_of(listener, select.POLLIN | select.POLLOUT) == select.POLLOUT | select.POLLHUP
    listener.setblocking(False)
    expect(errno.EINVAL, listener.accept)
    listener.setblocking(True)
    expect(errno.EINVAL, listener.accept)
    expect(errno.ECONNREFUSED, socket.create_connection, name)
    assert listener.getsockname() == name
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
    # It may listen again, and who watches it hears of clients.
    listener.listen(16)
    near = socket.create_connection(name, timeout=20)
    assert epoll.poll(20) == [(listener.fileno(), select.EPOLLIN)]
    far, peer = listener.accept()
    assert peer == near.getsockname()
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    near.close(), far.close(), epoll.close()
check_end(listener.shutdown, socket.SHUT_RDWR)
check_end(listener.shutdown, socket.SHUT_RD)
# Who waits to be accepted is reset.
near = socket.create_connection(name, timeout=20)
assert events_of(listener, select.POLLIN) == select.POLLIN
listener.shutdown(socket.SHUT_RDWR)
assert events_of(near, select.POLLIN) & select.POLLERR
expect(errno.ECONNRESET, near.recv, 1)
listener.listen(16)
def disconnect():
    import ctypes
    assert ctypes.CDLL(None).connect(listener.fileno(), bytes(16), 16) == 0
check_end(disconnect)
# A side that a listener does not have.
listener.shutdown(socket.SHUT_WR)
near = socket.create_connection(name, timeout=20)
listener.accept()[0].close()
print("well")
"#;

#[test]
fn shut_down_listener_ends_for_everybody_and_may_listen_again() {
    compare_with_kernel("listener", LISTENER);
}

/// Sends more than all buffers hold, before and after the shutdown, and receives by every call.
const RECEIVING: &str = r#"
listener = socket.create_server((sys.argv[1], 0), backlog=16)
def connect_pair():
    near = socket.create_connection(listener.getsockname(), timeout=20)
    far, _ = listener.accept()
    near.settimeout(None)
    return near, far
def receive_by_readv(end, length):
    parts = [bytearray(length // 3), bytearray(length - length // 3)]
    got = os.readv(end.fileno(), parts)
    return b"".join(parts)[:got]
def receive_by_recvmsg(end, length):
    parts = [bytearray(length // 3), bytearray(length - length // 3)]
    got, control, flags, name = end.recvmsg_into(parts)
    assert (control, flags) == ([], 0)
    return b"".join(parts)[:got]
def receive_by_recv_into(end, length):
    part = bytearray(length)
    return bytes(part[:end.recv_into(part)])
calls = [lambda end, length: end.recv(length), lambda end, length: os.read(end.fileno(), length), receive_by_readv, receive_by_recvmsg, receive_by_recv_into]
for number, call in enumerate(calls):
    near, far = connect_pair()
    data = message(number, 300_000)
    sender = threading.Thread(target=far.sendall, args=(data,))
    sender.start()
    received = bytearray(near.recv(1000, socket.MSG_WAITALL))
    near.shutdown(socket.SHUT_RD)
    # Nothing that has come is lost, and nobody waits.
    while len(received) < len(data):
        received += call(near, 70_000)
    assert received == data
    sender.join()
    assert call(near, 10) == b"" and near.recv(10, socket.MSG_DONTWAIT) == b""
    far.sendall(b"later")
    while (peeked := near.recv(10, socket.MSG_PEEK)) != b"later":
        assert b"later".startswith(peeked)
    assert call(near, 3) == b"lat" and call(near, 10) == b"er" and call(near, 10) == b""
    # The other half goes on.
    near.sendall(b"question")
    assert receive_exactly(far, 8) == b"question"
    far.sendall(b"last")
    far.close()
    received = bytearray()
    while len(received) < 4:
        received += call(near, 10)
    assert received == b"last" and call(near, 10) == b""
    near.close()
# A thread that waits to receive hears the end.
near, far = connect_pair()
heard = []
waiter = threading.Thread(target=lambda: heard.append(near.recv(10)))
waiter.start()
near.shutdown(socket.SHUT_RD)
waiter.join(20)
assert heard == [b""], heard
# Whoever else has the connection receives what comes.
far.sendall(b"child")
child = os.fork()
if child == 0:
    while not (received := near.recv(10)):
        pass
    os._exit(received != b"child")
assert os.waitpid(child, 0)[1] == 0
# What nobody has received is a reset.
far.sendall(b"unread")
while near.recv(10, socket.MSG_PEEK) != b"unread":
    pass
near.close()
far.settimeout(20)
expect(errno.ECONNRESET, far.recv, 1)
print("well")
"#;

#[test]
fn data_after_shutdown_for_reading_is_received() {
    compare_with_kernel("receiving", RECEIVING);
}

/// Every way to wait reports a reset.
const RESETS: &str = r#"
listener = socket.create_server((sys.argv[1], 0), backlog=16)
IN, ERR, HUP = select.POLLIN, select.POLLERR, select.POLLHUP
for is_watched_before in (True, False):
    near = socket.socket()
    epoll = select.epoll()
    if is_watched_before:
        epoll.register(near, select.EPOLLIN)
    near.connect(listener.getsockname())
    far, _ = listener.accept()
    if not is_watched_before:
        epoll.register(near, select.EPOLLIN)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    found = epoll.poll(20)
    assert found == [(near.fileno(), IN | ERR | HUP)], found
    poll = select.poll()
    poll.register(near, IN)
    assert poll.poll(20000) == [(near.fileno(), IN | ERR | HUP)]
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
    assert epoll.poll(20) == poll.poll(20000) == [(near.fileno(), IN | HUP)]
    near.close(), epoll.close()
print("well")
"#;

#[test]
fn reset_is_reported_to_every_waiter() {
    compare_with_kernel("resets", RESETS);
}
