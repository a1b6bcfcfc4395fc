//! Data sent over a lane that the program did not receive: files by sendfile, and memory of `uncopy_alloc`.

use uncopy_core::stats::Counter;
use uncopy_tests::Scratch;
use uncopy_tests::lane_programs::run_pair;

/// A server that sends pieces of a file by sendfile and send; a client that compares.
const FILES: &str = r#"
import errno, random, select, struct, tempfile
CONTENT = hashlib.shake_128(b"content").digest(5_000_000)
random.seed(17)
def random_piece():
    length = random.choice([1, 4000, 32767, 32768, 40001, 150000, 1 << 20, 3_000_001])
    return random.randrange(len(CONTENT) - length), length
def send_by(how, connection, file, offset, length):
    sent = 0
    if how == "send":
        connection.sendall(CONTENT[offset : offset + length])
        return
    if how == "position":
        os.lseek(file, offset, os.SEEK_SET)
    if how == "cold":
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    connection.setblocking(how != "nonblocking")
    while sent < length:
        at = None if how == "position" else offset + sent
        try:
            count = os.sendfile(connection.fileno(), file, at, length - sent)
        except BlockingIOError:
            select.select([], [connection], [], 30)
            continue
        assert 0 < count <= length - sent, (how, count)
        sent += count
    connection.setblocking(True)
    if how == "position":
        assert os.lseek(file, 0, os.SEEK_CUR) == offset + length
if IS_SERVER:
    connection = listen().accept()[0]
    with tempfile.TemporaryFile() as content_file:
        content_file.write(CONTENT)
        content_file.flush()
        os.fsync(content_file.fileno())
        file = content_file.fileno()
        for number in range(200):
            offset, length = random_piece()
            connection.sendall(struct.pack("=QQ", offset, length))
            send_by(["plain", "send", "cold", "position", "send", "nonblocking"][number % 6], connection, file, offset, length)
        # The end of the file, and behind it.
        connection.sendall(struct.pack("=QQ", len(CONTENT) - 50000, 50000))
        assert os.sendfile(connection.fileno(), file, len(CONTENT) - 50000, 1 << 20) == 50000
        assert os.sendfile(connection.fileno(), file, len(CONTENT), 1 << 20) == 0
        assert os.sendfile(connection.fileno(), file, len(CONTENT) + 5000, 1 << 20) == 0
        # What was sent is what there was then.
        connection.sendall(struct.pack("=QQ", 0, 1 << 20))
        assert os.sendfile(connection.fileno(), file, 0, 1 << 20) > 0
        reader, writer = os.pipe()
        for bad in ((connection.fileno(), reader, 0), (connection.fileno(), 9999, 0), (connection.fileno(), file, -1)):
            try:
                os.sendfile(bad[0], bad[1], bad[2], 100000)
                assert False, bad
            except OSError as error:
                assert error.errno in (errno.ESPIPE, errno.EINVAL, errno.EBADF), (bad, error)
    connection.close()
else:
    connection = connect(sys.argv[2])
    for number in range(202):
        offset, length = struct.unpack("=QQ", receive_exactly(connection, 16))
        if number == 150:
            # The sender runs out of room.
            time.sleep(0.3)
        if number < 201:
            assert receive_exactly(connection, length) == CONTENT[offset : offset + length], (number, offset, length)
    rest = bytearray()
    while part := connection.recv(200000):
        rest += part
    assert 0 < len(rest) <= 1 << 20 and CONTENT.startswith(rest), len(rest)
"#;

#[test]
fn pieces_of_files_by_sendfile() {
    let scratch = Scratch::new("lanes-files");
    let [client, server] = run_pair(&scratch, FILES);
    let (sent, received) = (server.counters.expect("counters"), client.counters.expect("counters"));
    assert!(sent.get(Counter::LaneSentBytes) > 10 << 20, "{sent}");
    assert!(received.get(Counter::LaneReceivedBytes) > 10 << 20, "{received}");
    assert!(received.get(Counter::LaneLiteralBytes) > 10 << 20, "{received}");
}

/// A server that repeatedly sends values from memory of `uncopy_alloc`, and changes them now and
/// then in every way; a client that knows the value at each send.
const VALUES: &str = r#"
import ctypes, random, struct, threading
lib = ctypes.CDLL(None, use_errno=True)
lib.uncopy_alloc.restype, lib.uncopy_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
lib.uncopy_free.argtypes = [ctypes.c_void_p]
lib.send.restype = ctypes.c_ssize_t
lib.send.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
lib.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LENGTH = 300_000
random.seed(23)
class Value:
    def __init__(self, number):
        self.number, self.address = number, lib.uncopy_alloc(LENGTH)
        self.fill()
    def store(self, at, content):
        ctypes.memmove(self.address + at, content, len(content))
        self.content = self.content[:at] + content + self.content[at + len(content) :]
    def fill(self):
        self.content = b""
        self.number += 1000
        self.store(0, hashlib.shake_128(str(self.number).encode()).digest(LENGTH))
    def reallocate(self):
        lib.uncopy_free(self.address)
        self.address = lib.uncopy_alloc(LENGTH)
        self.fill()
    def read_into(self):
        # The kernel writes there.
        reader, writer = os.pipe()
        content = os.urandom(5000)
        os.write(writer, content)
        target = (ctypes.c_char * 5000).from_address(self.address + 70_000)
        assert os.readv(reader, [target]) == 5000
        os.close(reader), os.close(writer)
        self.content = self.content[:70_000] + content + self.content[75_000:]
    def send(self, connection):
        start = random.choice([0] * 20 + [1, 4096, 5000, 200_000, 290_000])
        expected = self.content[start:]
        connection.sendall(struct.pack("=Q", len(expected)) + hashlib.sha256(expected).digest())
        sent = 0
        while sent < len(expected):
            count = lib.send(connection.fileno(), self.address + start + sent, len(expected) - sent, 0)
            assert count > 0, ctypes.get_errno()
            sent += count
        # Changed after it was sent, and before it may have been received.
        if random.random() < 0.02:
            self.store(random.randrange(LENGTH - 10), b"changed")
if IS_SERVER:
    connection = listen().accept()[0]
    values = [Value(number) for number in range(6)]
    for number in range(600):
        value = random.choice(values)
        if number % 40 == 7:
            value.store(random.randrange(LENGTH - 10), b"something")
        if number % 40 == 17:
            value.reallocate()
        if number % 40 == 27:
            value.read_into()
        if number % 40 == 37:
            writer = threading.Thread(target=value.fill)
            writer.start()
            writer.join()
        if number == 300:
            child = os.fork()
            if child == 0:
                # Its own, and no word of it to the parent's peer.
                value.store(0, b"the child's")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        if number == 550:
            # Its bytes are gone without a fault.
            whole_pages = (value.address + 8191) & ~4095
            assert lib.madvise(whole_pages, 8192, 4) == 0
            at = whole_pages - value.address
            value.content = value.content[:at] + bytes(8192) + value.content[at + 8192 :]
        value.send(connection)
    connection.close()
else:
    connection = connect(sys.argv[2])
    for number in range(600):
        (length,), digest = struct.unpack("=Q", receive_exactly(connection, 8)), receive_exactly(connection, 32)
        assert hashlib.sha256(receive_exactly(connection, length)).digest() == digest, f"value {number}"
    assert connection.recv(1) == b""
"#;

#[test]
fn values_that_are_sent_again_are_copied_once() {
    let scratch = Scratch::new("lanes-values");
    let [_, server] = run_pair(&scratch, VALUES);
    let counters = server.counters.expect("counters");
    let (sent, copied) = (counters.get(Counter::LaneSentBytes), counters.get(Counter::LaneCopiedBytes));
    assert!(sent > 50 << 20 && copied > 1 << 20 && copied < sent / 2, "{counters}");
}
