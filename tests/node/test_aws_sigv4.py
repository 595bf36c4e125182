"""Tests of signatures with AWS's published examples, and with botocore's signer for all kinds of requests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from node.aws.signatures import Credentials, signed, signing_key

SUITE = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
SUITE_TIME = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
S3_KEY = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


def signature(headers: dict[str, str]) -> str:
    return headers["Authorization"].rpartition("Signature=")[2]


@pytest.mark.parametrize(
    ("method", "query", "expected"),
    [
        ("GET", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "?Param2=value2&Param1=value1",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
    ],
    ids=["get-vanilla", "post-vanilla", "get-vanilla-query-order-key-case"],
)
def test_the_published_suite(method: str, query: str, expected: str) -> None:
    sent = signed(
        method, f"https://example.amazonaws.com/{query}", {}, b"", SUITE,
        region="us-east-1", service="service", now=SUITE_TIME,
    )  # fmt: skip
    assert signature(sent) == expected
    assert sent["Authorization"].startswith(
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, "
    )


def test_the_documented_examples_of_iam_and_s3() -> None:
    key = signing_key(SUITE.secret_key, "20150830", "us-east-1", "iam")
    assert key.hex() == "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"
    iam = signed(
        "GET", "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08",
        {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}, b"", SUITE,
        region="us-east-1", service="iam", now=SUITE_TIME,
    )  # fmt: skip
    assert signature(iam) == "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    s3 = signed(
        "GET", "https://examplebucket.s3.amazonaws.com/test.txt", {"range": "bytes=0-9"}, b"", S3_KEY,
        region="us-east-1", service="s3", now=datetime(2013, 5, 24, tzinfo=UTC),
    )  # fmt: skip
    assert signature(s3) == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


CASES = {
    "secret": (
        "secretsmanager",
        "POST",
        "https://secretsmanager.eu-west-1.amazonaws.com/",
        b'{"SecretId": "a"}',
    ),
    "object": ("s3", "GET", "https://bucket.s3.eu-west-1.amazonaws.com/code/ab12.zip", b""),
    "report": ("s3", "PUT", "https://bucket.s3.eu-west-1.amazonaws.com/boot/compute-0.json", b"{}" * 99),
    "odd": ("s3", "GET", "https://bucket.s3.eu-west-1.amazonaws.com/a%20b/%C3%BC~c%2Bd", b""),
    "path": ("iam", "GET", "https://iam.amazonaws.com/a%20b/c", b""),
    "query": ("ec2", "GET", "https://ec2.amazonaws.com/?b=2&a=%2Fx%20y&a=&c", b""),
    "form": ("ec2", "POST", "https://ec2.eu-west-1.amazonaws.com/", b"Action=DescribeInstances&Filter.1=a+b"),
    "port": ("s3", "PUT", "http://127.0.0.1:5000/bucket/current.json", b"x"),
}


@pytest.mark.parametrize("token", [None, "a/session+token=="])
@pytest.mark.parametrize("case", CASES)
def test_botocore_signs_alike(case: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    service, method, url, body = CASES[case]
    now = datetime(2026, 11, 21, 18, 0, 5, tzinfo=UTC)
    headers = {"x-amz-target": "secretsmanager.GetSecretValue", "content-type": "application/x-amz-json-1.1"}
    mine = signed(
        method, url, headers, body, Credentials("AKID", "secret", token),
        region="eu-west-1", service=service, now=now,
    )  # fmt: skip
    clock = "get_current_datetime" if hasattr(botocore.auth, "get_current_datetime") else None
    assert clock, "botocore takes the time from elsewhere now"
    monkeypatch.setattr(botocore.auth, clock, lambda *_a, **_k: now.replace(tzinfo=None))
    kind: Any = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
    request = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
    if service == "s3":
        # Our requests always sign this header. botocore does so unless the request has a checksum.
        request.context["payload_signing_enabled"] = True
        request.context["client_config"] = None
        monkeypatch.setattr(kind, "_should_sha256_sign_payload", lambda *_: True)
    kind(BotoCredentials("AKID", "secret", token), service, "eu-west-1").add_auth(request)
    assert mine["Authorization"] == request.headers["Authorization"]
