"""What spark-submit runs: the jobs of `python -m shardq.spark`.

It lies here because a script's directory comes first where Python looks for modules.
"""

from __future__ import annotations

from shardq.cli.spark import main

if __name__ == "__main__":
    main()
