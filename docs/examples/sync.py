"""Sync the data of each customer, as often as they have chosen."""

from shardq import App

app = App()


@app.task(queue="sync", attempts=3, timeout="10m")
def sync(customer: str) -> None:
    print(f"sync {customer}")


def choose(customer: str, interval: str) -> None:
    """A customer has chosen an interval, the first one or another."""
    name = f"sync-{customer}"
    schedule = app.schedules.get(name)
    if schedule is None:
        app.schedules.every(interval, sync.of(customer), name=name, overlap="skip")
    else:
        schedule.change(every=interval)


def sync_now(customer: str) -> None:
    app.schedules[f"sync-{customer}"].run()


def leave(customer: str) -> None:
    app.schedules[f"sync-{customer}"].remove()
