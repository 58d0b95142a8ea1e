"""The calls by key that producers make in a world, and the answers that they get."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from shardq.errors import ClockError, KeyTaken, StoreError, StoreTimeout, StoreUnavailable
from shardq.model.receipt import Receipt
from simulation.case import token_of
from simulation.history import is_tried
from simulation.named import ByKey
from simulation.roles import TRIES, Roles

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated.scheduler import Process

    import shardq
    from simulation.errands import Errand
    from simulation.history import Put, Written
    from simulation.parts import Machine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAUSE_S = 0.1


class Clerk(Roles):
    """The calls by key of a world's producers."""

    def begin_errands(self, process: Process, machine: Machine, queue: shardq.Queue) -> None:
        """Start a producer's errands at their times, without those begun before a restart."""
        batches: dict[int, list[Errand]] = defaultdict(list)
        for errand in self.plan.errands:
            if errand.producer != machine.name or errand.number in self.history.errands:
                continue
            if errand.batch:
                batches[errand.batch].append(errand)
                continue
            self.simulation.spawn(process, partial(self._run, process, queue, errand), "errand")
        for batch in batches.values():
            self.simulation.spawn(process, partial(self._run_all, process, queue, batch), "errand")

    def _await(self, errand: Errand) -> None:
        wait_us = self._start_us + round(errand.at_s * 1e6) - self.simulation.now_us
        if wait_us > 0:
            self.simulation.sleep(wait_us / 1e6)

    def _run(self, process: Process, queue: shardq.Queue, errand: Errand) -> None:
        self._await(errand)
        call = ByKey(errand, process.name, self.simulation.now_us)
        self.history.errands[errand.number] = call
        do = {
            "put": self._put_by_key,
            "edit": self._edit,
            "move": self._move,
            "cancel": self._cancel_by_key,
            "get": self._get,
            "recall": self._recall,
        }[errand.does]
        do(process, queue, call)
        self._close(process, call)

    def _close(self, process: Process, call: ByKey) -> None:
        call.ended_us = self.simulation.now_us
        self.history.reached.add(f"by key: {call.said}")
        self._note("by key", process, (call.errand.key, call.said, call.told))

    def _run_all(self, process: Process, queue: shardq.Queue, errands: list[Errand]) -> None:
        """Put messages by one `put_many`; their rows show which of them were stored."""
        self._await(errands[0])
        calls = [ByKey(errand, process.name, self.simulation.now_us) for errand in errands]
        self.history.errands.update((call.errand.number, call) for call in calls)
        begun = [self._begin_put_by_key(process, queue, call) for call in calls]
        items: list[Any] = [arguments for _, arguments in begun]
        ids: list[str] = []
        is_unsure = False
        for _ in range(TRIES):
            try:
                ids = queue.put_many(items, ids=True)
            except KeyTaken:
                # The key of at least one is taken; the others were put.
                break
            except (StoreTimeout, StoreUnavailable) as error:
                is_unsure |= isinstance(error, StoreTimeout)
                if error.messages:
                    items = list(error.messages)
                self.simulation.sleep(_PAUSE_S)
            else:
                break
        for place, ((put, _), call) in enumerate(zip(begun, calls, strict=True)):
            call.is_unsure = is_unsure or not ids
            if ids:
                call.message_id = ids[place]
                own = [w.row.message_id for w in self.history.written.values() if _is_of(w, call)]
                call.answer = "put" if ids[place] in own else "kept"
            if call.answer == "put":
                put.outcome, put.ended_us = "acked", self.simulation.now_us
                put.message_id = call.message_id
            self._end_put(put, call)
            self._close(process, call)

    def _begin_put_by_key(
        self, process: Process, queue: shardq.Queue, call: ByKey
    ) -> tuple[Put, dict[str, Any]]:
        errand = call.errand
        assert errand.letter is not None
        put, arguments = self._begin_put(process, errand.letter, queue)
        # A move of this key that is under way may move this message to its due.
        dues_us = [one.due_us for one in self.history.errands.values() if one.is_moving(errand.key)]
        put.asked_us = min([put.asked_us, *dues_us])
        arguments |= {"key": errand.key, "on_conflict": errand.conflict}
        if errand.conflict == "debounce":
            arguments.setdefault("delay", "0ms")
        if errand.max_wait_ms is not None:
            arguments["max_wait"] = f"{errand.max_wait_ms}ms"
            # The due depends on the first put of the key, which `debounced` judges.
            put.asked_us = 0
        if errand.unique_ms is not None:
            arguments["unique_for"] = f"{errand.unique_ms}ms"
        return put, arguments

    def _put_by_key(self, process: Process, queue: shardq.Queue, call: ByKey) -> None:
        put, arguments = self._begin_put_by_key(process, queue, call)
        what: Any = arguments.pop("body")
        for _ in range(TRIES):
            try:
                message = queue.put(what, **arguments)
            except KeyTaken as error:
                call.answer = "taken" if error.message is not None else "held"
                if error.message is not None:
                    call.told = token_of(error.message.body)
                break
            except (StoreTimeout, StoreUnavailable) as error:
                call.is_unsure |= isinstance(error, StoreTimeout)
                if error.messages:
                    what, arguments = error.messages[0], {}
                self.simulation.sleep(_PAUSE_S)
            else:
                call.told, call.message_id = token_of(message.body), message.id
                call.answer = "put" if call.told == call.token else "kept"
                if call.answer == "put":
                    call.row = message._row
                    self._acked(put, message, queue)
                break
        self._end_put(put, call)

    def _end_put(self, put: Put, call: ByKey) -> None:
        if put.outcome != "acked":
            put.outcome = "unknown" if call.is_unsure else "refused"
            put.ended_us = self.simulation.now_us
        if call.answer == "unknown" and not call.is_unsure:
            call.answer = "refused"

    def _edit(self, process: Process, queue: shardq.Queue, call: ByKey) -> None:
        errand = call.errand
        assert errand.letter is not None
        put, arguments = self._begin_put(process, errand.letter, queue)
        put.asked_us = 0
        headers = arguments.get("headers", {})
        self._ask(call, lambda: queue.edit(errand.key, body=arguments["body"], headers=headers))
        if call.answer == "done":
            put.outcome, put.ended_us = "acked", self.simulation.now_us
        self._end_put(put, call)

    def _move(self, _process: Process, queue: shardq.Queue, call: ByKey) -> None:
        errand = call.errand
        call.due_us = self._scheduler.wall_us() + errand.delay_ms * 1_000
        due = _EPOCH + timedelta(microseconds=call.due_us)
        for put in self.history.puts.values():
            if put.letter.key == errand.key:
                # A move may bring the message before the due of its put; `moved` judges that.
                put.asked_us = min(put.asked_us, call.due_us)
        self._ask(call, lambda: queue.move(errand.key, due=due))

    def _cancel_by_key(self, _process: Process, queue: shardq.Queue, call: ByKey) -> None:
        self._ask(call, lambda: queue.cancel(key=call.errand.key))

    def _recall(self, _process: Process, queue: shardq.Queue, call: ByKey) -> None:
        put = self.history.puts.get(call.errand.of or 0)
        if put is None or put.row is None:
            call.answer = "refused"
            return
        receipt = queue._home.register.signer.sign(Receipt(put.row.position, 0))
        self._ask(call, lambda: "done" if queue.cancel(receipt) else "missed")

    def _get(self, _process: Process, queue: shardq.Queue, call: ByKey) -> None:
        def get() -> str:
            found = queue.get(call.errand.key)
            if found is None:
                return "not there"
            call.told, call.message_id = token_of(found.body), found.id
            return str(found.state)

        self._ask(call, get)

    def _ask(self, call: ByKey, ask: Callable[[], object]) -> None:
        for _ in range(TRIES):
            try:
                call.answer = str(ask())
            except ClockError:
                break
            except StoreError as error:
                call.is_unsure |= isinstance(error, StoreTimeout)
                self.simulation.sleep(_PAUSE_S)
            else:
                return
        if not call.is_unsure:
            call.answer = "refused"


def _is_of(written: Written, call: ByKey) -> bool:
    return token_of(written.row.body) == call.token and not is_tried(written.row)
