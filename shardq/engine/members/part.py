"""The base of an engine's parts: each has the objects that all parts of its member share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardq.engine.members.member import Member
    from shardq.model.shard import Layout


class Part:
    """A part of one member's engine, with the objects that all parts share."""

    def __init__(self, member: Member) -> None:
        self._home = member.home
        self._store = member.home.store
        self._clock = member.home.clock
        self._register = member.home.register
        self._settler = member.home.settler
        self._stats = member.home.stats
        self._membership = member.membership
        self._news = member.news
        self._memory = member.memory
        self._ready = member.ready
        self._leases = member.leases
        self._discards = member.discards
        self._prefetch = member.prefetch
        self._threads = member.threads
        self._isolated = member.isolated

    @property
    def _layout(self) -> Layout:
        return self._register.layout
