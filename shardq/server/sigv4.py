"""Signatures of AWS's version 4, by header and by query: read and verified, no I/O.

```
 secret ─► date ─► region ─► service ─► signing key ──┐  kept: 5 HMACs the first time
 method, path, query, headers, body ─► canonical request ─► string to sign ─► signature
```

A signature covers the body's hash, the host, and every `x-amz-` header of the request. An unsigned
body is refused, because nothing would protect it.

Source:
    "Create a signed AWS API request" of the IAM user guide, checked against botocore's signer.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from shardq.server.refusals import IncompleteSignature, RequestExpired, SignatureDoesNotMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.server.web import Request

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SKEW_S = 300
"""A clock may be this far off."""
EXPIRES_S_MAX = 604_800
_KEPT_MAX = 4_096
"""Signing keys that are kept."""
_TEXTS_KEPT = 1_024
"""Parsed texts that are kept, because many requests have them in common."""
_KEPT_CHARACTERS_MAX = 1_000
_CREDENTIAL = re.compile(
    r"([\w+/=-]{1,128})/([0-9]{8})/([A-Za-z0-9-]{1,64})/([a-z0-9-]{1,32})/aws4_request", re.ASCII
)
_PARTS = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]*)")
_DATE = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z", re.ASCII)
_SIGNATURE = re.compile(r"[0-9a-f]{64}", re.ASCII)
_HEADER_NAMES = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+(?:;[a-z0-9!#$%&'*+.^_`|~-]+)*", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)
_SPACES = re.compile(r" {2,}")
_SAFE: Final = "-_.~"


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a request, not verified.

    Attributes:
        key_id: The key that it names.
        date: Its day, `YYYYMMDD`.
        region: The region that it is for.
        service: The service that it is for.
        headers: Names of the headers that it covers.
        at: When it was made, `YYYYMMDDTHHMMSSZ`.
        at_s: The same in epoch seconds.
        expires_s: For how long it is valid; None for a header, which is valid for `SKEW_S`.
        value: The signature itself, 64 hexadecimal digits.
    """

    key_id: str
    date: str
    region: str
    service: str
    headers: tuple[str, ...]
    at: str
    at_s: int
    expires_s: int | None
    value: str

    @property
    def scope(self) -> str:
        """The scope of its credential."""
        return f"{self.date}/{self.region}/{self.service}/aws4_request"

    def __repr__(self) -> str:
        return f"Signature(key_id={self.key_id!r}, scope={self.scope!r}, at={self.at!r})"


def is_in_header(authorization: str) -> bool:
    """True if an `Authorization` header has a signature of this version."""
    return authorization.startswith("AWS4-")


def is_in_query(query: str) -> bool:
    """True if a query has a signature of this version."""
    return "X-Amz-Signature=" in query or "X-Amz-Algorithm=" in query


def from_header(request: Request) -> Signature:
    """The signature in the `Authorization` header.

    Raises:
        IncompleteSignature: If a part is missing or damaged.
    """
    algorithm, _, rest = request.headers["authorization"].partition(" ")
    parts = {f"X-Amz-{name}": value for name, value in _PARTS.findall(rest)}
    parts["X-Amz-Algorithm"] = algorithm
    parts["X-Amz-Date"] = request.headers.get("x-amz-date", "")
    return _signature(parts, None)


def from_query(request: Request) -> Signature:
    """The signature in the query.

    Raises:
        IncompleteSignature: If a part is missing or damaged.
    """
    found: dict[str, str] = {}
    for name, value in _pairs(request.query):
        if name.startswith("X-Amz-"):
            if name in found:
                raise IncompleteSignature(f"{name} is given twice.")
            found[name] = unquote_to_bytes(value).decode("latin-1")
    expires = found.get("X-Amz-Expires", "")
    if not (_SECONDS.fullmatch(expires) and 0 < int(expires) <= EXPIRES_S_MAX):
        raise IncompleteSignature(
            f"X-Amz-Expires must be 1 to {EXPIRES_S_MAX} seconds, as whole digits."
        )
    return _signature(found, int(expires))


def _signature(parts: Mapping[str, str], expires_s: int | None) -> Signature:
    if parts.get("X-Amz-Algorithm") != ALGORITHM:
        raise IncompleteSignature(f"the signature's algorithm must be {ALGORITHM}.")
    key_id, date, region, service = _credential(parts.get("X-Amz-Credential", ""))
    value = parts.get("X-Amz-Signature", "")
    if not _SIGNATURE.fullmatch(value):
        raise IncompleteSignature("the signature must be 64 hexadecimal digits.")
    covered, at = _covered(parts.get("X-Amz-SignedHeaders", "")), parts.get("X-Amz-Date", "")
    at_s = _epoch_s(at)
    if date != at[:8]:
        raise IncompleteSignature("the Credential's date must be that of X-Amz-Date.")
    return Signature(key_id, date, region, service, covered, at, at_s, expires_s, value)


@lru_cache(_TEXTS_KEPT)
def _credential(text: str) -> tuple[str, ...]:
    """Key, date, region and service of a credential."""
    found = _CREDENTIAL.fullmatch(text)
    if found is None:
        raise IncompleteSignature(
            "the signature's Credential must be KEY/YYYYMMDD/REGION/SERVICE/aws4_request."
        )
    return found.groups()


@lru_cache(_TEXTS_KEPT)
def _covered(text: str) -> tuple[str, ...]:
    """The names of the headers that a signature covers."""
    if len(text) > _KEPT_CHARACTERS_MAX or not _HEADER_NAMES.fullmatch(text):
        raise IncompleteSignature("SignedHeaders must name headers in small letters, a ; between.")
    return tuple(text.split(";"))


@lru_cache(_TEXTS_KEPT)
def _epoch_s(text: str) -> int:
    """The epoch second of a signature's time."""
    found = _DATE.fullmatch(text)
    try:
        numbers = [int(number) for number in found.groups()] if found else []
        return int(datetime(*numbers, tzinfo=UTC).timestamp())  # type: ignore[arg-type,misc]
    except (ValueError, TypeError) as error:
        raise IncompleteSignature("X-Amz-Date must be a time as 20270131T235959Z.") from error


def check_time(signature: Signature, now_s: float) -> None:
    """Refuse a signature of another time.

    Raises:
        RequestExpired: If it was made more than 5 minutes ago or ahead, or has expired.
    """
    if signature.at_s > now_s + SKEW_S:
        raise RequestExpired(
            f"Signature not yet current: {signature.at} is more than 5 minutes ahead of the "
            f"server's clock; set the clock of the client."
        )
    valid_s = SKEW_S if signature.expires_s is None else signature.expires_s
    if now_s > signature.at_s + valid_s:
        raise RequestExpired(
            f"Signature expired: {signature.at} is more than {valid_s} s behind the server's "
            f"clock; sign the request anew, and set the clock of the client."
        )


class Verifier:
    """Verifies signatures, and keeps derived signing keys.

    Args:
        service: The service that signatures must be for.
    """

    def __init__(self, service: str = "sqs") -> None:
        self._service = service
        self._kept: dict[tuple[str, int, str, str], hmac.HMAC] = {}

    def is_valid(
        self, signature: Signature, request: Request, secret: Callable[[], str], generation: int
    ) -> bool:
        """True if a request was signed with a secret; compared in constant time.

        Args:
            signature: The request's.
            request: The request.
            secret: Returns the key's secret, if the signing key is not kept.
            generation: The secret's generation: with the key's id it names the secret.

        Raises:
            SignatureDoesNotMatch: If it is for another service, or leaves a part uncovered.
        """
        if signature.service != self._service:
            raise SignatureDoesNotMatch(
                f"the credential is for service {signature.service!r}, not {self._service!r}."
            )
        text = string_to_sign(signature, request)
        name = signature.key_id, generation, signature.date, signature.region
        key = self._kept.get(name)
        if key is None:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            made = _signing_key(signature, secret())
            key = self._kept[name] = hmac.new(made, digestmod="sha256")
        # A copy, because `hmac.digest` releases the interpreter's lock to other threads.
        expected = key.copy()
        expected.update(text.encode())
        return hmac.compare_digest(expected.hexdigest().encode(), signature.value.encode())


def _signing_key(signature: Signature, secret: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (signature.date, signature.region, signature.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def string_to_sign(signature: Signature, request: Request) -> str:
    """The text that a signature signs.

    Raises:
        SignatureDoesNotMatch: If the signature does not cover a part that it must.
    """
    canonical = _canonical(signature, request)
    digest = hashlib.sha256(canonical).hexdigest()
    return f"{ALGORITHM}\n{signature.at}\n{signature.scope}\n{digest}"


def _canonical(signature: Signature, request: Request) -> bytes:
    headers, covered = request.headers, signature.headers
    must = {"host", *(name for name in headers if name.startswith("x-amz-"))}
    if missing := must.difference(covered):
        raise SignatureDoesNotMatch(
            f"the signature must cover {', '.join(sorted(missing))}; sign the request with all of "
            f"its x-amz- headers."
        )
    body_hash = hashlib.sha256(request.body).hexdigest()
    if headers.get("x-amz-content-sha256", body_hash) != body_hash:
        raise SignatureDoesNotMatch(
            "x-amz-content-sha256 must be the sha256 of the body: a body is always signed here."
        )
    lines = [
        request.method,
        _path(request.raw_path)
        if len(request.raw_path) <= _KEPT_CHARACTERS_MAX
        else _canonical_path(request.raw_path),
        _canonical_query(request.query) if request.query else "",
        *(f"{name}:{_value(headers.get(name, ''))}" for name in covered),
        "",
        ";".join(covered),
        body_hash,
    ]
    # A server reads headers as Latin 1, so this gives the bytes that were sent.
    return "\n".join(lines).encode("latin-1", "replace")


def _value(text: str) -> str:
    return _SPACES.sub(" ", text.strip()) if "  " in text or text != text.strip() else text


def _canonical_path(path: str) -> str:
    """A path without empty and dotted parts, encoded once more."""
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    end = "/" if kept and path.endswith("/") else ""
    return quote(f"/{'/'.join(kept)}{end}", safe="/~-_.")


_path = lru_cache(_TEXTS_KEPT)(_canonical_path)


def _canonical_query(query: str) -> str:
    pairs = sorted(
        (_quoted(name), _quoted(value))
        for name, value in _pairs(query)
        if name != "X-Amz-Signature"
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def _pairs(query: str) -> list[tuple[str, str]]:
    """Names and values of a query, still encoded."""
    return [(name, value) for name, _, value in (p.partition("=") for p in query.split("&") if p)]


def _quoted(text: str) -> str:
    # Clients write a space as + or %20, and sign %20; a plus is %2B.
    return quote(unquote_to_bytes(text.replace("+", "%20")), safe=_SAFE)
