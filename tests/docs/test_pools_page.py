"""The page of pools says of each class of failures, and of the clouds' codes, what the daemon does."""

from __future__ import annotations

import re

import pytest

from node.elastic.drivers.ec2 import errors as ec2_errors
from node.elastic.drivers.gce import errors as gce_errors
from node.elastic.failures import FALLS_BACK, POLICIES, ErrorClass
from node.elastic.interruptions import EVENT_SECONDS, QUIET_SECONDS, WINDOW_SECONDS
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs/pools.md").read_text(encoding="utf-8")
CODES = re.search(r"^The clouds' own codes: (.*?) fall back, (.*?)\. (.*?) never do", PAGE, re.M | re.S)


def test_the_table_has_every_class_with_its_reason() -> None:
    rows = re.findall(r"^\| `(\w+):` \| (yes|no) \| (.*) \|$", PAGE, re.MULTILINE)
    assert {row[0]: row[1:] for row in rows} == {
        kind.value: ("yes" if row.falls else "no", row.why) for kind, row in FALLS_BACK.items()
    }
    assert len(rows) == len(FALLS_BACK)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_the_codes_fall_back_as_the_page_says(part: int) -> None:
    assert CODES is not None
    codes = re.findall(r"`(\w+)`", CODES.groups()[part])
    assert codes
    for code in codes:
        google = code.isupper()
        kind = gce_errors.classify(code, 400) if google else ec2_errors.classify(code, 400)
        assert FALLS_BACK[kind].falls is (part < 2), code


def test_the_times_are_those_of_the_daemon() -> None:
    assert (POLICIES[ErrorClass.CAPACITY].backoff, POLICIES[ErrorClass.CAPACITY].backoff_max) == (30, 600)
    assert (POLICIES[ErrorClass.QUOTA].backoff, POLICIES[ErrorClass.QUOTA].backoff_max) == (30, 300)
    assert (POLICIES[ErrorClass.INTERRUPTED].backoff, WINDOW_SECONDS, EVENT_SECONDS) == (600, 600, 60)
    assert POLICIES[ErrorClass.INTERRUPTED].backoff_max == QUIET_SECONDS == 4 * 3600
