"""Leases: the right to hand out a shard's rows, and lanes whose readers leave due rows unread."""
