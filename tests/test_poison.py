"""A message that kills each process that begins it: how many die, and what becomes of it."""

from __future__ import annotations

import pytest
from crashing import crash, run_until_crash
from simulated.scheduler import Killed, Process
from simulated.simulation import Simulation

from shardq import Connection, Consumer, Message, clock
from shardq.testing import Stage


@pytest.mark.parametrize("local", [False, True], ids=["nodes", "machine"])
@pytest.mark.parametrize("place", [0, 4, 9])
def test_what_begins_beside_a_message_that_kills_its_process_does_not_die_with_it(
    place: int, local: bool
) -> None:
    done: dict[str, int] = {}
    dead: list[str] = []
    ends = []
    with Simulation(7, local=local) as simulation:

        def handle(process: Process, message: Message) -> None:
            simulation.sleep(0.001)
            if message.text == "kills":
                ends.append(process)
                simulation.crash(process)
                raise Killed
            done[message.text] = message.attempt

        def consume(process: Process) -> None:
            db = Connection(simulation.store(process), clock.SystemClock(0))
            Consumer(
                db.queue("mail", lanes=1, attempts=3, history="off"),
                lambda message: handle(process, message),
                on_dead=lambda message: dead.append(message.text),
            ).start()

        def put(process: Process) -> None:
            with Connection(simulation.store(process), clock.SystemClock(0)) as db:
                queue = db.queue("mail", lanes=1, attempts=3, history="off")
                queue.put_many("kills" if n == place else f"{n}" for n in range(12))

        producer = simulation.process("producer")
        simulation.spawn(producer, lambda: put(producer))
        simulation.run(5)
        for turn in range(8):
            process = simulation.process(f"consumer {turn}")
            simulation.spawn(process, lambda process=process: consume(process))
            if not simulation.run(60, until=lambda process=process: process.dead):
                break
        assert len(ends) == 4
        assert dead == ["kills"]
        assert done.keys() == {f"{n}" for n in range(12) if n != place}
        # Recorded beside it once, and then alone.
        assert max(done.values()) <= 2


def test_one_at_a_time_no_other_message_loses_an_attempt_to_one_that_kills_its_process(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=3)
    for n in range(20):
        queue.put("kills" if n == 7 else f"{n}")
    done: list[Message] = []

    def handle(message: Message) -> None:
        if message.text == "kills":
            crash(message)
        done.append(message)

    for _ in range(5):
        run_until_crash(stage, Consumer(stage.connect().queue("mail"), handle), seconds=5)
        stage.clock.advance(11)
    assert stage.is_empty(queue)
    assert [one.text for one in queue.dead.peek(100)] == ["kills"]
    assert {one.text for one in done} == {f"{n}" for n in range(20) if n != 7}
    assert {one.attempt for one in done} == {1}
