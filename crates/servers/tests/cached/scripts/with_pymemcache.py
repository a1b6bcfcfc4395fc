"""pymemcache against the server on the port and the UNIX socket that are its arguments."""

import sys

from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient

port, socket = int(sys.argv[1]), sys.argv[2]


def check(client):
    client.flush_all(noreply=False)
    assert client.set("a", b"1", noreply=False)
    assert client.get("a") == b"1"
    assert client.get("missing") is None
    assert client.add("a", b"2", noreply=False) is False
    assert client.add("b", b"2", noreply=False) is True
    assert client.replace("b", b"3", noreply=False) is True
    assert client.replace("c", b"3", noreply=False) is False
    assert client.append("b", b"4", noreply=False) and client.prepend("b", b"0", noreply=False)
    assert client.get("b") == b"034"
    assert client.incr("a", 41) == 42 and client.decr("a", 2) == 40
    assert client.incr("missing", 1) is None
    value, version = client.gets("a")
    assert value == b"40"
    assert client.cas("a", b"50", version) is True
    assert client.cas("a", b"60", version) is False
    assert client.cas("missing", b"60", version) is None
    assert client.touch("a", 100, noreply=False) is True
    assert client.touch("missing", 100, noreply=False) is False
    assert client.delete("a", noreply=False) is True
    assert client.delete("a", noreply=False) is False
    values = {"k%d" % key: bytes([key % 256]) * (key * 37) for key in range(400)}
    assert client.set_many(values, noreply=False) == []
    assert client.get_many(list(values) + ["missing"]) == values
    large = bytes(range(256)) * 8192
    for key in range(8):
        assert client.set("large%d" % key, large[key:], noreply=False)
    for key in range(8):
        assert client.get("large%d" % key) == large[key:]
    assert client.set("gone", b"x", expire=-1, noreply=False)
    assert client.get("gone") is None
    # Without answers, and in order all the same.
    for number in range(100):
        client.set("quiet", b"%d" % number, noreply=True)
    assert client.get("quiet") == b"99"
    client.delete_many(list(values), noreply=True)
    assert client.get_many(list(values)) == {}


for client in (
    Client(("127.0.0.1", port), no_delay=True),
    Client(socket),
    PooledClient(("127.0.0.1", port), max_pool_size=2),
):
    check(client)
hashed = HashClient([("127.0.0.1", port)])
assert hashed.set("x", b"y", noreply=False) and hashed.get("x") == b"y"
client = Client(("127.0.0.1", port), serde=serde.pickle_serde)
assert client.set("object", {"a": [1, 2, 3]}, noreply=False)
assert client.get("object") == {"a": [1, 2, 3]}
assert client.version().startswith(b"1.")
statistics = client.stats()
assert statistics[b"cmd_get"] > 100 and statistics[b"threads"] == 2, statistics
assert client.stats("settings")[b"item_size_max"] == 8 << 20
print("passed")
