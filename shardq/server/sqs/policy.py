"""Policies of queues: the rights of other accounts. A policy that cannot be evaluated is refused.

A policy allows actions to callers of other accounts, and denies actions to any caller. Callers of
the queue's own account have the rights of their keys.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec.structs import replace

from shardq.server.sqs.errors import SqsRefusal, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CHARS_MAX = 20_480
_STATEMENTS_MAX = 20
_CACHED_MAX = 256
"""Policies that stay decoded: each has up to 20,480 characters, and is read by every request."""
_PATTERN_STARS_MAX = 5
"""The most stars of a pattern, because a match with many stars is slow."""
_ACCOUNT = re.compile(r"[0-9]{12}")
_PRINCIPAL = re.compile(r"arn:aws:iam::([0-9]{12}):root")
"""The ARN of a whole account: the users and roles of AWS are unknown here."""
_ACTION = re.compile(r"(?:\*|sqs:(?:\*|[A-Za-z]{1,40}\*?))", re.IGNORECASE)
SHARED: Final = frozenset(
    {
        "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl",
        "ListDeadLetterSourceQueues", "PurgeQueue", "ReceiveMessage", "SendMessage",
    }
)  # fmt: skip
"""The actions that another account can be allowed."""


class Statement(msgspec.Struct, frozen=True, rename="pascal", kw_only=True, omit_defaults=True):
    """A statement of a policy; all its parts can be evaluated."""

    sid: str | None = None
    effect: Literal["Allow", "Deny"]
    principal: Any
    action: str | list[str]
    resource: str | list[str] | None = None
    condition: dict[str, dict[str, str | list[str]]] | None = None


class QueuePolicy(msgspec.Struct, frozen=True, rename="pascal", kw_only=True, omit_defaults=True):
    """The policy of a queue."""

    version: Literal["2012-10-17", "2008-10-17"] = "2008-10-17"
    id: str | None = None
    statement: list[Statement] | Statement


class AskedAccess(msgspec.Struct, frozen=True):
    """The access that a caller asks for.

    Attributes:
        account: The caller's account; empty without one.
        action: The name of the action.
        arn: The queue's ARN.
        client: The caller's address.
        source_arn: The ARN of the resource on whose behalf it asks; empty without one.
    """

    account: str
    action: str
    arn: str
    client: str
    source_arn: str = ""


@lru_cache(maxsize=_CACHED_MAX)
def read(text: str) -> QueuePolicy:
    """A policy by its text; for equal texts the same object.

    Raises:
        SqsRefusal: If the text is no policy, or has a part that cannot be evaluated.
    """
    if len(text) > _CHARS_MAX:
        raise _invalid(f"it has more than {_CHARS_MAX} characters")
    try:
        made = msgspec.json.decode(text, type=QueuePolicy)
        known = msgspec.to_builtins(made)
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(str(error)) from error
    statements = statements_of(made)
    if not 0 < len(statements) <= _STATEMENTS_MAX:
        raise _invalid(f"it needs 1 to {_STATEMENTS_MAX} statements")
    if unknown := {*given} - {*known, "Version"}:
        raise _invalid(f"{min(unknown)} is not evaluated here")
    raw = given["Statement"]
    for statement, one in zip(statements, raw if isinstance(raw, list) else [raw], strict=True):
        if unknown := {*one} - {*map(_pascal, Statement.__struct_fields__)}:
            raise _invalid(f"{min(unknown)} is not evaluated here")
        _check(statement)
    return made


def _pascal(name: str) -> str:
    return name.capitalize()


def statements_of(policy: QueuePolicy) -> list[Statement]:
    """The statements of a policy."""
    found = policy.statement
    return found if isinstance(found, list) else [found]


def _check(statement: Statement) -> None:
    accounts_of(statement)
    if statement.action == [] or statement.resource == []:
        raise _invalid("a statement needs an action, and a resource if it has the part")
    for action in _listed(statement.action):
        if not _ACTION.fullmatch(action):
            raise _invalid(f"{action[:100]} is no action of SQS")
    for resource in _listed(statement.resource or "*"):
        _check_pattern(resource)
    for operator, keys in (statement.condition or {}).items():
        for key, values in keys.items():
            known = _CONDITIONS.get(key.lower(), {})
            if operator not in known:
                raise _invalid(f"condition {operator[:50]} of {key[:50]} is not evaluated here")
            if values == []:
                raise _invalid(f"condition {operator} of {key} has no value")
            for value in _listed(values):
                if key.lower() == "aws:sourceip":
                    _network(value)
                else:
                    _check_pattern(value)


def _check_pattern(pattern: str) -> None:
    if pattern.count("*") > _PATTERN_STARS_MAX or "[" in pattern:
        raise _invalid(f"{pattern[:100]} has more than {_PATTERN_STARS_MAX} stars, or a bracket")


def accounts_of(statement: Statement) -> set[str]:
    """The accounts of a statement; `*` is all.

    Raises:
        SqsRefusal: If its principal is not `*`, accounts, or ARNs of whole accounts.
    """
    principal = statement.principal
    if principal == "*":
        return {"*"}
    if not isinstance(principal, dict) or [*principal] != ["AWS"]:
        raise _invalid("its principal must be * or have AWS alone")
    given = principal["AWS"]
    if given == []:
        raise _invalid("its principal names no account")
    found: set[str] = set()
    for one in given if isinstance(given, list) else [given]:
        if one == "*":
            found.add("*")
        elif isinstance(one, str) and _ACCOUNT.fullmatch(one):
            found.add(one)
        elif isinstance(one, str) and (arn := _PRINCIPAL.fullmatch(one)):
            found.add(arn[1])
        else:
            raise _invalid(
                f"principal {str(one)[:100]} is no account: name one by its 12 digits, or as "
                "arn:aws:iam::ACCOUNT:root"
            )
    return found


def decide(policy: QueuePolicy, asked: AskedAccess) -> bool | None:
    """True if a policy allows the access, False if it denies it; None if it does neither."""
    decisions = {
        statement.effect for statement in statements_of(policy) if _applies(statement, asked)
    }
    if "Deny" in decisions:
        return False
    return True if "Allow" in decisions else None


def _applies(statement: Statement, asked: AskedAccess) -> bool:
    accounts = accounts_of(statement)
    action = f"sqs:{asked.action}".lower()
    return (
        ("*" in accounts or asked.account in accounts)
        and any(_matches(action, one.lower()) for one in _listed(statement.action))
        and any(_matches(asked.arn, one) for one in _listed(statement.resource or "*"))
        and all(
            _CONDITIONS[key.lower()][operator](asked, _listed(values))
            for operator, keys in (statement.condition or {}).items()
            for key, values in keys.items()
        )
    )


def _matches(value: str, pattern: str) -> bool:
    return fnmatchcase(value, pattern)


def _source(asked: AskedAccess, values: Sequence[str]) -> bool:
    # As in AWS, a value that the request lacks fits no pattern, not even a star.
    return bool(asked.source_arn) and any(_matches(asked.source_arn, one) for one in values)


def _not_source(asked: AskedAccess, values: Sequence[str]) -> bool:
    return not _source(asked, values)


def _address(asked: AskedAccess, values: Sequence[str]) -> bool:
    try:
        client = ip_address(asked.client)
    except ValueError:
        return False
    return any(client in _network(one) for one in values)


def _not_address(asked: AskedAccess, values: Sequence[str]) -> bool:
    return not _address(asked, values)


def _network(value: str) -> Any:
    try:
        return ip_network(value, strict=False)
    except ValueError as error:
        raise _invalid(f"{value[:100]} is no range of addresses") from error


_CONDITIONS: Final[dict[str, dict[str, Callable[[AskedAccess, Sequence[str]], bool]]]] = {
    "aws:sourcearn": {
        "ArnEquals": _source,
        "ArnLike": _source,
        "StringEquals": _source,
        "StringLike": _source,
        "ArnNotEquals": _not_source,
        "ArnNotLike": _not_source,
    },
    "aws:sourceip": {"IpAddress": _address, "NotIpAddress": _not_address},
}


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def with_permission(
    text: str, *, label: str, accounts: Sequence[str], actions: Sequence[str], arn: str
) -> str:
    """The text of a policy with one more statement.

    Raises:
        SqsRefusal: If the label is taken, an account or action is invalid, or the policy would
            have too many statements or characters.
    """
    if not (accounts and all(map(_ACCOUNT.fullmatch, accounts))):
        raise wrong(list(accounts), "PrincipalId", "Unable to verify.")
    for action in actions:
        if action != "*" and action not in SHARED:
            raise wrong(
                f"SQS:{action}",
                "ActionName",
                "Only the queue owner is allowed to invoke this action.",
            )
    made = (
        read(text)
        if text
        else QueuePolicy(version="2012-10-17", id=f"{arn}/SQSDefaultPolicy", statement=[])
    )
    statements = statements_of(made)
    if any(one.sid == label for one in statements):
        raise wrong(label, "Label", "Already exists.")
    if len(statements) >= _STATEMENTS_MAX:
        raise SqsRefusal(
            "OverLimit", f"The maximum number of statements of a policy is {_STATEMENTS_MAX}."
        )
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    names = [f"SQS:{action}" for action in actions]
    added = Statement(
        sid=label,
        effect="Allow",
        principal={"AWS": principals[0] if len(principals) == 1 else principals},
        action=names[0] if len(names) == 1 else names,
        resource=arn,
    )
    changed = _text(replace(made, statement=[*statements, added]))
    if len(changed) > _CHARS_MAX:
        raise SqsRefusal(
            "OverLimit", f"The maximum number of characters of a policy is {_CHARS_MAX}."
        )
    return changed


def without_permission(text: str, label: str) -> str:
    """The text of a policy without a statement; empty if that was its last.

    Raises:
        SqsRefusal: If it has no statement with the label.
    """
    made = read(text) if text else None
    statements = [] if made is None else statements_of(made)
    left = [one for one in statements if one.sid != label]
    if made is None or len(left) == len(statements):
        raise wrong(label, "Label", "can't find label on existing policy.")
    if not left:
        return ""
    return _text(replace(made, statement=left))


def _text(policy: QueuePolicy) -> str:
    return msgspec.json.encode(policy).decode()


def _invalid(reason: str) -> SqsRefusal:
    return SqsRefusal(
        "InvalidAttributeValue", f"Invalid value for the parameter Policy. Reason: {reason}."
    )
