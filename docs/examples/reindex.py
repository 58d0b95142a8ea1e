"""Index a document once its author has stopped typing, and now and then while they go on."""

from shardq import App

app = App()


@app.task(queue="index", key="index-{doc}", delay="30s", on_conflict="debounce", max_wait="5m")
def index(doc: int) -> None:
    print(f"index document {doc} as it is now")
