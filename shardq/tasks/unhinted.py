"""What is in arguments at places without a type hint: plain values of JSON, of these very types.

JSON would give a tuple back as a list there, and a member of an enum as its value. Where a hint
says what is wanted, `values.py` compares with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec import UnsetType, inspect

from shardq.tasks.values import changed, nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = {str, int, float, bool, type(None)}
_SKIPPED = {*_PLAIN, UnsetType}


class _Place(NamedTuple):
    info: Any
    value: Any
    path: str


class Unhinted:
    """Finds what is in arguments at places without a type hint.

    Args:
        struct: Of the arguments, as `Parameters.struct` makes it.

    Attributes:
        is_there: Whether there is such a place.
    """

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        info = cast("inspect.StructType", inspect.type_info(struct))
        fields = [one for one in info.fields if any(map(_is_free, nodes(one.type)))]
        self._fields = [(one.name, one.type, f".{one.encode_name}") for one in fields]
        self.is_there = bool(fields)

    def check(self, arguments: msgspec.Struct) -> None:
        """Refuse what JSON gives back as a value of another type.

        Args:
            arguments: Which JSON can hold, and the hints take.

        Raises:
            Unfit: If there is something.
        """
        for name, info, path in self._fields:
            value = getattr(arguments, name)
            # On the path of each put: mostly it is a plain value.
            if type(value) not in _SKIPPED:
                _check(info, value, path)


def _check(info: Any, value: Any, path: str) -> None:
    left = [_Place(info, value, path)]
    while left:
        place = left.pop()
        if _is_free(place.info):
            if not _is_plain(place.value):
                _check_plain(place.value, place.path)
        else:
            left += _items(*place)
            left += _fields(*place)


def _is_free(info: object) -> bool:
    return isinstance(info, inspect.AnyType) or getattr(info, "cls", None) is object


def _items(info: Any, value: Any, path: str) -> Iterator[_Place]:
    """What a value consists of that is a union, a list or a dict by its hint."""
    if isinstance(info, inspect.UnionType):
        for one in info.types:
            yield _Place(one, value, path)
    elif isinstance(info, inspect.CollectionType) and isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield _Place(info.item_type, one, f"{path}[{at}]")
    elif isinstance(info, inspect.TupleType) and isinstance(value, tuple):
        for at, (kind, one) in enumerate(zip(info.item_types, value, strict=True)):
            yield _Place(kind, one, f"{path}[{at}]")
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        for key, one in value.items():
            yield _Place(info.value_type, one, f"{path}[{key!r}]")


def _fields(info: Any, value: Any, path: str) -> Iterator[_Place]:
    """The fields of a value that is of a class by its hint."""
    fields = getattr(info, "fields", ())
    if isinstance(info, inspect.TypedDictType) and isinstance(value, dict):
        for field in fields:
            if field.name in value:
                yield _Place(field.type, value[field.name], f"{path}[{field.name!r}]")
    elif isinstance(value, getattr(info, "cls", ())):
        for field in fields:
            yield _Place(field.type, getattr(value, field.name), f"{path}.{field.name}")


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is list:
        return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value))
    if kind is dict:
        return {str}.issuperset(map(type, value)) and all(map(_is_plain, value.values()))
    return kind in _PLAIN


def _check_plain(value: Any, path: str) -> None:
    """Raise the error of the first value in one that is not plain."""
    kind = type(value)
    if kind is list:
        for at, one in enumerate(value):
            _check_plain(one, f"{path}[{at}]")
    elif kind is dict:
        for key, one in value.items():
            if type(key) is not str:
                raise changed(key, str, path)
            _check_plain(one, f"{path}[{key!r}]")
    elif kind not in _PLAIN:
        back = next((one for one in (str, int, float, dict) if isinstance(value, one)), list)
        raise changed(value, back, path)
