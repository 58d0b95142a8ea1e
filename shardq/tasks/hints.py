"""Type hints translated for msgspec.

```
 Annotated[int, Gt(0)], of annotated-types or pydantic ──► Annotated[int, Meta(gt=0)]
 Sale | Refund, each with kind: Literal[..]            ──► a choice, read by its tag
 Order | int, of which Order is a model                ──► a choice, read by what JSON holds
```

This covers arguments and results, and the lists, dicts and unions in them. The fields of classes
are up to msgspec and pydantic.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import msgspec

from shardq.tasks.values import Codec, TaggedUnion, is_model, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNIONS = (Union, types.UnionType)
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
_SAYING_NOTHING = ("strict", "discriminator")
"""Constraints of pydantic that need no check here."""
_TAGS = (
    "give each a field of one name with a Literal of its own, kind: Literal['sale'] = 'sale' say"
)


def readable(hint: Any) -> Any:
    """A resolved hint, with the parts that msgspec does not know translated.

    Raises:
        TypeError: If a constraint cannot be checked, or JSON does not distinguish the types.
    """
    while type(hint).__name__ == "TypeAliasType":
        hint = hint.__value__
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated(readable(args[0]), args[1:])
    if origin is None or origin is Literal or not args:
        return hint
    if origin in _UNIONS:
        return _union([readable(one) for one in args])
    made = tuple(one if one is ... or isinstance(one, list) else readable(one) for one in args)
    if all(map(operator.is_, made, args)):
        return hint
    return hint.copy_with(made) if hasattr(hint, "copy_with") else origin[made]


# Bounds -------------------------------------------------------------------------------------------


def _annotated(hint: Any, notes: Iterable[Any]) -> Any:
    """A hint with notes; its bounds become those of msgspec."""
    bounds: dict[str, Any] = {}
    kept = [one for one in notes if not _take_bounds(one, bounds)]
    if bounds:
        try:
            kept.append(msgspec.Meta(**bounds))
        except ValueError as error:
            raise TypeError(str(error)) from error
    return functools.reduce(lambda made, one: Annotated[made, one], kept, hint)


def _take_bounds(note: Any, bounds: dict[str, Any]) -> bool:
    """Add the bounds of a note of annotated-types or pydantic; False for any other note."""
    if type(note).__module__.partition(".")[0] not in {"annotated_types", "pydantic"}:
        return False
    several = getattr(note, "metadata", note)
    if isinstance(several, Iterable):
        for one in several:
            if one is not None and not _take_bounds(one, bounds):
                raise _unchecked(one)
        return True
    known = {name: getattr(note, name, None) for name in _BOUNDS}
    said = {name for name, value in getattr(note, "__dict__", {}).items() if value is not None}
    found = {name: value for name, value in known.items() if value is not None}
    if (said - {*_BOUNDS, *_SAYING_NOTHING}) or not (found or said):
        raise _unchecked(note)
    if "pattern" in found:
        found["pattern"] = getattr(found["pattern"], "pattern", found["pattern"])
    bounds |= found
    return True


def _unchecked(note: Any) -> TypeError:
    return TypeError(f"{note!r} would not be checked; take a msgspec.Meta, or a field of a model")


# Unions -------------------------------------------------------------------------------------------


def _union(members: list[Any]) -> Any:
    """A union; a `TaggedUnion` if msgspec cannot distinguish its members."""
    kinds = [typing.get_origin(one) or one for one in members]
    objects = [one for one, kind in zip(members, kinds, strict=True) if _is_object(kind)]
    others = [one for one in members if one not in objects]
    is_mixed = any(map(is_model, kinds)) and others not in ([], [types.NoneType])
    are_structs = all(_is_struct(kind) for kind in kinds if _is_object(kind))
    if not (is_mixed or (len(objects) > 1 and not are_structs)):
        return _either(members)
    rest = Codec(_either(others)) if others else None
    if len(objects) == 1:
        return _choice(members, "", {"": objects[0]}, rest)
    return _choice(members, *_tags(objects), rest)


def _either(members: Sequence[Any]) -> Any:
    return functools.reduce(lambda made, one: Union[made, one], members)  # noqa: UP007 - of any hints


def _choice(
    members: Sequence[Any], tag: str, by_tag: dict[Any, Any], rest: Codec | None
) -> type[TaggedUnion]:
    codecs = {value: Codec(one) for value, one in by_tag.items()}
    name = " | ".join(map(name_of, members))
    return type(name, (TaggedUnion,), {"tag": tag, "by_tag": codecs, "rest": rest})


def _tags(members: Sequence[Any]) -> tuple[str, dict[Any, Any]]:
    """The field by which JSON distinguishes classes, and the class for each of its values.

    Raises:
        TypeError: If there is no such field.
    """
    tagged = [_literals(typing.get_origin(one) or one) for one in members]
    for name in tagged[0]:
        by_tag = {
            value: one
            for one, literals in zip(members, tagged, strict=True)
            for value in literals.get(name, ())
        }
        if len(by_tag) == sum(len(one.get(name, ())) for one in tagged) and all(
            name in one for one in tagged
        ):
            return name, by_tag
    named = " and ".join(map(name_of, members))
    raise TypeError(f"JSON does not tell {named} apart; {_TAGS}")


def _literals(kind: Any) -> dict[str, list[Any]]:
    """The values of each field of a class that has a Literal as its hint."""
    hints = typing.get_type_hints(kind)
    return {
        name: [*typing.get_args(hint)]
        for name, hint in hints.items()
        if typing.get_origin(hint) is Literal
    }


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_object(kind: Any) -> bool:
    """True if JSON holds values of the type as an object of fields."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or hasattr(kind, "__attrs_attrs__")
        or _is_struct(kind)
        or is_model(kind)
    )
