"""Every error of Compute Engine has a class and keeps the cloud's message."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1 as gce
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st
from requests import Response

from node.elastic.drivers import failures
from node.elastic.drivers.gce import errors as gce_errors
from node.elastic.drivers.gce.client import CallError, refusal
from node.elastic.failures import ErrorClass as Kind
from tests.support import texts
from tests.support.fake_gce_wire import RefusalError, as_json

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


def answer(reason: str, status: int = 400, message: str = "the cloud's own words") -> CallError:
    return refusal(status, json.dumps(RefusalError(status, reason, message).body()).encode())


def operation(*errors: tuple[str, str], status: int = 0) -> dict[str, Any]:
    return as_json(
        gce.Operation(
            error=gce.Error(errors=[gce.Errors(code=code, message=message) for code, message in errors]),
            http_error_status_code=status,
        )
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
    assert gce_errors.operation_failure(operation()) is None
    refused = gce.Operation(http_error_status_code=403, http_error_message="NO")
    failure = gce_errors.operation_failure(as_json(refused))
    assert failure is not None
    assert failure.kind is Kind.PERMISSION


# --- the form of an error's answer -------------------------------------------------------------------------

_READS = (
    "Quota exceeded for quota group 'default' and limit 'Queries per user per 100 seconds' of service "
    "'compute.googleapis.com' for consumer 'project_number:1'."
)
RECORDED = [
    # https://github.com/hail-is/hail/pull/10613: the canonical word beside the reason says another thing.
    (403, {"message": _READS, "status": "PERMISSION_DENIED",
           "errors": [{"message": _READS, "domain": "usageLimits", "reason": "rateLimitExceeded"}]},
     Kind.THROTTLED, "rateLimitExceeded"),
    # https://github.com/GoogleCloudPlatform/marketing-analytics-jumpstart/issues/163
    (429, {"message": "Quota exceeded for quota metric 'Read requests'",
           "errors": [{"message": "x", "domain": "global", "reason": "rateLimitExceeded"}],
           "status": "RESOURCE_EXHAUSTED",
           "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "googleapis.com",
                        "reason": "RATE_LIMIT_EXCEEDED"}]},
     Kind.THROTTLED, "rateLimitExceeded"),
    # https://github.com/murer/dsopz/issues/3
    (403, {"message": "Daily Limit Exceeded.",
           "errors": [{"domain": "usageLimits", "reason": "dailyLimitExceeded",
                       "message": "Daily Limit Exceeded.", "extendedHelp": "https://x"}]},
     Kind.QUOTA, "dailyLimitExceeded"),
    (503, {"message": "The service is currently unavailable.", "status": "UNAVAILABLE"},
     Kind.UNAVAILABLE, "UNAVAILABLE"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "error", "kind", "code"), RECORDED, ids=lambda one: str(one)[:12])
def test_recorded_answers(status: int, error: dict[str, Any], kind: Kind, code: str) -> None:
    content = json.dumps({"error": {"code": status, **error}}).encode()
    failure = gce_errors.failure_of(refusal(status, content))
    assert (failure.kind, failure.code) == (kind, code)


CANONICAL = {
    Kind.CONFIG: """INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE NOT_FOUND ALREADY_EXISTS ABORTED
        CANCELLED""",
    Kind.PERMISSION: "PERMISSION_DENIED UNAUTHENTICATED",
    Kind.THROTTLED: "RESOURCE_EXHAUSTED",
    Kind.UNAVAILABLE: "UNKNOWN INTERNAL UNAVAILABLE DATA_LOSS UNIMPLEMENTED DEADLINE_EXCEEDED",
}
"""What Google's newer front ends say in place of a reason."""


def test_each_canonical_code_has_a_class() -> None:
    """Google's own definition of the codes has the HTTP status of each in its comments."""
    definition = Path(code_pb2.__file__).with_name("code.proto").read_text()
    statuses = {
        code: status
        for status, code in re.findall(r"HTTP Mapping: (\d+)[^\n]*\n\s*([A-Z_]+) = ", definition)
        if code != "OK"
    }
    classes = {code: kind for kind, codes in CANONICAL.items() for code in codes.split()}
    assert classes.keys() == statuses.keys()
    for code, status in statuses.items():
        kind = classes[code]
        content = json.dumps({"error": {"code": int(status), "message": "m", "status": code}}).encode()
        failure = gce_errors.failure_of(refusal(int(status), content))
        assert (failure.kind, failure.code, failure.message) == (kind, code, "m")


@given(st.sampled_from([400, 401, 403, 404, 409, 429, 500, 503]), texts.text(), texts.text(), texts.text())
def test_the_reason_is_the_one_that_googles_library_reads(
    status: int, reason: str, message: str, whole: str
) -> None:
    content = {
        "error": {"code": status, "message": whole, "errors": [{"reason": reason, "message": message}]}
    }
    response: Any = Response()
    response.status_code, response._content = status, json.dumps(content).encode()
    response.request = type("Request", (), {"method": "GET", "url": "http://x"})()
    theirs = exceptions.from_http_response(response)  # type: ignore[no-untyped-call]
    ours = refusal(status, response.content)
    assert theirs.code == ours.status
    if reason and message:
        assert (theirs.errors[0]["reason"], theirs.errors[0]["message"]) == (ours.code, str(ours))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "errors", "code", "message", "reason", "status"]), inner, max_size=4
        )
    ),
)


@given(
    st.sampled_from([302, 400, 403, 404, 409, 429, 500, 502]),
    st.binary(max_size=9) | _JSON.map(lambda one: json.dumps(one).encode())
    | _JSON.map(lambda one: json.dumps({"error": one}).encode()),
)  # fmt: skip
def test_any_other_answer_has_a_class_and_a_message(status: int, content: bytes) -> None:
    failure = gce_errors.failure_of(refusal(status, content))
    assert failure.kind in Kind
    assert failure.code
    assert failure.sentence()


@given(texts.text(), st.sampled_from([None, 400, 403, 404, 409, 429, 500, 503]), texts.text())
def test_everything_has_a_class_and_one_line(code: str, status: int | None, message: str) -> None:
    assert gce_errors.classify(code, status, message) in Kind
    assert len(failures.one_line(message)) <= failures.MESSAGE_LENGTH
    assert "\n" not in failures.one_line(message)


def test_an_error_without_a_result() -> None:
    error = gce_errors.error_of(answer("forbidden", 403))
    assert "permission: the cloud's own words (forbidden)" in str(error)
