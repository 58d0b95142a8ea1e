"""Take messages as they come due, and print them. Stop it with Ctrl-C."""

import argparse

import shardq

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("-H", "--hosts", help="Use Cassandra on these hosts, not SQLite: one,two:9042.")
parser.add_argument("-K", "--keyspace", default="shardq", help="Use this keyspace of Cassandra.")
parser.add_argument("-q", "--queue", default="demo", help="Take the messages of this queue.")
parser.add_argument("--until-empty", action="store_true", help="Stop once no message waits.")
parser.add_argument("--isolated", action="store_true", help="Take only from minutes that are over.")
options = parser.parse_args()
# Buffer stdout, even under `python -u`: then a line that is written only in part is an error.
output = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
url = f"cassandra://{options.hosts}/{options.keyspace}" if options.hosts else "sqlite:///shardq.db"
jobs: list[str] = []


def handle(message: shardq.Message) -> None:
    """Returning acks the message; raising puts it back for later."""
    if "task" in message.headers:  # An ack would lose the job without a run.
        jobs.append(f"message {message.id} is a job of a task: run `shardq work MODULE:app`.")
        consumer.stop()
        raise shardq.Snooze("1s")
    # Print one string with its line end, because handlers print from several threads.
    print(f"{message.due:%H:%M:%S} UTC {message.text}\n", end="", flush=True, file=output)


try:
    shardq.init(url)
    with shardq.connect(url) as db:
        consumer = shardq.Consumer(db.queue(options.queue), handle, isolated=options.isolated)
        consumer.run(until_empty=options.until_empty)
except shardq.ShardqError as error:
    raise SystemExit(f"consumer: {error}") from None
except KeyboardInterrupt:
    pass
if jobs:
    raise SystemExit(f"consumer: {jobs[0]}")
