"""Packaged programs with a service of user-level TCP at one side or both, and the kernel's TCP at the other: bytes are compared.

Usage: net_programs.py SCENARIO SECONDS OUTSIDE SERVICE KERNEL COMMAND…

SERVICE and KERNEL are the addresses of both in one network, OUTSIDE the network namespace of the kernel's, COMMAND what a
program is started by whose TCP is the service's. Loads run for SECONDS. Run by root, because servers change their user.
"""

import contextlib
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LIMIT_S = 120
SIZES = [0, 1, 1000, 4096, 65_535, 300_000, 3_000_000]


class Side:
    """Where a program runs, and the address that it has there."""

    def __init__(self, name, prefix, address):
        self.name, self.prefix, self.address = name, prefix, address

    def run(self, *command, stdin_bytes=None, code=0):
        done = subprocess.run(
            [*self.prefix, *map(str, command)], input=stdin_bytes, capture_output=True, timeout=LIMIT_S,
        )
        text = f"{self.name}: {command}: {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
        assert done.returncode == code, text
        assert b"uncopy: " not in done.stderr, text
        return done.stdout

    @contextlib.contextmanager
    def server(self, *command, end=signal.SIGTERM):
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen([*self.prefix, *map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                yield process
                assert process.poll() is None, f"{command} has ended"
            except BaseException:
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))
                raise
            finally:
                process.send_signal(end)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    raise


def wait_for(what, work):
    """The first true value of `work`."""
    for _ in range(400):
        if found := work():
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what}")


def wait_until_answers(client, *command):
    """Waits until a command says that a server answers."""
    for _ in range(400):
        try:
            return client.run(*command)
        except AssertionError as error:
            last = error
        time.sleep(0.05)
    raise last


def message(name, length):
    return hashlib.shake_128(f"{name}".encode()).digest(length)


NGINX = """
user nobody nogroup; worker_processes {workers}; daemon off; pid {scratch}/pid; error_log {scratch}/error.log warn;
events {{ worker_connections 256; }}
http {{
    access_log off; sendfile {sendfile}; keepalive_requests 100000; client_max_body_size 64m; client_body_temp_path {scratch}/w/body;
    proxy_temp_path {scratch}/w/proxy; fastcgi_temp_path {scratch}/w/f; uwsgi_temp_path {scratch}/w/u; scgi_temp_path {scratch}/w/s;
    upstream far {{ server {upstream}; keepalive 8; }}
    server {{
        listen {address}:{port} {shared}; root {scratch}/w;
        location /far/ {{ proxy_pass http://far/; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; }}
        location /put/ {{ dav_methods PUT DELETE; }}
        location /slow/ {{ alias {scratch}/w/; limit_rate 1k; }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(side, client, scratch, port, upstream="127.0.0.1:9", sendfile="off", shared="", workers=4):
    scratch.mkdir()
    scratch.chmod(0o755)
    (scratch / "w").mkdir()
    (scratch / "w/put").mkdir()
    for length in SIZES:
        (scratch / f"w/{length}").write_bytes(message("page", length))
    shutil.chown(scratch / "w", "nobody")
    shutil.chown(scratch / "w/put", "nobody")
    (scratch / "conf").write_text(NGINX.format(
        scratch=scratch, address=side.address, port=port, upstream=upstream, sendfile=sendfile, shared=shared, workers=workers,
    ))
    with side.server("nginx", "-c", scratch / "conf", end=signal.SIGQUIT):
        url = f"http://{side.address}:{port}"
        try:
            wait_until_answers(client, "curl", "-sf", f"{url}/1")
            yield url
        finally:
            errors = (scratch / "error.log").read_text()
        bad = [line for line in errors.splitlines() if "[warn]" not in line and "/none" not in line]
        assert not bad, bad


def curl(server, client, scratch, _seconds):
    """Uploads and downloads of all lengths, ranges, connections that are kept, and what goes wrong."""
    for sendfile in "off", "on":
        with nginx(server, client, scratch / f"n{sendfile}", 8000, sendfile=sendfile) as url:
            for length in SIZES:
                assert client.run("curl", "-sf", f"{url}/{length}") == message("page", length), length
            pages = [word for length in SIZES for word in ("-o", "/dev/null", f"{url}/{length}")]
            out = client.run("curl", "-sf", "-w", "=%{num_connects}=", *pages)
            assert sum(map(int, re.findall(rb"=(\d+)=", out))) == 1, "a connection for each"
            page = message("page", 3_000_000)
            assert client.run("curl", "-sf", "-r", "1000000-1999999", f"{url}/3000000") == page[1_000_000:2_000_000]
            assert client.run("curl", "-sf", "-r", "-500", f"{url}/3000000") == page[-500:]
            parts = client.run("curl", "-sf", "-r", "0-9,70000-140000", f"{url}/3000000")
            assert page[:10] in parts and page[70_000:140_001] in parts
            assert client.run("curl", "-sf", "-0", f"{url}/300000") == message("page", 300_000)
            upload_directory = scratch / f"n{sendfile}/w/put"
            for length in SIZES[1:]:
                sent = message("sent", length)
                client.run("curl", "-sf", "-T", "-", f"{url}/put/chunked{length}", stdin_bytes=sent)
                (scratch / "sent").write_bytes(sent)
                client.run("curl", "-sf", "-T", scratch / "sent", f"{url}/put/whole{length}")
                for name in "chunked", "whole":
                    assert (upload_directory / f"{name}{length}").read_bytes() == sent, (name, length)
            several = [word for n in range(16) for word in ("-o", scratch / f"got{n}", f"{url}/300000")]
            client.run("curl", "-sfZ", *several)
            for n in range(16):
                assert (scratch / f"got{n}").read_bytes() == message("page", 300_000)
            client.run("curl", "-sf", f"{url}/none", code=22)
            # What goes wrong: a time limit, nobody who listens.
            client.run("curl", "-sf", "-m", "1", f"{url}/slow/300000", code=28)
            client.run("curl", "-sf", f"http://{server.address}:9/", code=7)


def web(server, client, scratch, seconds):
    """Workers that have changed their user, under load, and in front of another server."""
    with nginx(client, server, scratch / "far", 8001) as far:
        upstream = far.removeprefix("http://")
        for shared in "", "reuseport":
            name = f"near{shared}"
            with nginx(server, client, scratch / name, 8000, upstream, shared=shared) as url:
                # As a client of the other one: a new connection for each, and kept ones.
                for length in SIZES[1:]:
                    assert client.run("curl", "-sf", f"{url}/far/{length}") == message("page", length), length
                    sent = message("sent", length)
                    client.run("curl", "-sf", "-T", "-", f"{url}/far/put/{length}", stdin_bytes=sent)
                    assert (scratch / f"far/w/put/{length}").read_bytes() == sent, length
                for page in "1000", "65535", "far/4096":
                    # A machine that stands still for two seconds is none of wrk's errors.
                    out = client.run("wrk", "-t2", "-c32", f"-d{seconds}s", "--timeout", "60s", f"{url}/{page}").decode()
                    assert "Non-2xx" not in out and "Socket errors" not in out and "requests in" in out, out
                for keep_alive in [], ["-k"]:
                    out = client.run("ab", "-q", "-n", 500 * seconds, "-c", "16", *keep_alive, f"{url}/4096").decode()
                    assert re.search(r"Failed requests: +0\n", out) and "Non-2xx" not in out, out


def redis(server, client, scratch, seconds):
    """Values of all lengths, pipelines, subscriptions, loads, and a replica."""
    def start(side, other, port, *options):
        directory = scratch / f"r{port}"
        directory.mkdir()
        arguments = ["redis-server", "--port", port, "--bind", side.address, "--protected-mode", "no", "--save", "", "--dir", directory,
                 "--enable-debug-command", "yes"]
        server_process = side.server(*arguments, *options)
        cli = ["redis-cli", "-h", side.address, "-p", port]
        return server_process, cli

    def ready(client, cli):
        wait_until_answers(client, *cli, "ping")

    server_process, cli = start(server, client, 6400)
    with server_process:
        ready(client, cli)
        for length in SIZES:
            value = message("value", length)
            assert client.run(*cli, "-x", "set", f"k{length}", stdin_bytes=value) == b"OK\n"
            assert client.run(*cli, "get", f"k{length}")[:-1] == value, length
        keys = 20_000 * seconds
        lines = b"".join(b"*3\r\n$3\r\nSET\r\n$8\r\nk%07d\r\n$%d\r\n%s\r\n" % (n, n % 300, b"v" * (n % 300)) for n in range(keys))
        out = client.run(*cli, "--pipe", stdin_bytes=lines)
        assert f"errors: 0, replies: {keys}".encode() in out, out
        assert int(client.run(*cli, "dbsize")) == keys + len(SIZES)
        for size, pipeline in (3, 1), (3, 16), (20_000, 1), (300_000, 4):
            out = client.run("redis-benchmark", *cli[1:], "-n", max(200, 2_000_000 * seconds // (size + 400)), "-c", "24",
                             "-P", pipeline, "-d", size, "-t", "set,get,lpush,lpop", "-q")
            assert out.count(b"requests per second") == 4, out
        # A subscriber hears everything in order.
        with tempfile.TemporaryFile() as output:
            listens = subprocess.Popen([*client.prefix, *map(str, cli), "subscribe", "c"], stdin=subprocess.DEVNULL, stdout=output)
            try:
                wait_for("a subscriber", lambda: client.run(*cli, "pubsub", "numsub", "c").split()[-1] == b"1")
                commands = b"".join(b"PUBLISH c m%d-%s\r\n" % (n, b"x" * (n * 97 % 5000)) for n in range(2000))
                assert client.run(*cli, "--pipe", stdin_bytes=commands).count(b"errors: 0")

                def received_words():
                    # Not by the offset, which the subscriber shares: it would write elsewhere.
                    words = os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).split()
                    return words if len(words) >= 3 + 3 * 2000 else None

                received_words = wait_for("2000 messages", received_words)
                assert received_words[5::3] == [b"m%d-%s" % (n, b"x" * (n * 97 % 5000)) for n in range(2000)]
            finally:
                listens.kill()
                listens.wait()
        # At the other side, what it has copied is the same.
        server_process, other = start(client, server, 6401, "--replicaof", server.address, "6400", "--repl-diskless-load", "swapdb")
        with server_process:
            ready(server, other)
            wait_for("a replica", lambda: b"master_link_status:up" in server.run(*other, "info", "replication"))
            assert client.run(*cli, "-x", "set", "late", stdin_bytes=message("late", 500_000)) == b"OK\n"
            has_same_digest = lambda: server.run(*other, "debug", "digest") == client.run(*cli, "debug", "digest")
            wait_for("replica with the same digest", has_same_digest)


MEMCACHED = """
import random, socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
file = one.makefile("rwb")
choose = random.Random(7)
values = {}
for n in range(int(sys.argv[3])):
    key = b"k%d" % choose.randrange(50)
    if choose.random() < 0.5:
        values[key] = choose.randbytes(int(2 ** choose.uniform(0, 20)))
        file.write(b"set %s 0 0 %d\\r\\n%s\\r\\n" % (key, len(values[key]), values[key]))
        file.flush()
        assert file.readline() == b"STORED\\r\\n"
    else:
        file.write(b"get %s\\r\\n" % key)
        file.flush()
        line = file.readline()
        if key in values:
            assert line == b"VALUE %s 0 %d\\r\\n" % (key, len(values[key]))
            assert file.read(len(values[key])) == values[key]
            assert file.readline() == b"\\r\\n"
            line = file.readline()
        assert line == b"END\\r\\n", line
"""


def memcached(server, client, scratch, seconds):
    """A server of several threads that has changed its user."""
    with server.server("memcached", "-u", "nobody", "-l", server.address, "-p", "11300", "-U", "0", "-I", "4m", "-m", "512", "-t", "3"):
        run = ["/usr/bin/python3", "-c", MEMCACHED, server.address, "11300"]
        wait_until_answers(client, *run, "0")
        client.run(*run, 400 * seconds)


SCENARIOS = {"curl": curl, "web": web, "redis": redis, "memcached": memcached}


def main():
    scenario, seconds, outside, service, kernel, *command = sys.argv[1:]
    for name in [name for name in os.environ if name.startswith("UNCOPY_")]:
        # Variables of tests are no options.
        del os.environ[name]
    inside = Side("inside", command, service)
    outside = Side("outside", ["nsenter", f"--net={outside}"], kernel)
    for server, client in (inside, outside), (outside, inside), (inside, inside):
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="np"))
        scratch.chmod(0o755)
        began = time.monotonic()
        try:
            SCENARIOS[scenario](server, client, scratch, int(seconds))
        finally:
            shutil.rmtree(scratch)
        print(f"{scenario}: server {server.name}, client {client.name}: well, {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
