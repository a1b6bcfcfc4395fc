"""Fetches URLs by several threads over connections that stay open, and prints one line for each: status, length, digest.

Usage: fetch.py [--threads N] [--rounds N] [--post FILE] [--put FILE] [--lenient] URL…
Every round must give the same bytes. With --lenient a connection that the server closes between two requests is made again,
and a request that is answered by 503, as Apache does while it starts its CGI daemon anew, is repeated.
"""

import argparse
import hashlib
import http.client
import sys
import threading
import time
import urllib.parse

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=4)
parser.add_argument("--rounds", type=int, default=8)
parser.add_argument("--post")
parser.add_argument("--put")
parser.add_argument("--lenient", action="store_true")
parser.add_argument("urls", nargs="+")
options = parser.parse_args()
method, body = "GET", None
for name in ("post", "put"):
    if getattr(options, name):
        method, body = name.upper(), open(getattr(options, name), "rb").read()
answers, faults, lock = {url: set() for url in options.urls}, [], threading.Lock()


def connect(parts):
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)


def ask(connections, url):
    parts = urllib.parse.urlsplit(url)
    for attempt in range(5 if options.lenient else 1):
        connection = connections.get(parts.netloc) or connect(parts)
        connections[parts.netloc] = connection
        try:
            connection.request(method, parts.path + ("?" + parts.query if parts.query else ""), body=body)
            answer = connection.getresponse()
            sum_, length, part = hashlib.sha256(), 0, bytearray(1 << 20)
            while count := answer.readinto(part):
                sum_.update(memoryview(part)[:count])
                length += count
            if answer.status == 503 and options.lenient and attempt < 4:
                time.sleep(0.5)
                continue
            return answer.status, length, sum_.hexdigest()
        except (http.client.RemoteDisconnected, ConnectionError):
            connection.close()
            connections[parts.netloc] = None
            if attempt == 4 or not options.lenient:
                raise


def work():
    connections = {}
    try:
        for _ in range(options.rounds):
            for url in options.urls:
                answer = ask(connections, url)
                with lock:
                    answers[url].add(answer)
    except Exception as error:
        faults.append(repr(error))


threads = [threading.Thread(target=work) for _ in range(options.threads)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for url in options.urls:
    for answer in sorted(answers[url]):
        print(url, *answer)
for fault in sorted(set(faults)):
    print("fault:", fault)
sys.exit(1 if faults else 0)
