"""Handing out: rows in memory on their way to a handler or a caller of `receive`."""
