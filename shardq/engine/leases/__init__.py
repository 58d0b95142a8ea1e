"""Leases: the right to hand out a shard's rows, and lanes whose reader leaves due rows alone."""
