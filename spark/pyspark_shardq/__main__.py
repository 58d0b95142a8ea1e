"""The door of `python -m pyspark_shardq`, and the script that spark-submit runs."""

from __future__ import annotations

from pyspark_shardq.cli import main

if __name__ == "__main__":
    main()
