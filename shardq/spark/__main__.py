"""The door of `python -m shardq.spark`: its command line is `shardq.cli.spark`."""

from __future__ import annotations

from shardq.cli.spark import main

if __name__ == "__main__":
    main()
