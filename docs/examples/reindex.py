"""Index a document once its author has stopped typing, and now and then while they go on."""

from shardq import App, KeyTaken

app = App()


@app.task(
    queue="index",
    key="index-{doc}",
    group="doc-{doc}",
    delay="30s",
    on_conflict="debounce",
    max_wait="5m",
)
def index(doc: int) -> None:
    print(f"index document {doc} as it is now")


def changed(doc: int) -> None:
    try:
        index.put(doc)
    except KeyTaken:
        # It is being indexed at this moment, maybe as it was before the change: index it once more.
        # The group lets that wait for the end of this run, and frees the first key by then.
        index.using(key=f"index-{doc}-again").put(doc)
