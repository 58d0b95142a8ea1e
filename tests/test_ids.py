"""Row ids."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shardq.model import ids
from shardq.model.ids import RowIds, after, birth_us, from_order_key, order_key, row_ids, text
from shardq.stores.store import PARTS, Entry

BASE_US = 1_790_000_000_000_000
MICROS = st.integers(0, 10_000_000_000_000_000)


@given(MICROS)
def test_a_row_id_is_a_version_1_uuid_that_tells_its_birth(now_us: int) -> None:
    row_id = RowIds().next(now_us)
    parsed = uuid.UUID(bytes=row_id)
    assert parsed.version == 1
    assert parsed.variant == uuid.RFC_4122
    assert birth_us(row_id) == max(now_us, 1)
    assert text(row_id) == str(parsed)


@given(st.lists(MICROS, min_size=2, max_size=50))
def test_ids_never_go_backwards_whatever_the_clock_does(times: list[int]) -> None:
    made = RowIds()
    keys = [order_key(made.next(now_us)) for now_us in times]
    assert keys == sorted(set(keys))


@given(MICROS, MICROS)
def test_byte_order_of_the_key_is_time_order(one: int, other: int) -> None:
    first, second = RowIds().next(one), RowIds().next(other)
    if birth_us(first) != birth_us(second):
        assert (order_key(first) < order_key(second)) == (birth_us(first) < birth_us(second))


@given(st.binary(min_size=16, max_size=16))
def test_the_key_turns_back_into_the_id(row_id: bytes) -> None:
    assert from_order_key(order_key(row_id)) == row_id


@given(MICROS, st.text(max_size=50))
def test_a_fixed_id_is_born_within_a_second_of_its_time(at_us: int, name: str) -> None:
    row_id = ids.fixed(at_us, name)
    parsed = uuid.UUID(bytes=row_id)
    assert (parsed.version, parsed.variant) == (1, uuid.RFC_4122)
    assert parsed.node & 1 << 40
    assert at_us <= birth_us(row_id) < at_us + 1_000_000
    assert ids.fixed(at_us, name) == row_id


@given(MICROS, st.text(max_size=50))
def test_a_fixed_id_is_made_of_hex_digits_of_sha_1(at_us: int, name: str) -> None:
    digits = hashlib.sha1(name.encode()).hexdigest()
    birth = at_us + int(digits[:12], 16) % 1_000_000
    variant = digits[12].translate(str.maketrans("0123456789abcdef", "89ab89ab89ab89ab"))
    odd = digits[17].translate(str.maketrans("0123456789abcdef", "1133557799bbddff"))
    made = text(ids.fixed(at_us, name))
    assert birth_us(ids.fixed(at_us, name)) == birth
    assert made[19:] == f"{variant}{digits[13:16]}-{digits[16]}{odd}{digits[18:28]}"


def test_fixed_ids_of_one_time_differ_and_fill_all_parts_of_the_history() -> None:
    made = {ids.fixed(BASE_US, f"order-{n}") for n in range(10_000)}
    assert len(made) == 10_000
    parts = Counter(Entry("mail", row_id).place[2] for row_id in made)
    assert len(parts) == PARTS
    assert max(parts.values()) < 1.2 * 10_000 / PARTS
    assert ids.fixed(BASE_US + 1, "order-1") not in made


def test_the_next_id_of_a_row_is_born_after_its_own_whoever_made_that() -> None:
    ahead = RowIds().next(BASE_US + 400_000)
    moved = after(ahead, BASE_US)
    assert birth_us(moved) == birth_us(ahead) + 1
    assert birth_us(row_ids.next(BASE_US)) == BASE_US, "ids of other rows are not ahead"
    assert birth_us(after(moved, BASE_US + 500_000)) == BASE_US + 500_000
    assert after(ahead, BASE_US) != moved


def test_two_processes_make_different_ids_of_one_moment() -> None:
    assert RowIds().next(1_000) != RowIds().next(1_000)


def test_no_id_claims_a_real_network_card() -> None:
    assert uuid.UUID(bytes=RowIds().next(1)).node & 1 << 40


def test_threads_never_get_the_same_id() -> None:
    made = RowIds()
    found: list[bytes] = []

    def work() -> None:
        found.extend([made.next(5) for _ in range(2_000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 8_000


def test_ids_go_back_with_the_clock_and_are_those_of_another_generator() -> None:
    made = RowIds()
    before = [made.next(2_000_000) for _ in range(3)]
    made.turn_back(1_000_000)
    after = [made.next(1_000_000) for _ in range(3)]
    assert [birth_us(row_id) for row_id in after] == [1_000_000, 1_000_001, 1_000_002]
    assert after[0][8:] != before[0][8:]


def test_ids_that_are_a_little_ahead_of_the_clock_stay_as_they_are() -> None:
    made = RowIds()
    last = made.next(1_400_000)
    made.turn_back(1_000_000)
    after = made.next(1_000_000)
    assert birth_us(after) == 1_400_001
    assert after[8:] == last[8:]


def test_a_forked_child_makes_ids_of_its_own() -> None:
    reading, writing = os.pipe()
    tail = row_ids.next(1)[8:]
    child = os.fork()
    if child == 0:
        os.write(writing, ids.row_ids.next(1)[8:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() not in (b"", tail)
    assert os.waitpid(child, 0)[1] == 0
    assert row_ids.next(1)[8:] == tail
