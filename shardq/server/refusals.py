"""Refusals of requests before any API handles them, in one tree.

```
Refusal
├── NotAuthenticated
│   ├── MissingAuthenticationToken   no key, signature or signed url
│   ├── IncompleteSignature          a signature with a part missing or damaged
│   ├── InvalidClientTokenId         no such key, or not any more
│   ├── SignatureDoesNotMatch        another secret, or what was signed has changed
│   └── RequestExpired               a clock 5 minutes off, or a url past its end
├── AccessDenied                     a key without that level or queue
└── RequestThrottled                 over a quota of the key
```

Each API writes them in its own form. Names and codes are those of SQS; `status` is that of `/v1`.
"""

from __future__ import annotations

from typing import ClassVar

from shardq.errors import ShardqError


class Refusal(ShardqError):
    """A request that is refused.

    Attributes:
        code: The code of SQS's Query protocol.
        json_type: The type of SQS's JSON protocol.
        sqs_status: The HTTP status of SQS.
        status: The HTTP status of `/v1`.
        retry_after_s: Whole seconds after which it may succeed; None: it will not.
    """

    code: ClassVar[str]
    json_type: ClassVar[str]
    sqs_status: ClassVar[int] = 403
    status: ClassVar[int]
    retry_after_s: int | None = None


class NotAuthenticated(Refusal):
    """A request without a valid key. The answer of `/v1` has `WWW-Authenticate`."""

    status = 401


class MissingAuthenticationToken(NotAuthenticated):
    """The request has no key, signature or signed url."""

    code = json_type = "MissingAuthenticationToken"


class IncompleteSignature(NotAuthenticated):
    """A part of the signature is missing or damaged."""

    code = json_type = "IncompleteSignature"
    sqs_status = 400


class InvalidClientTokenId(NotAuthenticated):
    """There is no such key, or it has ended."""

    code = json_type = "InvalidClientTokenId"


class SignatureDoesNotMatch(NotAuthenticated):
    """The request was signed with another secret, or changed since."""

    code = json_type = "SignatureDoesNotMatch"


class RequestExpired(NotAuthenticated):
    """The signature is more than 5 minutes off, or the url is past its end."""

    code = json_type = "RequestExpired"


class AccessDenied(Refusal):
    """The key lacks a level, or may not use a queue."""

    code = "AccessDenied"
    json_type = "AccessDeniedException"
    status = 403


class RequestThrottled(Refusal):
    """The request is over a quota of its key.

    Args:
        text: The sentence.
        retry_after_s: Whole seconds after which it may succeed.
    """

    code = json_type = "RequestThrottled"
    sqs_status = 400
    status = 429

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
