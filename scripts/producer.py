"""Put a message every 0.1 s, due in 60 s. Stop it with Ctrl-C."""

import argparse

import shardq
from shardq.clock import SystemClock
from shardq.errors import ShardqError

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("-H", "--hosts", help="Cassandra hosts, comma separated; SQLite without them")
parser.add_argument("-K", "--keyspace", default="shardq")
parser.add_argument("-q", "--queue", default="demo")
parser.add_argument("-n", "--count", type=int, help="stop after so many")
options = parser.parse_args()

url = f"cassandra://{options.hosts}/{options.keyspace}" if options.hosts else "sqlite:///shardq.db"
clock = SystemClock()
number = 0
try:
    shardq.init(url)
    with shardq.connect(url) as db:
        queue = db.queue(options.queue)
        while options.count is None or number < options.count:
            number += 1
            message = queue.put(f"message {number:,}", delay="60s")
            print(f"put {message.body.decode()}, due {message.due:%H:%M:%S}", flush=True)
            clock.sleep(0.1)
except ShardqError as error:
    raise SystemExit(f"producer: {error}") from None
except KeyboardInterrupt:
    print(f"put {number:,} messages")
