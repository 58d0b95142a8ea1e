"""Arguments and results of tasks: what goes in comes out, and what cannot is refused at once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import subprocess
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Reversible, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    Literal,
    Unpack,
)

import annotated_types
import freezegun
import msgspec
import pendulum
import pydantic
import pytest
from examples import bounded
from hypothesis import given
from hypothesis import strategies as st
from task_types import (
    BERLIN,
    CUSTOMER,
    ID,
    MAYBE_DAY,
    NOON,
    ORDER,
    Account,
    Address,
    Closing,
    Color,
    Customer,
    Fee,
    Gift,
    Hidden,
    Item,
    Level,
    Login,
    Loose,
    Loosely,
    Loosest,
    Money,
    Needed,
    Opening,
    Options,
    Order,
    Place,
    Point,
    Prefixed,
    Refund,
    Rights,
    Sale,
    Size,
    Socket,
    Special,
    Stolen,
    Swap,
    Text,
    Unequal,
    Upload,
    UserId,
    Wide,
)

from shardq.errors import BadArguments, BadResult
from shardq.tasks.arguments import TaskSignature


def taking(hint: Any) -> TaskSignature:
    """The signature of a function of one argument, and a result, of this type."""

    def task(value: Any) -> Any: ...

    task.__annotations__ = {"value": hint, "return": hint}
    return TaskSignature(task, name="app.task")


def back(signature: TaskSignature, *args: Any, **kwargs: Any) -> Any:
    """What a worker calls the function with, as it gets it."""
    return signature.decode(signature.encode(args, kwargs))


def refused(signature: TaskSignature, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(BadArguments) as caught:
        signature.encode(args, kwargs)
    return str(caught.value)


DAY = date(2026, 1, 1)
ADDRESSES = [
    IPv4Address("127.0.0.1"),
    IPv4Interface("10.0.0.1/8"),
    ip_network("10.0.0.0/8"),
    IPv6Address("::1"),
    IPv6Network("fe80::/64"),
]
KEPT: list[tuple[Any, Any]] = [
    (str, "grüße 🎉 \x00"),
    (int, -(2**70)),
    (float, 0.1),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff"),
    (datetime, NOON),
    (datetime, datetime(2026, 1, 2, 3, 4)),  # noqa: DTZ001 - naive ones too
    (datetime, datetime(2026, 7, 1, 12, tzinfo=BERLIN)),
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=0)),
    (datetime, pendulum.datetime(2026, 1, 2, tz="Asia/Tokyo")),
    (pendulum.DateTime, pendulum.datetime(2026, 1, 2, 3)),
    (date, date(2026, 2, 28)),
    (time, time(23, 59, 59, 1)),
    (timedelta, timedelta.max),
    (timedelta, pendulum.duration(days=2, seconds=1)),
    (Decimal, Decimal("1.10")),
    (Decimal, Money("2.5")),
    (uuid.UUID, ID),
    (Color, Color.RED),
    (Level, Level.HIGH),
    (Size, Size.L),
    (Rights, Rights.READ | Rights.WRITE),
    (str, Text("text")),
    (Literal["a", 1], "a"),
    (Item, Item("tea", Decimal("0.5"))),
    (Order, dataclasses.replace(ORDER, parent=ORDER)),
    (Unequal, Unequal(date(2026, 1, 1), (1, 2))),
    (Place, Place(1.5, -2.0)),
    (Point, Point(1, 2)),
    (Options, {"retries": 3}),
    (Account, Account("ada", NOON)),
    (Address, Address(street="A", zipCode="10")),
    (Customer, CUSTOMER),
    (dict[str, list[Address]], {"home": [Address(street="B", zipCode="11")]}),
    (MAYBE_DAY, date(2026, 1, 1)),
    (int | str | None, "x"),
    (list, [1, "a", None, {"b": [2.5]}]),
    (Sequence[int], (1, 2)),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (dict[str, int], {"a": 1}),
    (dict[uuid.UUID, str], {ID: "x"}),
    (dict[str, object], {"a": [1, "b"]}),
    (Iterable[int], (1, 2)),
    (Reversible[date], [date(2026, 1, 1)]),
    (Path, Path("/srv/a b")),
    (list[PurePosixPath], [PurePosixPath("a/b")]),
    *((type(one), one) for one in ADDRESSES),
    (Upload, Upload(Path("x"), [IPv4Address("127.0.0.1")])),
    (Sale | Refund, Sale(DAY)),
    (
        dict[str, list[Sale | Gift | Fee | Swap | Stolen]],
        {
            "a": [
                Gift("present", "ada"),
                {"kind": "fee", "cents": 7},
                Sale(DAY),
                Swap(day=DAY),
                Stolen(),
            ]
        },
    ),
    (Sale | Refund | int | list[date], 7),
    (Sale | Refund | int | list[date], [DAY]),
    (Annotated[Swap | Sale, pydantic.Field(discriminator="kind")], Sale(DAY)),
    (Customer | int, CUSTOMER),
    (Customer | date, DAY),
    (pydantic.PositiveInt, 1),
    (Annotated[str, annotated_types.Len(1, 2), "a note"], "ab"),
    (pydantic.conint(gt=3, strict=True), 4),
    (UserId, 7),
    (Any, [1, 2.5, "x", None, True, {"a": {}}]),
]


@pytest.mark.parametrize(("hint", "value"), KEPT, ids=[str(number) for number in range(len(KEPT))])
def test_an_argument_and_a_result_come_back_as_they_were(hint: Any, value: Any) -> None:
    signature = taking(hint)
    signature.check(result=True)
    args, kwargs = back(signature, value)
    results = signature.decode_result(signature.encode_result(value))
    assert args == ()
    for got in (kwargs["value"], results):
        assert alike(got) == alike(value)


def alike(value: Any) -> Any:
    """A value as what JSON has to keep of it: lists for tuples, and what `==` does not compare."""
    if isinstance(value, list) or type(value) is tuple:
        return [alike(one) for one in value]
    if isinstance(value, dict):
        return {key: alike(one) for key, one in value.items()}
    if isinstance(value, Unequal):
        return alike(vars(value))
    if isinstance(value, datetime):
        return value.replace(tzinfo=None, fold=0), value.utcoffset()
    return value


# What the caller gives ----------------------------------------------------------------------------


def welcome(user: str, count: int = 1, *, lang: str = "en") -> None: ...


def test_only_what_was_given_is_stored() -> None:
    signature = TaskSignature(welcome, name="mail.welcome")
    assert signature.encode(("ada",), {}) == b'{"user":"ada"}'
    assert signature.encode(("ada",), {"lang": "en"}) == b'{"user":"ada","lang":"en"}'
    assert signature.decode(b'{"lang":"de","user":"ada"}') == ((), {"user": "ada", "lang": "de"})
    assert signature.shown == "(user: str, count: int = 1, *, lang: str = 'en')"


def by_place(a: int, b: int = 2, /, c: int = 3, *, d: int = 4) -> Any:
    return a, b, c, d


def many(a: int, b: int = 2, *more: int, d: int = 4, **others: date) -> Any:
    return a, b, more, d, others


def open_ended(a: int = 1, /, **a_too: int) -> Any:
    return a, a_too


def typed(**options: Unpack[Options]) -> Any:
    return options


def needy(**options: Unpack[Needed]) -> Any:
    return options


def nothing() -> Any:
    return "nothing"


def odd(self: int, fields: int, name: int, args: int = 0) -> Any:
    return self, fields, name, args


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bytes]] = [
    (by_place, (1,), {}, b'{"a":1}'),
    (by_place, (1, 5), {"d": 6}, b'{"a":1,"b":5,"d":6}'),
    (by_place, (1,), {"c": 6}, b'{"a":1,"c":6}'),
    (many, (1,), {}, b'{"a":1}'),
    (many, (1, 2, 3, 4), {"d": 5, "x": DAY},
     b'{"a":1,"b":2,"*":[3,4],"d":5,"**":{"x":"2026-01-01"}}'),
    (many, (), {"b": 3, "a": 1}, b'{"a":1,"b":3}'),
    (open_ended, (5,), {"a": 6}, b'{"a":5,"**":{"a":6}}'),
    (typed, (), {}, b"{}"),
    (typed, (), {"retries": 1}, b'{"**":{"retries":1}}'),
    (needy, (), {"path": "x"}, b'{"**":{"path":"x"}}'),
    (nothing, (), {}, b"{}"),
    (odd, (1, 2), {"name": 3}, b'{"self":1,"fields":2,"name":3}'),
    (functools.partial(welcome, lang="de"), ("ada",), {}, b'{"user":"ada"}'),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args", "kwargs", "body"), CALLS)
def test_a_function_is_called_as_it_was_put(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], body: bytes
) -> None:
    signature = TaskSignature(function, name="app.task")
    assert signature.encode(args, kwargs) == body
    got_args, got_kwargs = signature.decode(body)
    assert function(*got_args, **got_kwargs) == function(*args, **kwargs)


TAKES = "it takes (user: str, count: int = 1, *, lang: str = 'en')."
MISBOUND: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (welcome, (), {}, f"needs the argument user; {TAKES}"),
    (welcome, (), {"lang": "de"}, f"needs the argument user; {TAKES}"),
    (welcome, ("a",), {"langg": 1}, f"has no argument langg; {TAKES}"),
    (welcome, ("a",), {"delay": "3d"},
     f"has no argument delay; {TAKES} An option goes before: using(delay=..).put(..)."),
    (welcome, ("a", 1, "de"), {}, f"takes 2 arguments by place, not 3; {TAKES}"),
    (welcome, ("a",), {"user": "b"}, f"was given the argument user twice; {TAKES}"),
    (by_place, (), {"a": 1},
     "has no argument a by name; it takes (a: int, b: int = 2, /, c: int = 3, *, d: int = 4)."),
    (many, (), {"x": DAY},
     "needs the argument a; it takes (a: int, b: int = 2, *more: int, d: int = 4, "
     "**others: date)."),
    (nothing, (1,), {}, "takes 0 arguments by place, not 1; it takes ()."),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args", "kwargs", "text"), MISBOUND)
def test_what_a_function_does_not_take_is_refused_at_the_put(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    said = refused(TaskSignature(function, name="app.task"), *args, **kwargs)
    assert said == f"task app.task {text}"


def deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


LOCAL_MEAN = timezone(timedelta(minutes=53, seconds=28))
GIVE = "give plain values, a dataclass or a pydantic model"
PLAIN = "name its type in the type hint"
REFUSED: list[tuple[Any, Any, str]] = [
    (str, 12, " must be str, not int (12)"),
    (str, DAY, " must be str, not date (datetime.date(2026, 1, 1))"),
    (str, Color.RED, " must be str, not Color (<Color.RED: 'red'>)"),
    (str, b"abcd", " must be str, not bytes (b'abcd')"),
    (int, True, " must be int, not bool (True)"),
    (int, 1.0, " must be int, not float (1.0)"),
    (Decimal, 1.1, " must be Decimal, not float (1.1)"),
    (float, 2**60 + 1, " must be float, not int (1152921504606846977)"),
    (date, datetime(2026, 1, 1, tzinfo=UTC),
     " must be date, not datetime (datetime.datetime(2026, 1, 1, 0, 0, "
     "tzinfo=datetime.timezone.utc))"),
    (datetime, datetime(1800, 1, 1, tzinfo=LOCAL_MEAN),
     " is datetime (datetime.datetime(1800, 1, 1, 0, 0, "
     "tzinfo=datetime.timezone(datetime.timedel...), which JSON cannot hold exactly"),
    (Color, "green", " must be Color, not str ('green')"),
    (Literal["a", "b"], "c", " must be Literal['a', 'b'], not str ('c')"),
    (Annotated[int, msgspec.Meta(gt=0)], 0, " is 0: expected `int` >= 1"),
    (Annotated[int, annotated_types.Interval(ge=1, lt=5)], 5, " is 5: expected `int` <= 4"),
    (Annotated[str, pydantic.StringConstraints(pattern="^a")], "b",
     " is 'b': expected `str` matching regex '^a'"),
    (Annotated[int, pydantic.Field(le=3)], 4, " is 4: expected `int` <= 3"),
    (IPv4Address, "::1", " is '::1': expected 4 octets in '::1'"),
    (Iterable[int], {1}, " must be collections.abc.Iterable[int], not set ({1})"),
    (Sale | Refund, Place(1, 2),
     " is Place(lat=1, lon=2): its kind must be one of 'sale', 'refund'"),
    (Sale | Refund, {"kind": "sale", "day": "2026-01-01"},
     " must be task_types.Sale | task_types.Refund, not dict "
     "({'kind': 'sale', 'day': '2026-01-01'})"),
    (list[int], {1}, " must be list[int], not set ({1})"),
    (tuple[int, str], (1, 2), "[1] must be str, not int (2)"),
    (dict[str, int], {"a": "x"}, "[...] must be int, not str"),
    (dict[int, int], {"a": 1}, " has a key that must be int, not str"),
    (Options, {"retris": 1}, " has the key 'retris', which its type hint does not know"),
    (Needed, {}, " is {}: object missing required field `path`"),
    (Item, {"name": "tea", "price": "1"},
     " must be Item, not dict ({'name': 'tea', 'price': '1'})"),
    (Item, Special("tea", Decimal(1)),
     " must be Item, not Special (Special(name='tea', price=Decimal('1'), tags=[], rebate=0))"),
    (Order, Order(ID, [Item("tea", Decimal(1), ["a", 3])]),  # type: ignore[list-item]
     ".items[0].tags[1] must be str, not int (3)"),
    (list[Item], [Item("tea", "1")],  # type: ignore[arg-type]
     "[0].price must be Decimal, not str ('1')"),
    (Order, Order("x", []),  # type: ignore[arg-type]
     ".id is 'x': invalid UUID"),
    (Place, Place(1.0, float("inf")), ".lon is inf, which JSON cannot hold"),
    (Login, Login(user="ada", password=pydantic.SecretStr("hunter2")),
     ".password is SecretStr (SecretStr('**********')), which JSON cannot hold exactly"),
    (Prefixed, Prefixed(name="ada"),
     ".name is str ('user-ada'), which is read back as 'user-user-ada'"),
    (Hidden, Hidden(name="ada", token="t"), ".token is str ('t'), which is read back as ''"),
    (Loose, Loose(name="ada", when=DAY),  # type: ignore[call-arg]
     ".when is date (datetime.date(2026, 1, 1)), which JSON gives back as str: " + PLAIN),
    (Address, Address.model_construct(street="A", zip_code="1"),
     " is Address(street='A', zip_code='1'): Address.zip_code: String should have at least 2 "
     "characters"),
    (float, float("nan"), " is nan, which JSON cannot hold"),
    (Any, [1, {"a": float("nan")}], "[1]['a'] is nan, which JSON cannot hold"),
    (str, "a\ud800", " holds half a surrogate pair; decode it from UTF-16 first"),
    (Any, circle(), " is nested too deep, or holds itself"),
    (Any, deep(100_000), " is nested too deep, or holds itself"),
    (Any, Socket(), f" cannot be JSON: it holds Socket (<Socket>); {GIVE}"),
    (Any, 1j, f" cannot be JSON: it holds complex (1j); {GIVE}"),
    (Any, {(1, 2): 3}, " cannot be JSON: it has the key (1, 2), and keys are text or numbers"),
    (int, 10**5_000, " cannot be JSON: exceeds the limit (4300 digits) for integer string "
     "conversion; use sys.set_int_max_str_digits() to increase the limit"),
    (Any, DAY, f" is date (datetime.date(2026, 1, 1)), which JSON gives back as str: {PLAIN}"),
    (Any, {"a": [Decimal(1)]},
     f"['a'][0] is Decimal (Decimal('1')), which JSON gives back as str: {PLAIN}"),
    (object, {1}, f" is set ({{1}}), which JSON gives back as list: {PLAIN}"),
    (Any, {1: 2}, f" has the key 1, which JSON gives back as text: {PLAIN}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "value", "text"), REFUSED, ids=[str(number) for number in range(len(REFUSED))]
)
def test_a_wrong_value_is_refused_at_the_put_and_named(hint: Any, value: Any, text: str) -> None:
    signature = taking(hint)
    assert refused(signature, value) == f"task app.task: argument value{text}."
    with pytest.raises(BadResult) as caught:
        signature.encode_result(value)
    assert str(caught.value).startswith("task app.task: its result")


def test_a_result_without_a_hint_may_be_a_tuple() -> None:
    signature = taking(Any)
    assert signature.decode_result(signature.encode_result((1, Level.LOW))) == [1, 1]


UNHINTED: list[tuple[Any, Any, str]] = [
    (Any, (1, 2), f" is tuple ((1, 2)), which JSON gives back as list: {PLAIN}"),
    (Any, {"a": [(1,)]}, f"['a'][0] is tuple ((1,)), which JSON gives back as list: {PLAIN}"),
    (Any, Level.LOW, f" is Level (<Level.LOW: 1>), which JSON gives back as int: {PLAIN}"),
    (Any, Size.S, f" is Size (<Size.S: 's'>), which JSON gives back as str: {PLAIN}"),
    (dict[str, list[object]] | None, {"a": [Level.LOW]},
     f"['a'][0] is Level (<Level.LOW: 1>), which JSON gives back as int: {PLAIN}"),
    (Any, OrderedDict(a=1), f" is OrderedDict ({OrderedDict(a=1)!r}), which JSON gives back as "
     f"dict: {PLAIN}"),
    (Loosely, Loosely(Level.LOW),
     f".of is Level (<Level.LOW: 1>), which JSON gives back as int: {PLAIN}"),
    (Opening | Closing, Closing((1,)),
     f".of is tuple ((1,)), which JSON gives back as list: {PLAIN}"),
    (Loosest, {"of": (1,)}, f"['of'] is tuple ((1,)), which JSON gives back as list: {PLAIN}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "value", "text"), UNHINTED, ids=[str(number) for number in range(len(UNHINTED))]
)
def test_what_has_no_hint_is_refused_where_json_gives_back_another_type(
    hint: Any, value: Any, text: str
) -> None:
    signature = taking(hint)
    assert refused(signature, value) == f"task app.task: argument value{text}."
    # A function has done its work by then.
    signature.encode_result(value)


LIST = f"which JSON gives back as list: {PLAIN}"


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({"any": (1, 2)}, f".any is tuple ((1, 2)), {LIST}"),
        ({"items": [(1, 2)]}, f".items[0] is tuple ((1, 2)), {LIST}"),
        ({"by_name": {"a": (1,)}}, f".by_name['a'] is tuple ((1,)), {LIST}"),
        ({"any": Size.S}, f".any is Size (<Size.S: 's'>), which JSON gives back as str: {PLAIN}"),
        ({"inner": Wide(any=(1,))}, f".inner.any is tuple ((1,)), {LIST}"),
        ({"more": (1, 2)}, f".more is tuple ((1, 2)), {LIST}"),
        ({"more": [Level.LOW]},
         f".more[0] is Level (<Level.LOW: 1>), which JSON gives back as int: {PLAIN}"),
    ],
)  # fmt: skip
def test_what_has_no_hint_in_a_model_is_refused_likewise(held: Any, text: str) -> None:
    for hint, value, at in (
        (Wide, Wide(**held), ""),
        (list[Wide], [Wide(**held)], "[0]"),
        (Wide | None, Wide(**held), ""),
    ):
        assert refused(taking(hint), value) == f"task app.task: argument value{at}{text}."


@pytest.mark.parametrize(
    "held",
    [
        {"any": [1, {"a": [None]}], "items": [[1]], "more": {"a": 1.5}},
        {"pair": (1, 2), "several": (1, 2), "sizes": [Size.S]},
        {"tupled": (1, 2)},
        {"inner": Wide(tupled=(1, 2))},
    ],
)
def test_what_a_model_gives_back_as_it_was_is_taken(held: Any) -> None:
    value = Wide(**held)
    _, kwargs = back(taking(Wide), value)
    assert type(kwargs["value"].tupled) is type(value.tupled)
    assert kwargs["value"].any == value.any


def test_what_stars_take_without_a_hint_is_refused_likewise() -> None:
    def task(*args, **kwargs): ...  # type: ignore[no-untyped-def]

    signature = TaskSignature(task, name="app.task")
    assert back(signature, 1, [2], a="b") == ((1, [2]), {"a": "b"})
    assert refused(signature, 1, (2,)).startswith(
        "task app.task: argument *args[1] is tuple ((2,)),"
    )
    assert refused(signature, a=Size.S).startswith(
        "task app.task: argument **kwargs['a'] is Size ("
    )


def test_an_argument_without_a_hint_takes_plain_values_alone() -> None:
    def task(first, *, second=None): ...  # type: ignore[no-untyped-def]

    signature = TaskSignature(task, name="app.task")
    assert signature.shown == "(first, *, second=None)"
    assert back(signature, [1, {"a": None}]) == ((), {"first": [1, {"a": None}]})
    assert refused(signature, 1, second=DAY) == (
        "task app.task: argument second is date (datetime.date(2026, 1, 1)), which JSON gives back "
        f"as str: {PLAIN}."
    )


def test_what_is_larger_than_a_message_is_refused() -> None:
    signature = taking(str)
    assert len(signature.encode(("x" * ((1 << 20) - 12),), {})) == 1 << 20
    assert refused(signature, "x" * (1 << 20)) == (
        "task app.task: its arguments are 1,048,588 bytes of JSON, and a job has room for "
        "1,048,576; store them elsewhere and give their address."
    )
    with pytest.raises(BadResult, match="its result is 1,048,578 bytes of JSON, and 1,048,576 are"):
        signature.encode_result("x" * (1 << 20))


@pytest.mark.parametrize("hint", [datetime, "datetime"])
def test_a_time_that_a_test_has_frozen_is_a_datetime_too(hint: Any) -> None:
    signature = taking(hint)
    with freezegun.freeze_time(NOON):
        _, kwargs = back(signature, datetime.now(UTC))
    assert kwargs == {"value": NOON}


def test_pydantic_is_imported_only_by_who_uses_it() -> None:
    asks = (
        "import sys; from shardq.tasks.arguments import TaskSignature; "
        "f = lambda a: a; s = TaskSignature(f, name='f'); s.encode((1,), {}); "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", asks], check=False).returncode == 0


@pytest.mark.parametrize("name", ["__x", "__x__", "__dict__", "__eq__"])
def test_an_argument_with_a_name_of_pythons_own_is_refused_at_the_declaration(name: str) -> None:
    made: dict[str, Any] = {}
    exec(f"def task({name}=1): ...", made)
    with pytest.raises(BadArguments) as caught:
        TaskSignature(made["task"], name="app.task")
    assert str(caught.value) == (
        f"task app.task: argument {name} has a name of those that Python keeps for itself; name it "
        f"without the underscores, before a / if it is to be given by place."
    )


# Hints --------------------------------------------------------------------------------------------


def later(value: Defined) -> None: ...


@dataclass
class Defined:
    day: date


class Caller:
    """What can be called and is no function."""

    def __call__(self, value: Defined) -> None: ...

    def method(self, value: Defined) -> None: ...


def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("function", [later, Caller(), Caller().method, wrapper(later)])
def test_a_hint_may_name_what_is_defined_later(function: Callable[..., Any]) -> None:
    signature = TaskSignature(function, name="app.task")
    assert signature.shown == "(value: Defined)"
    assert back(signature, Defined(DAY)) == ((), {"value": Defined(DAY)})


HINT = "task app.task: the type hint of argument value, "
NOT_RESOLVED = "; define or import it at the top of the module."
NOT_JSON = "task app.task: argument value is of a type that JSON cannot give back, "
UNREADABLE: list[tuple[Any, str]] = [
    ("Missing", f"{HINT}Missing, cannot be resolved: name 'Missing' is not defined{NOT_RESOLVED}"),
    ("datetime.nope", f"{HINT}datetime.nope, cannot be resolved: type object 'datetime.datetime' "
     f"has no attribute 'nope'{NOT_RESOLVED}"),
    ("list[", f"{HINT}list[, cannot be resolved: Forward reference must be an expression -- got "
     f"'list['{NOT_RESOLVED}"),
    ("Socket", f"{NOT_JSON}Socket: Socket is no plain type, dataclass or pydantic model."),
    ("Callable[[], int]", f"{NOT_JSON}Callable[[], int]: Callable is no plain type, dataclass or "
     "pydantic model."),
    ("Item | Place", f"{NOT_JSON}Item | Place: JSON does not tell Item and Place apart; give each "
     "a field of one name with a Literal of its own, kind: Literal['sale'] = 'sale' say."),
    ("Path | str", f"{NOT_JSON}Path | str: type unions containing a custom type may not contain "
     "any additional types other than `None`."),
    ("Annotated[int, annotated_types.Predicate(bool)]",
     f"{NOT_JSON}Annotated[int, annotated_types.Predicate(bool)]: Predicate(bool) would not be "
     "checked; take a msgspec.Meta, or a field of a model."),
    ("Annotated[str, pydantic.StringConstraints(to_upper=True)]",
     f"{NOT_JSON}Annotated[str, pydantic.StringConstraints(to_upper=True)]: "
     "_PydanticGeneralMetadata(to_upper=True) would not be checked; take a msgspec.Meta, or a "
     "field of a model."),
    ("Annotated[date, annotated_types.Gt(3)]",
     f"{NOT_JSON}Annotated[date, annotated_types.Gt(3)]: can only set `gt` on a numeric type."),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "text"), UNREADABLE)
def test_a_hint_that_cannot_be_had_from_json_is_refused_with_its_parameter(
    hint: str, text: str
) -> None:
    signature = taking(hint)
    for use in (signature.check, lambda: signature.encode((1,), {})):
        with pytest.raises(BadArguments) as caught:
            use()
        assert str(caught.value) == text


def test_the_hint_of_a_result_matters_only_where_results_are_kept() -> None:
    def task(value: int) -> Socket: ...

    signature = TaskSignature(task, name="app.task")
    signature.check()
    assert back(signature, 1) == ((), {"value": 1})
    with pytest.raises(BadResult) as caught:
        signature.check(result=True)
    assert str(caught.value) == (
        "task app.task: its result is of a type that JSON cannot give back: Socket is no plain "
        "type, dataclass or pydantic model."
    )


def test_a_result_without_a_hint_is_a_plain_value() -> None:
    def task(): ...  # type: ignore[no-untyped-def]

    signature = TaskSignature(task, name="app.task")
    assert signature.decode_result(signature.encode_result({"a": [1]})) == {"a": [1]}
    with pytest.raises(BadResult, match=r"its result is date \(.*\), which JSON gives back as str"):
        signature.encode_result(DAY)


def stored_by(session: Socket, user: str, *, lang: str = "en") -> None: ...


class Opened:
    """A decorator that is a class, and gives the first argument."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, user: str) -> Any:
        return self._function(Socket(), user)


def opened(user: str) -> None: ...


def by_place_alone(*args: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (Opened(stored_by), "(user: str)"),
        (functools.wraps(stored_by)(opened), "(user: str)"),
        (wrapper(functools.wraps(stored_by)(opened)), "(user: str)"),
        (functools.wraps(welcome)(by_place_alone), "(*args)"),
    ],
)
def test_a_decorator_that_does_not_take_what_its_function_takes_is_refused(
    function: Callable[..., Any], taken: str
) -> None:
    with pytest.raises(BadArguments) as caught:
        TaskSignature(function, name="app.task")
    said = str(caught.value)
    assert said.startswith(f"task app.task: the function of its decorator takes {taken}, and is to")
    assert said.endswith("; make a task of a function that takes the rest, and calls this one.")


def test_an_argument_that_a_decorator_may_give_is_told_with_the_way_out() -> None:
    signature = TaskSignature(wrapper(nothing), name="app.task")
    assert refused(signature, 1) == "task app.task takes 0 arguments by place, not 1; it takes ()."
    signature = TaskSignature(wrapper(welcome), name="app.task")
    assert refused(signature, lang="de") == (
        f"task app.task needs the argument user; {TAKES} If a decorator gives it, make a task of a "
        f"function that takes the rest, and calls this one."
    )


@pytest.mark.parametrize(
    "function",
    [
        wrapper(welcome),
        functools.lru_cache(welcome),
        pydantic.validate_call(welcome),
        functools.partial(welcome, lang="de"),
    ],
)
def test_a_decorator_that_hands_on_what_it_is_given_is_none_of_ours(
    function: Callable[..., Any],
) -> None:
    signature = TaskSignature(function, name="app.task")
    args, kwargs = back(signature, "ada")
    assert function(*args, **kwargs) is None


@pytest.mark.parametrize("function", ["x", type("No", (), {})()])
def test_what_has_no_parameters_to_read_is_no_task(function: Any) -> None:
    with pytest.raises(BadArguments, match="cannot be read; wrap it in a function of your own"):
        TaskSignature(function, name="app.task")


# Bodies of others ---------------------------------------------------------------------------------

BODIES: list[tuple[Callable[..., Any], bytes, str]] = [
    (welcome, b"", ": its arguments must be JSON: input data was truncated."),
    (welcome, b"\xff",
     ": its arguments must be JSON: JSON is malformed: invalid character (byte 0)."),
    (welcome, b"[]", ': its arguments must be a JSON object, {"name": value}, not list ([]).'),
    (welcome, b'{"user":1}', ": argument user must be str, not int (1)."),
    (welcome, b'{"user":"a","lang":null}', ": argument lang must be str, not None."),
    (welcome, b'{"lang":"de"}', f" needs the argument user; {TAKES}"),
    (welcome, b'{"user":"a","x":1}', f" has no argument x; {TAKES}"),
    (many, b'{"a":1,"*":[1]}', " needs the argument b before those that follow it by place; it "
     "takes (a: int, b: int = 2, *more: int, d: int = 4, **others: date)."),
    (many, b'{"a":1,"**":{"d":"2026-01-01"}}', " was given the argument d twice."),
    (many, b'{"a":1,"b":1,"*":["y"]}', ": argument *more[0] must be int, not str ('y')."),
]  # fmt: skip


@pytest.mark.parametrize(("function", "body", "text"), BODIES)
def test_a_body_that_a_function_does_not_take_says_why(
    function: Callable[..., Any], body: bytes, text: str
) -> None:
    with pytest.raises(BadArguments) as caught:
        TaskSignature(function, name="app.task").decode(body)
    assert str(caught.value) == f"task app.task{text}"


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"value":' * 100_000])
def test_a_body_that_is_nested_without_end_is_refused(body: bytes) -> None:
    with pytest.raises(BadArguments):
        taking(Any).decode(body)


# Batches ------------------------------------------------------------------------------------------


def test_each_job_of_a_batch_holds_one_item() -> None:
    def index(documents: Sequence[Item], *, fast: bool = False) -> None: ...

    signature = TaskSignature(index, name="app.index", batch=True)
    signature.check()
    body = signature.encode_item(Item("tea", Decimal(1)))
    assert body == b'{"documents":{"name":"tea","price":"1","tags":[]}}'
    assert signature.decode_item(body) == Item("tea", Decimal(1))
    with pytest.raises(BadArguments) as caught:
        signature.encode_item("tea")
    assert str(caught.value) == (
        "task app.index: argument documents must be Item, not str ('tea')."
    )


def test_a_function_that_takes_no_list_is_no_batch() -> None:
    def one(value: int) -> None: ...

    def two(values: list[int], other: int) -> None: ...

    with pytest.raises(BadArguments, match=r"its argument value must be a list, list\[int\] say"):
        TaskSignature(one, name="app.one", batch=True).check()
    for function in (two, nothing):
        with pytest.raises(BadArguments, match="its function must take one list; it takes "):
            TaskSignature(function, name="app.two", batch=True)


# Anything -----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
ITEMS = st.builds(Item, st.text(), st.decimals(allow_nan=False), st.lists(st.text(), max_size=2))
ORDERS = st.builds(
    Order,
    st.uuids(),
    st.lists(ITEMS, max_size=2),
    st.dictionaries(st.text(), ITEMS, max_size=2),
    st.none() | st.builds(Order, st.uuids(), st.lists(ITEMS, max_size=1)),
)
CUSTOMERS = st.builds(
    Customer,
    id=st.uuids(),
    since=st.datetimes(timezones=st.just(UTC)),
    photo=st.text().map(str.encode),
    homes=st.lists(st.builds(Address, street=st.text(), zipCode=st.text(min_size=2)), max_size=2),
)
TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, JSON), (Order, ORDERS), (Customer, CUSTOMERS), (datetime, st.datetimes()),
    (datetime, st.datetimes(timezones=st.just(UTC))), (timedelta, st.timedeltas()),
    (time, st.times()), (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary()), (dict[int, date], st.dictionaries(st.integers(), st.dates())),
]  # fmt: skip


@bounded(200)
@given(st.data())
def test_whatever_is_put_comes_back(data: st.DataObject) -> None:
    hint, values = data.draw(st.sampled_from(TYPED))
    value = data.draw(values)
    signature = taking(hint)
    assert back(signature, value) == ((), {"value": value})
    assert signature.decode_result(signature.encode_result(value)) == value


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()
    | st.datetimes() | st.uuids() | st.decimals() | st.sampled_from(Color) | ITEMS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
    | st.tuples(inner) | st.dictionaries(st.integers(), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@bounded(300)
@given(st.sampled_from([hint for hint, _ in KEPT]), ANYTHING)
def test_a_value_is_refused_or_comes_back(hint: Any, value: Any) -> None:
    signature = taking(hint)
    try:
        body = signature.encode((value,), {})
    except BadArguments:
        return
    _, kwargs = signature.decode(body)
    assert alike(kwargs["value"]) == alike(value)


@bounded(100)
@given(st.binary() | JSON.map(lambda value: msgspec.json.encode({"value": value})))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for function in (welcome, many, open_ended):
        with contextlib.suppress(BadArguments):
            TaskSignature(function, name="app.task").decode(body)
