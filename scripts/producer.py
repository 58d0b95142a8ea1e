"""Put a message every 0.1 s, each due in 60 s. Stop it with Ctrl-C."""

import argparse
import time

import shardq

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("-H", "--hosts", help="Use Cassandra on these hosts, not SQLite: one,two:9042.")
parser.add_argument("-K", "--keyspace", default="shardq", help="Use this keyspace of Cassandra.")
parser.add_argument("-q", "--queue", default="demo", help="Put the messages into this queue.")
parser.add_argument("-n", "--count", type=int, help="Stop after this many messages.")
options = parser.parse_args()

url = f"cassandra://{options.hosts}/{options.keyspace}" if options.hosts else "sqlite:///shardq.db"
number = 0
try:
    shardq.init(url)
    with shardq.connect(url) as db:
        queue = db.queue(options.queue)
        while options.count is None or number < options.count:
            message = queue.put(f"message {number + 1:,}", delay="60s")
            number += 1
            print(f"put {message.text}, due {message.due:%H:%M:%S} UTC", flush=True)
            time.sleep(0.1)
except shardq.ShardqError as error:
    raise SystemExit(f"producer: {error}") from None
except KeyboardInterrupt:
    print(f"put {number:,} messages")
