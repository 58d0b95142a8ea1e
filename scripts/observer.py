"""Print pending/total for each open shard, every second. Stop it with Ctrl-C.

Pending are the messages of the shard that are due by now, total are all that are in it now.
"""

import argparse

import shardq
from shardq.clock import SystemClock
from shardq.errors import ShardqError
from shardq.observer import open_shards

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("-H", "--hosts", help="Cassandra hosts, comma separated; SQLite without them")
parser.add_argument("-K", "--keyspace", default="shardq")
parser.add_argument("-q", "--queue", default="demo")
parser.add_argument("--once", action="store_true", help="look once")
options = parser.parse_args()

url = f"cassandra://{options.hosts}/{options.keyspace}" if options.hosts else "sqlite:///shardq.db"
clock = SystemClock()
try:
    shardq.init(url)
    with shardq.connect(url) as db:
        queue = db.queue(options.queue)
        while True:
            for minute, lanes in open_shards(db, queue).items():
                shown = (f"{pending:04}/{total:04}" for pending, total in lanes)
                print(f"{options.queue} minute {minute}", *shown, sep="  ", flush=True)
            print(flush=True)
            if options.once:
                break
            clock.sleep(1)
except ShardqError as error:
    raise SystemExit(f"observer: {error}") from None
except KeyboardInterrupt:
    pass
