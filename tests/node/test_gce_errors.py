"""Every error of Compute Engine and of its client has a class and keeps the cloud's message."""

from __future__ import annotations

import pytest
import requests
from google.api_core import exceptions
from google.auth.compute_engine import Credentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from google.cloud import compute_v1 as gce
from google.protobuf.json_format import ParseError
from hypothesis import given
from hypothesis import strategies as st

from node.elastic.drivers import failures
from node.elastic.drivers.gce import errors as gce_errors
from node.elastic.drivers.gce.client import refusals
from node.elastic.failures import ErrorClass as Kind
from tests.support import texts
from tests.support.naps import noted_naps

CODES = {
    Kind.CAPACITY: [
        "ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "REGION_RESOURCE_POOL_EXHAUSTED", "IP_SPACE_EXHAUSTED", "UNSUPPORTED_OPERATION",
        "VM_MIN_COUNT_NOT_REACHED",
    ],
    Kind.QUOTA: ["QUOTA_EXCEEDED", "quotaExceeded", "LIMIT_EXCEEDED", "SOME_NEW_LIMIT_EXCEEDED"],
    Kind.THROTTLED: [
        "RESOURCE_OPERATION_RATE_EXCEEDED", "rateLimitExceeded", "RATE_LIMIT_EXCEEDED",
        "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "userRateLimitExceeded",
    ],
    Kind.UNAVAILABLE: ["backendError", "INTERNAL_ERROR", "RESOURCE_NOT_READY"],
    Kind.PERMISSION: ["forbidden", "PERMISSIONS_ERROR", "accessNotConfigured", "conditionNotMet"],
    Kind.CONFIG: [
        "INVALID_ARGUMENT", "badRequest", "invalid", "notFound", "RESOURCE_NOT_FOUND",
        "RESOURCE_ALREADY_EXISTS",
    ],
}  # fmt: skip
ALL = [(kind, code) for kind, codes in CODES.items() for code in codes]


def answer(reason: str, status: int = 400, message: str = "the cloud's own words") -> Exception:
    kinds = {400: exceptions.BadRequest, 403: exceptions.Forbidden, 503: exceptions.ServiceUnavailable}
    errors = [{"reason": reason, "message": message, "domain": "global"}]
    return kinds[status](f"POST http://x/y: {message}", errors=errors)  # type: ignore[no-untyped-call]


def operation(*errors: tuple[str, str], status: int = 0) -> gce.Operation:
    return gce.Operation(
        error=gce.Error(errors=[gce.Errors(code=code, message=message) for code, message in errors]),
        http_error_status_code=status,
    )


@pytest.mark.parametrize(("kind", "code"), ALL)
def test_codes(kind: Kind, code: str) -> None:
    failure = gce_errors.failure_of(answer(code), ("a", "b"))
    assert (failure.nodes, failure.kind, failure.code) == (("a", "b"), kind, code)
    assert failure.message == "the cloud's own words"
    late = gce_errors.operation_failure(operation((code, "the cloud's own words")), ("a", "b"))
    assert late == failure


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Kind.CONFIG), (403, Kind.PERMISSION), (401, Kind.PERMISSION), (429, Kind.THROTTLED),
     (500, Kind.UNAVAILABLE), (503, Kind.UNAVAILABLE), (None, Kind.UNAVAILABLE)],
)  # fmt: skip
def test_a_new_code_is_classed_by_its_status(status: int | None, kind: Kind) -> None:
    assert gce_errors.classify("NOVEL", status) is kind


def test_a_stockout_is_known_by_its_words() -> None:
    text = "The zone 'z' does not have enough resources available to fulfill the request."
    assert gce_errors.failure_of(answer("novel", 503, text)).kind is Kind.CAPACITY


def test_machines_that_cannot_lie_together() -> None:
    for code in ("ZONE_RESOURCE_POOL_EXHAUSTED", "INVALID_USAGE"):
        text = "The resource policy 'p' cannot be applied: COLLOCATED"
        failure = gce_errors.operation_failure(operation((code, text)))
        assert failure is not None
        assert failure.kind is Kind.PLACEMENT


def test_the_cause_counts_and_not_its_consequence() -> None:
    failure = gce_errors.operation_failure(
        operation(("VM_MIN_COUNT_NOT_REACHED", "of 4"), ("QUOTA_EXCEEDED", "Limit:\n 0.0"))
    )
    assert failure is not None
    assert (failure.kind, failure.message) == (Kind.QUOTA, "Limit: 0.0")


def test_an_operation_without_an_error() -> None:
    assert gce_errors.operation_failure(gce.Operation()) is None
    failure = gce_errors.operation_failure(gce.Operation(http_error_status_code=403, http_error_message="NO"))
    assert failure is not None
    assert failure.kind is Kind.PERMISSION


CLIENT = [
    (requests.ConnectionError("refused"), Kind.UNAVAILABLE),
    (requests.ReadTimeout("slow"), Kind.UNAVAILABLE),
    (TransportError("no route"), Kind.UNAVAILABLE),  # type: ignore[no-untyped-call]
    (ParseError("a page"), Kind.UNAVAILABLE),
    (DefaultCredentialsError("none"), Kind.UNAVAILABLE),  # type: ignore[no-untyped-call]
    (RefreshError("revoked"), Kind.PERMISSION),  # type: ignore[no-untyped-call]
]


@pytest.mark.parametrize(("error", "kind"), CLIENT, ids=lambda one: type(one).__name__)
def test_no_answer(error: Exception, kind: Kind) -> None:
    failure = gce_errors.failure_of(error)
    assert (failure.kind, failure.code) == (kind, type(error).__name__)
    assert isinstance(error, refusals())


class Metadata:
    """Google's metadata server, as google-auth asks it: slow, or with a status."""

    def __init__(self, status: int | None) -> None:
        self.status, self.data, self.headers = status, b"{}", {"content-type": "text/html"}

    def __call__(self, **_options: object) -> Metadata:
        if self.status is None:
            raise TransportError("timed out")  # type: ignore[no-untyped-call]
        return self


@pytest.mark.parametrize(
    ("status", "kind"),
    [(None, Kind.UNAVAILABLE), (503, Kind.UNAVAILABLE), (404, Kind.PERMISSION), (403, Kind.PERMISSION)],
)
def test_a_token_that_does_not_come_is_no_missing_right(
    monkeypatch: pytest.MonkeyPatch, status: int | None, kind: Kind
) -> None:
    """What google-auth itself raises for a metadata server that is slow, and for one that refuses."""
    noted_naps(monkeypatch)
    with pytest.raises(RefreshError) as raised:
        Credentials().refresh(Metadata(status))  # type: ignore[no-untyped-call]
    assert gce_errors.failure_of(raised.value).kind is kind


@given(texts.text(), st.sampled_from([None, 400, 403, 404, 409, 429, 500, 503]), texts.text())
def test_everything_has_a_class_and_one_line(code: str, status: int | None, message: str) -> None:
    assert gce_errors.classify(code, status, message) in Kind
    assert len(failures.one_line(message)) <= failures.MESSAGE_LENGTH
    assert "\n" not in failures.one_line(message)


def test_an_error_without_a_result() -> None:
    error = gce_errors.error_of(answer("forbidden", 403))
    assert "permission: the cloud's own words (forbidden)" in str(error)
