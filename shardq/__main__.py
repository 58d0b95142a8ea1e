"""`python -m shardq` is the command line."""

from shardq.cli import main

if __name__ == "__main__":
    main()
