"""libmemcached, by pylibmc, against the server on the port and the UNIX socket that are its arguments."""

import sys

import pylibmc

port, socket = sys.argv[1:3]
for address in ("127.0.0.1:" + port, socket):
    client = pylibmc.Client([address], behaviors={"tcp_nodelay": True, "cas": True})
    client.flush_all()
    assert client.set("a", "b") and client.get("a") == "b"
    assert client.get("missing") is None
    assert client.set_multi({"k%d" % key: "v" * key for key in range(300)}) == []
    assert client.get_multi(["k%d" % key for key in range(300)]) == {"k%d" % key: "v" * key for key in range(300)}
    assert client.add("a", 1) is False and client.replace("a", 5)
    assert client.incr("a", 3) == 8 and client.decr("a", 1) == 7
    value, version = client.gets("a")
    assert value == 7 and client.cas("a", 9, version) and client.get("a") == 9
    assert client.delete("a") and client.get("a") is None
    large = bytes(range(256)) * 16384
    assert client.set("large", large) and client.get("large") == large
    assert client.append("s", "x") is False
    assert client.set("s", b"m") and client.append("s", b"r") and client.prepend("s", b"l")
    assert client.get("s") == b"lmr"
    assert client.touch("s", 50)
    assert client.get_stats()

quiet = pylibmc.Client(["127.0.0.1:" + port], behaviors={"_noreply": True})
for number in range(50):
    quiet.set("n", number)
assert quiet.get("n") == 49
print("passed")
