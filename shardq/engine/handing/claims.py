"""Claims of due rows for callers of `receive`: one batch for all callers in line.

```
 ready ─► take: ten rows a caller and round ─► begin rows with keys ─► add followers of heads
       ─► plan: due now + visibility
       ─► move all ─► each caller gets its own
```

If the store refuses a batch because of one row, the batch is repeated caller by caller.
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from shardq.errors import ShardqError, StoreRefused, StoreTimeout, StoreUnavailable
from shardq.lifecycle.hub import BATCH_BYTES, BATCH_ROWS
from shardq.model.message import ALONG, Message, Row
from shardq.stores.store import RowMove

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.engine.engine import Engine
    from shardq.engine.handing.caller import ReceiveCall
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.handing.starts import Start
    from shardq.model.shard import Position

_ROUND_ROWS = 10
"""How many rows a caller gets before the next caller in line gets some."""

log = logging.getLogger(__name__)


class Claims:
    """Takes and claims rows in one engine's memory. From the thread that steps the engine."""

    def __init__(self, engine: Engine) -> None:
        self._home = engine.home
        self._clock = engine.home.clock
        self._register = engine.home.register
        self._engine = engine
        self._starts: dict[Delivery, Start] = {}
        self._followers: dict[Delivery, list[Delivery]] = {}
        """Head of a group -> its followers: rows behind the head that its caller gets as well."""

    def take(self, line: dict[ReceiveCall, None], taken: dict[ReceiveCall, list[Delivery]]) -> None:
        """Take due rows for the callers in line, round by round, up to a batch.

        Args:
            line: The callers in line; a caller that gets rows is removed from it.
            taken: Caller -> its rows; this method fills it.
        """
        # Reread noted rows first: a head that was settled or edited meanwhile must not be taken,
        # and a row that now precedes it must be.
        self._engine.groups.look(self._engine.intake.accept)
        left_rows, left_bytes = BATCH_ROWS, BATCH_BYTES
        wanting = list(line)
        rows: Counter[ReceiveCall] = Counter()
        while wanting and left_rows > 0 and left_bytes > 0:
            still: list[ReceiveCall] = []
            for caller in wanting:
                mine = taken.get(caller, [])
                most = min(caller.count - rows[caller], left_rows)
                due, due_rows, due_bytes = self._due(most, caller.per_group, left_bytes)
                if due and caller not in taken and line.pop(caller, caller) is not None:
                    # The caller has just gone: release the rows for the next caller.
                    for one in due:
                        self._engine.outbox.give_up(one)
                    continue
                if due:
                    taken[caller] = mine
                    mine += due
                    rows[caller] += due_rows
                    left_rows -= due_rows
                    left_bytes -= due_bytes
                if not due or left_rows <= 0 or left_bytes <= 0:
                    still.clear()
                    break
                if rows[caller] < caller.count:
                    still.append(caller)
            wanting = still
        try:
            self._begin(taken)
        except ShardqError:
            self._give_up(chain.from_iterable(taken.values()))
            raise

    def claim(self, taken: Mapping[ReceiveCall, Sequence[Delivery]]) -> list[Message]:
        """Claim the taken rows, and answer the callers; returns messages of callers that have gone.

        Raises:
            ShardqError: The error that answered each caller without messages.
        """
        ones = list(chain.from_iterable(taken.values()))
        try:
            if not self._engine.outbox.is_empty:
                # Burials must be stored now, not at the next call.
                self._engine.flush()
            given = {caller: self._with_followers(mine) for caller, mine in taken.items()}
            planned = {
                one: self._plan(one, caller) for caller, mine in given.items() for one in mine
            }
            claimed = self._carry_out(planned)
        except StoreRefused as error:
            if len(taken) > 1:
                # One row of one caller may be the cause: the other callers still get their rows.
                return self._claim_one_by_one(taken)
            self._give_up(ones)
            for caller in taken:
                caller.fail(error)
            return []
        except ShardqError as error:
            self._give_up(ones)
            for caller in taken:
                caller.fail(error)
            raise
        unwanted: list[Message] = []
        for caller, mine in given.items():
            messages = self._messages(
                [claimed[one] for one in mine if one in claimed], caller.visibility_ms
            )
            if messages:
                unwanted += caller.give(messages)
        return unwanted

    def _claim_one_by_one(self, taken: Mapping[ReceiveCall, Sequence[Delivery]]) -> list[Message]:
        left = dict(taken)
        unwanted: list[Message] = []
        for caller, mine in taken.items():
            del left[caller]
            try:
                unwanted += self.claim({caller: mine})
            except ShardqError as error:
                self._give_up(chain.from_iterable(left.values()))
                for other in left:
                    other.fail(error)
                raise
        return unwanted

    def _due(self, most: int, per_group: int, most_bytes: int) -> tuple[list[Delivery], int, int]:
        """Take due rows for a round; returns them, and the count of rows and bytes with followers.

        Args:
            most: The most rows. A round ends at 10 rows; followers of its last head may add more.
            per_group: The most rows of one group.
            most_bytes: No follower is added beyond this many bytes.
        """
        engine = self._engine
        due: list[Delivery] = []
        rows = size_bytes = 0
        while rows < min(most, _ROUND_ROWS) and (one := engine.ready.take()) is not None:
            if not engine.leases.is_valid(one.lease):
                engine.outbox.give_up(one)
                continue
            due.append(one)
            rows += 1
            size_bytes += one.row.size_bytes
            if one.grouped and (count := min(per_group - 1, most - rows)):
                more = self._followers[one] = []
                for each in engine.groups.behind(one, count, self._may_follow):
                    size_bytes += each.row.size_bytes
                    if size_bytes > most_bytes or not engine.ready.let_follow(one, each.row):
                        break
                    more.append(each)
                rows += len(more)
        return due, rows, size_bytes

    def _may_follow(self, row: Row) -> bool:
        """True if a row may be claimed along with the head of its group.

        A row must become the head first if it waits for its time, is claimed, has a key, is purged,
        or has no attempts left.
        """
        register = self._register
        return (
            row.ready_ms <= self._clock.now_ms()
            and row.key is None
            and row.entered_us >= register.settings.purged_before_us
            and not self._engine.outbox.is_over(row)
        )

    def _with_followers(self, mine: Iterable[Delivery]) -> list[Delivery]:
        return [each for one in mine for each in (one, *self._followers.get(one, ()))]

    def _begin(self, taken: dict[ReceiveCall, list[Delivery]]) -> None:
        """Begin rows with keys together; leave out rows that may not begin, or have no attempt."""
        keyed = [one for mine in taken.values() for one in mine if one.row.key is not None]
        self._starts = dict(self._engine.starts.begin_all(keyed)) if keyed else {}
        for caller, mine in taken.items():
            begun: list[Delivery] = []
            for one in mine:
                if one.row.key is not None and one not in self._starts:
                    # This row may not begin, and its outcome is on its way to the store.
                    continue
                if self._engine.outbox.is_over(one.row):
                    self._engine.outbox.end(one)
                else:
                    begun.append(one)
            taken[caller] = begun

    def _plan(self, one: Delivery, caller: ReceiveCall) -> RowMove | Row:
        """Plan the claim of a row: a move or, for a row of a group, the row as edited in place."""
        engine = self._engine
        planner, holder = self._home.settler.planner, self._home.member
        attempt = one.attempt
        if not attempt:
            # Taking a row out of `ready` sets its attempt: this one is a follower.
            attempt, holder = one.row.attempt + 1, ALONG + holder
        plan = planner.receive(
            one.row, caller.visibility_ms, attempt, holder=holder, is_lasting=caller.is_lasting
        )
        return engine.groups.edits.numbered(one, plan) if isinstance(plan, Row) else plan

    def _carry_out(
        self, planned: Mapping[Delivery, RowMove | Row]
    ) -> dict[Delivery, tuple[int, Row]]:
        """Claim rows; release rows that are not claimed, and forget rows that others have settled.

        Returns:
            Claimed delivery -> the due from which its lateness counts, and the row of its claim.
        """
        engine, outbox = self._engine, self._engine.outbox
        # Time has passed since the rows were taken: another member may have leased a shard.
        lapsed = [one for one in planned if not engine.leases.is_valid(one.lease)]
        claims = {one: plan for one, plan in planned.items() if one not in lapsed}
        edits = {one: plan for one, plan in claims.items() if isinstance(plan, Row)}
        moves = {one: plan for one, plan in claims.items() if isinstance(plan, RowMove)}
        done, changed = self._edit(edits)
        try:
            gone, unknown, left = self._move(list(moves.values()))
        except ShardqError:
            engine.groups.edits.unclaim(done.items())
            raise
        lapsed += [one for one, move in moves.items() if move.old in unknown]
        self._give_up(one for one in lapsed if one.begun_us)
        claimed = {one: (one.row.wanted_ms, row) for one, row in done.items()}
        self._conclude(edits, done, changed)
        over: list[Delivery] = []
        for one, move in moves.items():
            if move.old in unknown:
                continue
            if move.old in left:
                outbox.leave_behind(one)
            else:
                over.append(one)
            if move.old not in gone:
                claimed[one] = one.row.wanted_ms, move.new
        outbox.hand_over_all(over)
        return claimed

    def _conclude(
        self,
        edits: Mapping[Delivery, Row],
        done: Mapping[Delivery, Row],
        changed: Mapping[bytes, Row | None],
    ) -> None:
        """Update groups by the results of their rows' claims.

        Args:
            edits: The planned claims.
            done: The claims that were made.
            changed: Rows that other members have changed, as `_edit` returns them.
        """
        engine = self._engine
        # In reverse, heads last: when a head is done, the next row of its group becomes the head.
        for one, planned in reversed(list(edits.items())):
            if one not in done and planned.id not in changed:
                continue
            row = done.get(one, changed.get(planned.id))
            if not one.begun_us:
                engine.groups.follow(one, row)
            elif row is None:
                engine.outbox.give_up(one, is_settled=True)
            else:
                if one not in done:
                    self._give_back([one])
                engine.outbox.hand_over(one, row)

    def _edit(
        self, claims: Mapping[Delivery, Row]
    ) -> tuple[dict[Delivery, Row], dict[bytes, Row | None]]:
        """Claim rows of groups in place.

        Returns:
            The claimed rows; and the rows that others have settled or edited, as `Edits.changed`
            returns them. Rows of a group behind an edited row are in neither.
        """
        groups = self._engine.groups.edits
        if not claims:
            return {}, {}
        changed = groups.changed(list(claims.items()))
        left: dict[Delivery, Row] = {}
        blocked: set[str | None] = set()
        for one, row in claims.items():
            if changed.get(row.id) is not None:
                blocked.add(one.row.group)
            elif row.id not in changed and one.row.group not in blocked:
                left[one] = row
        edits = list(left.items())
        try:
            changed |= groups.edit(edits)
        except StoreTimeout as unknown:
            try:
                # Repeat the very same edits: the answer shows which rows were claimed.
                changed |= groups.edit(edits)
            except ShardqError as error:
                # Undo the claims whatever made the repeat fail: the first try may have written
                # them.
                groups.unclaim(edits)
                raise unknown from error
        except StoreUnavailable:
            groups.unclaim(edits)
            raise
        return {one: row for one, row in edits if row.id not in changed}, changed

    def _move(self, moves: Sequence[RowMove]) -> tuple[set[Position], set[Position], set[Position]]:
        """Move rows to their claims.

        Returns:
            The old positions of rows that were gone; of rows whose claims were not found after an
            error; and of rows that exist beside their claims. A large row is deleted only after its
            claim is written; if the delete fails, both row and claim are delivered.
        """
        settler = self._home.settler
        try:
            # A claim that was written too late is due already, so no caller gets it, and its new
            # position does not matter.
            gone, _ = settler.carry_out(moves)
        except (StoreTimeout, StoreUnavailable):
            # Look for the claims: one that was written unnoticed would hide its message for the
            # visibility, and cost an attempt.
            positions = [at for move in moves for at in (move.old, move.new.position)]
            there = settler.still_there(positions)
            made = {move.old for move in moves if move.new.position in there}
            if not made:
                raise
            return set(), {move.old for move in moves} - made, made & there
        return gone, set(), set()

    def _give_up(self, ones: Iterable[Delivery]) -> None:
        mine = list(ones)
        self._give_back(mine)
        for one in mine:
            self._engine.outbox.give_up(one)

    def _give_back(self, ones: Iterable[Delivery]) -> None:
        """Take back the start of deliveries with keys, as they are not handed out after all."""
        self._engine.starts.give_back(self._starts[one] for one in ones if one in self._starts)

    def _messages(self, claimed: Sequence[tuple[int, Row]], visibility_ms: int) -> list[Message]:
        """The messages of claimed rows; from now on they are their caller's to settle."""
        messages = []
        now_ms = self._clock.now_ms()
        stats = self._home.stats
        stats.count_late([(now_ms - wanted_ms) * 1_000 for wanted_ms, _ in claimed])
        for _, row in claimed:
            if visibility_ms and row.ready_ms <= now_ms:
                # The message's receipt would be refused, and another member may hold the row by
                # now.
                log.warning("claiming message %s outlasted its visibility", row.message_id)
            else:
                watch = None if row.key is None else self._engine.starts.watch(row)
                messages.append(Message(row, row.attempt, self._register.signer, watch))
        if claimed:
            stats.add(delivered=len(messages))
        return messages
