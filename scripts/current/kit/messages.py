"""Large messages by ZeroMQ (copied and not) and Tornado; prints digests."""

import asyncio
import hashlib
import random
import threading

import tornado.httpclient
import tornado.web
import zmq

context = zmq.Context()
for way in ("tcp://127.0.0.1:70{}0", "ipc:///tmp/zmq{}", "inproc://{}"):
    for copy in (True, False):
        # ZeroMQ closes in the background: each time another place.
        place = way.format(2 + copy)
        push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        pull.bind(place)
        push.connect(place)

        def send():
            for seed in range(20):
                push.send_multipart([random.Random(seed).randbytes(seed * 100_000), b"x" * 70_000], copy=copy)

        thread = threading.Thread(target=send)
        thread.start()
        sum_ = hashlib.sha256()
        for _ in range(20):
            for part in pull.recv_multipart(copy=copy):
                sum_.update(part if copy else part.buffer)
        thread.join()
        print(place, copy, sum_.hexdigest())
        push.close(0)
        pull.close(0)
        pull = None


class Echo(tornado.web.RequestHandler):
    def post(self):
        self.write(self.request.body)


async def main():
    application = tornado.web.Application([("/", Echo)])
    application.listen(7001, "127.0.0.1", max_body_size=1 << 28)
    client = tornado.httpclient.AsyncHTTPClient()
    for seed in range(12):
        body = random.Random(seed).randbytes(seed * 300_000)
        answer = await client.fetch("http://127.0.0.1:7001/", method="POST", body=body)
        print(hashlib.sha256(answer.body).hexdigest(), answer.body == body)


asyncio.run(main())
