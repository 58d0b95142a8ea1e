"""Our verifier against botocore's signer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signing import request_of, signed_request

from shardq.server import sigv4
from shardq.server.refusals import IncompleteSignature, RequestExpired, SignatureDoesNotMatch

if TYPE_CHECKING:
    from shardq.server.web import Request

KEY, SECRET = "SQ234567ABCDEFGHIJKL", "ucumchh7zu65yt6x6xufd6sm5gunnoi4azsxk7qadqdo46ba4n3q"
AT_S = 1_800_000_000

printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
paths = st.one_of(
    st.sampled_from(["/", "/000000000000/orders", "/a//b/", "/a/../b", "/a/./b/.", "/%2F", "//"]),
    st.text("abc/.-_~%20é+ ", max_size=15).map(lambda text: "/" + text.replace("%", "%25")),
)
requests = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["POST", "GET", "PUT", "DELETE"]),
        "url": st.builds(
            lambda host, path: f"http://{host}{path}",
            st.sampled_from(["127.0.0.1:9324", "localhost", "sqs.eu-west-1.example.com"]),
            paths,
        ),
        "headers": st.dictionaries(
            st.sampled_from(["Content-Type", "X-Amz-Target", "x-amzn-query-mode", "Accept", "X-A"]),
            printable.map(str.strip),
            max_size=4,
        ),
        "params": st.dictionaries(words.filter(bool), words, max_size=4),
        "body": st.binary(max_size=60),
    }
)


def is_valid(request: Request, secret: str = SECRET, *, by_query: bool = False) -> bool:
    read = sigv4.from_query if by_query else sigv4.from_header
    return sigv4.Verifier().is_valid(read(request), request, lambda: secret, 1)


@given(requests)
def test_all_that_botocore_signs_by_header_is_valid(asked: dict[str, Any]) -> None:
    request = signed_request(KEY, SECRET, AT_S, **asked)
    assert is_valid(request)
    assert not is_valid(request, SECRET[:-1] + "z")


@given(requests.map(lambda asked: {**asked, "body": b""}), st.integers(1, 604_800))
def test_all_that_botocore_signs_by_query_is_valid(asked: dict[str, Any], expires_s: int) -> None:
    request = signed_request(KEY, SECRET, AT_S, expires_s=expires_s, **asked)
    assert is_valid(request, by_query=True)
    assert sigv4.from_query(request).expires_s == expires_s
    assert not is_valid(request, "x" + SECRET, by_query=True)


@given(requests, st.data())
def test_what_was_changed_after_it_was_signed_is_not_valid(
    asked: dict[str, Any], data: st.DataObject
) -> None:
    asked["headers"] = {**asked["headers"], "X-Amz-Target": "AmazonSQS.SendMessage"}
    request = signed_request(KEY, SECRET, AT_S, **asked)
    changes: dict[str, dict[str, Any]] = {
        "body": {"body": request.body + b"!"},
        "method": {"method": "PATCH"},
        "path": {"raw_path": request.raw_path + "x"},
        "query": {"query": f"{request.query}&more=1".lstrip("&")},
        "target": {"headers": {**request.headers, "x-amz-target": "AmazonSQS.PurgeQueue"}},
        "host": {"headers": {**request.headers, "host": "elsewhere"}},
        "date": {"headers": {**request.headers, "x-amz-date": "20270115T080001Z"}},
    }
    what = data.draw(st.sampled_from(sorted(changes)))
    assert not is_valid(replace(request, **changes[what])), what


def test_a_header_that_is_added_must_be_signed_and_a_body_always_is() -> None:
    request = signed_request(KEY, SECRET, AT_S, body=b"{}")
    for name, value in {"x-amz-target": "AmazonSQS.PurgeQueue", "x-amz-meta": "1"}.items():
        with pytest.raises(SignatureDoesNotMatch, match=name):
            is_valid(replace(request, headers={**request.headers, name: value}))
    for value in ("UNSIGNED-PAYLOAD", "0" * 64):
        asked = {"X-Amz-Content-SHA256": value}
        with pytest.raises(SignatureDoesNotMatch, match="sha256 of the body"):
            is_valid(signed_request(KEY, SECRET, AT_S, body=b"{}", headers=asked))
    without_host = request.headers["authorization"].replace("host;", "")
    with pytest.raises(SignatureDoesNotMatch, match="must cover host"):
        is_valid(replace(request, headers={**request.headers, "authorization": without_host}))


def test_a_signature_for_another_service_is_refused() -> None:
    with pytest.raises(SignatureDoesNotMatch, match="'s3'"):
        is_valid(signed_request(KEY, SECRET, AT_S, service="s3"))


def test_a_space_may_be_sent_as_a_plus() -> None:
    # pycurl's client of kombu signs %20 and sends a plus.
    request = signed_request(KEY, SECRET, AT_S, method="GET", params={"Body": "a b+c"})
    assert is_valid(replace(request, query="Body=a+b%2Bc"))
    assert is_valid(replace(request, query="Body=a%20b%2Bc"))
    assert not is_valid(replace(request, query="Body=a+b+c"))


def test_a_signature_is_valid_five_minutes_before_and_after_its_time() -> None:
    signature = sigv4.from_header(signed_request(KEY, SECRET, AT_S))
    for now_s in (AT_S - 300, AT_S, AT_S + 300):
        sigv4.check_time(signature, now_s)
    for now_s in (AT_S - 300.001, AT_S + 300.001):
        with pytest.raises(RequestExpired):
            sigv4.check_time(signature, now_s)


def test_a_signed_query_is_valid_until_it_expires() -> None:
    signature = sigv4.from_query(signed_request(KEY, SECRET, AT_S, expires_s=3_600))
    for now_s in (AT_S - 300, AT_S + 3_600):
        sigv4.check_time(signature, now_s)
    for now_s in (AT_S - 301, AT_S + 3_601):
        with pytest.raises(RequestExpired):
            sigv4.check_time(signature, now_s)


CREDENTIAL = f"{KEY}/20270115/eu-west-1/sqs/aws4_request"
SOUND = {
    "Credential": CREDENTIAL,
    "SignedHeaders": "host;x-amz-date",
    "Signature": "0" * 64,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"Credential": KEY},
        {"Credential": CREDENTIAL.replace("aws4_request", "aws4")},
        {"Credential": CREDENTIAL.replace("20270115", "20270116")},
        {"Credential": "é" + CREDENTIAL},
        {"SignedHeaders": ""},
        {"SignedHeaders": "Host"},
        {"SignedHeaders": "host;;x-amz-date"},
        {"Signature": "0" * 63},
        {"Signature": "G" * 64},
        {"Signature": "\u0660" * 64},
        {"x-amz-date": "20270115"},
        {"x-amz-date": "20271315T080000Z"},
        {"x-amz-date": ""},
        {"algorithm": "AWS4-ECDSA-P256-SHA256"},
    ],
    ids=str,
)
def test_a_damaged_signature_is_incomplete(wrong: dict[str, str]) -> None:
    parts = {**SOUND, "x-amz-date": "20270115T080000Z", "algorithm": sigv4.ALGORITHM, **wrong}
    at, algorithm = parts.pop("x-amz-date"), parts.pop("algorithm")
    text = f"{algorithm} " + ", ".join(f"{name}={value}" for name, value in parts.items())
    request = request_of(headers={"Authorization": text, "X-Amz-Date": at})
    assert sigv4.is_in_header(text)
    with pytest.raises(IncompleteSignature):
        sigv4.from_header(request)


@pytest.mark.parametrize(
    "change",
    [
        ("X-Amz-Expires=60", "X-Amz-Expires=0"),
        ("X-Amz-Expires=60", "X-Amz-Expires=604801"),
        ("X-Amz-Expires=60", "X-Amz-Expires=-1"),
        ("X-Amz-Expires=60", "X-Amz-Expires=" + "9" * 5_000),
        ("X-Amz-Expires=60", "X-Amz-Expires=0000000019999999"),
        ("X-Amz-Expires=60&", ""),
        ("X-Amz-Expires=60", "X-Amz-Expires=60&X-Amz-Expires=3600"),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders="),
    ],
)
def test_a_damaged_query_is_incomplete(change: tuple[str, str]) -> None:
    request = signed_request(KEY, SECRET, AT_S, method="GET", expires_s=60)
    assert change[0] in request.query
    with pytest.raises(IncompleteSignature):
        sigv4.from_query(replace(request, query=request.query.replace(*change)))


def test_neither_a_signature_nor_its_error_shows_it() -> None:
    request = signed_request(KEY, SECRET, AT_S)
    signature = sigv4.from_header(request)
    assert signature.value not in repr(signature) + repr(request)
