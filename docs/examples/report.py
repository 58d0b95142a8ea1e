"""A report each night, by the clocks of Berlin, and a reminder if nobody approved it by nine."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from shardq import App
from shardq.tasks import current

app = App()

BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)


@app.task(queue="reports")
def report() -> None:
    """Report on yesterday, and on each day since the last report where nobody was there."""
    firing = current().firing
    today = (firing.time if firing else datetime.now(UTC)).astimezone(BERLIN).date()
    day = firing.previous.astimezone(BERLIN).date() if firing and firing.previous else today - DAY
    while day < today:
        print(f"the report on {day}")
        remind.put(day)
        day += DAY


@app.task(queue="reports", key="approve-{day}", delay="6h30m")
def remind(day: date) -> None:
    print(f"approve the report on {day}, please")


def approve(day: date) -> None:
    app.cancel(f"approve-{day}")


app.cron("30 2 * * *", report, tz=BERLIN, overlap="queue")
