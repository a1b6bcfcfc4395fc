"""Messages of megabytes to a queue that lasts, and back; prints digests."""

import hashlib
import random

import pika

connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1"))
channel = connection.channel()
channel.queue_declare("q", durable=True)
for seed in range(30):
    body = random.Random(seed).randbytes([1000, 100_000, 3_000_000][seed % 3])
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
for _ in range(30):
    body = None
    while body is None:
        method, _, body = channel.basic_get("q", auto_ack=True)
    print(len(body), hashlib.sha256(body).hexdigest())
connection.close()
