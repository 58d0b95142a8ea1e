"""A web service that answers at once and lets a worker do what takes long."""

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from shardq import App
from shardq.tasks import JobState, current

app = App()
api = FastAPI()


class Order(BaseModel):
    customer: str
    cents: list[int]


class Invoice(BaseModel):
    customer: str
    total: int


@app.task(queue="invoices", attempts=3, timeout="2m", keep="1d")
def bill(order: Order) -> Invoice:
    """Runs in a worker: shardq work web:app."""
    total = 0
    for number, cents in enumerate(order.cents, start=1):
        total += cents
        current().progress(number / len(order.cents), f"{number} of {len(order.cents)} lines")
    return Invoice(customer=order.customer, total=total)


@api.post("/invoices", status_code=202)
def begin(order: Order) -> dict[str, str]:
    """Runs in the web server: uvicorn web:api."""
    return {"id": bill.put(order).id}


@api.get("/invoices/{job_id}")
def show(job_id: str) -> dict[str, object]:
    job = app.job(job_id, task=bill.name)
    state = job.state
    if state is JobState.UNKNOWN:
        raise HTTPException(404, "there is no such invoice")
    if state is JobState.DONE:
        return {"state": state, "invoice": job.result()}
    progress = job.progress
    return {"state": state, "progress": progress and progress.fraction, "error": job.error}
