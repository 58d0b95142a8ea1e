"""What tests of tasks give as arguments: a type of each kind that JSON can and cannot hold."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Size(enum.StrEnum):
    S = "s"
    L = "l"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Item:
    name: str
    price: Decimal
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Order:
    id: uuid.UUID
    items: list[Item]
    by: dict[str, Item] = field(default_factory=dict)
    parent: Order | None = None


@dataclass
class Special(Item):
    rebate: int = 0


@dataclass(eq=False)
class Unequal:
    at: date
    sizes: Sequence[int] = ()


@attrs.define
class Place:
    lat: float
    lon: float


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    retries: int
    lang: str


class Needed(TypedDict):
    path: str


class Account(msgspec.Struct):
    owner: str
    opened: datetime


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field(alias="zipCode", min_length=2)


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    id: uuid.UUID
    since: datetime
    photo: bytes = b""
    homes: list[Address] = []


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Prefixed(pydantic.BaseModel):
    """A model whose validator changes what it has made."""

    name: str

    @pydantic.field_validator("name")
    @classmethod
    def _prefix(cls, name: str) -> str:
        return f"user-{name}"


class Hidden(pydantic.BaseModel):
    name: str
    token: str = pydantic.Field("", exclude=True)


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    name: str


@dataclass
class Sale:
    day: date
    kind: Literal["sale"] = "sale"


@dataclass
class Refund:
    day: date
    kind: Literal["refund"] = "refund"


@attrs.define
class Gift:
    kind: Literal["gift", "present"]
    to: str | None = None


class Fee(TypedDict):
    kind: Literal["fee"]
    cents: int


class Swap(pydantic.BaseModel):
    kind: Literal["swap"] = "swap"
    day: date


class Stolen(msgspec.Struct):
    kind: Literal["stolen"] = "stolen"


@dataclass
class Upload:
    file: Path
    hosts: Iterable[IPv4Address] = ()


@dataclass
class Loosely:
    of: Any


class Loosest(TypedDict):
    of: Any


class Socket:
    """What JSON cannot hold."""

    def __repr__(self) -> str:
        return "<Socket>"


class Text(str):
    __slots__ = ()


class Money(Decimal):
    pass


UserId = NewType("UserId", int)
ID = uuid.UUID("0188a6b0-0000-7000-8000-000000000001")
NOON = datetime(2026, 11, 26, 12, 30, 15, 123456, UTC)
MAYBE_DAY = Optional[date]  # noqa: UP045 - as many write it
BERLIN = ZoneInfo("Europe/Berlin")
ORDER = Order(ID, [Item("tea", Decimal("2.50"), ["hot"])], {"x": Item("pen", Decimal(1))})
CUSTOMER = Customer(id=ID, since=NOON, photo=b"\x01", homes=[Address(street="A", zipCode="12")])


class Wide(pydantic.BaseModel):
    """Fields without a hint of what is in them, some that have one, and extras."""

    model_config = pydantic.ConfigDict(extra="allow")

    any: Any = None
    items: list = []  # type: ignore[type-arg]
    by_name: dict[str, Any] = {}
    inner: Wide | None = None
    pair: tuple[int, int] = (0, 0)
    several: Sequence[int] = ()
    sizes: list[Size] = []
    tupled: Annotated[Any, pydantic.AfterValidator(tuple)] = ()


@dataclass
class Opening:
    of: Any
    kind: Literal["opening"] = "opening"


@dataclass
class Closing:
    of: Any
    kind: Literal["closing"] = "closing"
