"""Print pending/total of each open shard, every second. Stop it with Ctrl-C.

A shard's pending messages are due by now; its total is all that it holds now.
"""

import argparse
import time

import shardq

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("-H", "--hosts", help="Use Cassandra on these hosts, not SQLite: one,two:9042.")
parser.add_argument("-K", "--keyspace", default="shardq", help="Use this keyspace of Cassandra.")
parser.add_argument("-q", "--queue", default="demo", help="Look at this queue.")
parser.add_argument("--once", action="store_true", help="Look once, and stop.")
options = parser.parse_args()

url = f"cassandra://{options.hosts}/{options.keyspace}" if options.hosts else "sqlite:///shardq.db"
try:
    shardq.init(url)
    with shardq.connect(url) as db:
        queue = db.queue(options.queue)
        while True:
            for minute, lanes in shardq.open_shards(queue).items():
                shown = (f"{pending:04}/{total:04}" for pending, total in lanes)
                print(f"{options.queue} minute {minute}", *shown, sep="  ", flush=True)
            print(flush=True)
            if options.once:
                break
            time.sleep(1)
except shardq.ShardqError as error:
    raise SystemExit(f"observer: {error}") from None
except KeyboardInterrupt:
    pass
