"""Checks values without a type hint: they must be plain JSON values, of exactly JSON's types.

Without a hint, JSON would give a tuple back as a list, and a member of an enum as its value. With a
hint, `values.py` compares. The validators of a pydantic model may read more than JSON has, so for
its fields the value that is read back decides.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec import UnsetType, inspect

from shardq.tasks.values import (
    UNREADABLE,
    Codec,
    TaggedUnion,
    Unfit,
    changed,
    field_names,
    is_model,
    nodes,
    plain_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = {str, int, float, bool, type(None)}
_SKIPPED = {*_PLAIN, UnsetType}


class _UnhintedPlace(NamedTuple):
    info: Any
    value: Any
    path: str


class Unhinted:
    """Checks the values of arguments at places without a type hint.

    Args:
        struct: The struct of the arguments, from `Parameters.struct`.

    Attributes:
        is_there: True if there is such a place.
    """

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        info = cast("inspect.StructType", inspect.type_info(struct))
        fields = [one for one in info.fields if any(map(_may_be_free, nodes(one.type)))]
        self._fields = [(one.name, one.type, f".{one.encode_name}") for one in fields]
        self.is_there = bool(fields)

    def check(self, arguments: msgspec.Struct) -> None:
        """Refuse values that JSON gives back as another type.

        Args:
            arguments: Arguments that JSON can hold and the hints accept.

        Raises:
            Unfit: If there is such a value.
        """
        for name, info, path in self._fields:
            value = getattr(arguments, name)
            # Skip plain values, which most are, because this is on the path of each put.
            if type(value) not in _SKIPPED:
                _check(info, value, path)


def _check(info: Any, value: Any, path: str) -> None:
    left = [_UnhintedPlace(info, value, path)]
    while left:
        place = left.pop()
        if _is_free(place.info):
            if not _is_plain(place.value):
                _check_plain(place.value, place.path)
        elif isinstance(place.info, inspect.CustomType):
            left += _custom(*place)
        else:
            left += _items(*place)
            left += _fields(*place)


def _custom(info: Any, value: Any, path: str) -> Iterator[_UnhintedPlace]:
    """The place of a value of a `TaggedUnion`; checks a model by the value that is read back."""
    kind: Any = type(value)
    if (hints := _hints(kind)) is not None:
        extras = value.model_extra or {}
        for name, hint in (*hints.items(), *((name, inspect.AnyType()) for name in extras)):
            _check_field(hint, value, name, path)
    elif isinstance(info.cls, type) and issubclass(info.cls, TaggedUnion):
        own = inspect.type_info(kind)
        if hasattr(own, "fields"):
            yield _UnhintedPlace(own, value, path)


def _check_field(hint: Any, model: Any, name: str, path: str) -> None:
    value = getattr(model, name)
    try:
        _check(hint, value, f"{path}.{name}")
    except Unfit:
        back = Codec(type(model)).read(plain_json(model))
        if not _is_same(value, getattr(back, name, None)):
            raise


@cache
def _hints(kind: Any) -> dict[str, Any] | None:
    """The types of a model's fields that may hold values without a hint; None for other classes."""
    if not is_model(kind):
        return None
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        # Fields that are unreadable here are left to pydantic's own rules.
        with suppress(*UNREADABLE):
            info = inspect.type_info(field.annotation)
            if any(map(_may_be_free, nodes(info))):
                found[name] = info
    return found


def _is_same(given: Any, back: Any) -> bool:
    """True if two values are equal, and all values in them have the same types."""
    if type(given) is not type(back):
        return False
    if isinstance(given, list | tuple):
        return len(given) == len(back) and all(map(_is_same, given, back))
    if isinstance(given, dict):
        return _is_same([*given], [*back]) and all(_is_same(given[key], back[key]) for key in back)
    names = field_names(given)
    if names:
        return all(_is_same(getattr(given, name), getattr(back, name, None)) for name in names)
    return bool(given == back)


def _may_be_free(info: object) -> bool:
    """True if a place is free, or a model, which may have free ones."""
    return _is_free(info) or isinstance(info, inspect.CustomType)


def _is_free(info: object) -> bool:
    return isinstance(info, inspect.AnyType) or getattr(info, "cls", None) is object


def _items(info: Any, value: Any, path: str) -> Iterator[_UnhintedPlace]:
    """The items of a value whose hint is a union, a list or a dict."""
    if isinstance(info, inspect.UnionType):
        for one in info.types:
            yield _UnhintedPlace(one, value, path)
    elif isinstance(info, inspect.CollectionType) and isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield _UnhintedPlace(info.item_type, one, f"{path}[{at}]")
    elif isinstance(info, inspect.TupleType) and isinstance(value, tuple):
        for at, (kind, one) in enumerate(zip(info.item_types, value, strict=True)):
            yield _UnhintedPlace(kind, one, f"{path}[{at}]")
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        for key, one in value.items():
            yield _UnhintedPlace(info.value_type, one, f"{path}[{key!r}]")


def _fields(info: Any, value: Any, path: str) -> Iterator[_UnhintedPlace]:
    """The fields of a value whose hint is a class."""
    fields = getattr(info, "fields", ())
    if isinstance(info, inspect.TypedDictType) and isinstance(value, dict):
        for field in fields:
            if field.name in value:
                yield _UnhintedPlace(field.type, value[field.name], f"{path}[{field.name!r}]")
    elif isinstance(value, getattr(info, "cls", ())):
        for field in fields:
            yield _UnhintedPlace(field.type, getattr(value, field.name), f"{path}.{field.name}")


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is list:
        return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value))
    if kind is dict:
        return {str}.issuperset(map(type, value)) and all(map(_is_plain, value.values()))
    return kind in _PLAIN


def _check_plain(value: Any, path: str) -> None:
    """Raise the error of the first part of a value that is not plain."""
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
