"""Tests of versions, and of the resume file of every release."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bootstrap.slurmd import QUIET_SECONDS, repeat_delay, start_delay
from node.slurm import version
from node.slurm.resume_request import ResumeJob, ResumeRequest, parse_resume


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slurm-wlm 22.05.8\n", (22, 5)),
        ("slurm 23.11.4", (23, 11)),
        ("24.11.5-4", (24, 11)),
        ("slurm 25.05.0-0rc1", (25, 5)),
    ],
)
def test_versions(text: str, expected: tuple[int, int]) -> None:
    assert version.parse(text) == expected


@pytest.mark.parametrize("text", ["", "slurm", "slurm-wlm 22", "1122.05"])
def test_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="no Slurm version"):
        version.parse(text)


def test_spelling() -> None:
    assert version.spell((22, 5)) == "22.05"
    assert version.parse(version.spell((24, 11))) == (24, 11)


# This text was written by 22.05.8.
OLD = """{"jobs":[{"job_id":12,"nodes":"cpu-[1000-1001]"},{"job_id":13,"nodes":"cpu-1002"}],
"all_nodes":"cpu-[1000-1003]"}"""
NEW = """{"all_nodes_resume": "cpu-[1-2]", "jobs": [{"extra": "e", "job_id": 12, "features": "spot",
 "nodes_alloc": "cpu-[0-2]", "nodes_resume": "cpu-[1-2]", "oversubscribe": "OK", "partition": "cpu",
 "reservation": null}]}"""


def test_resume_file_of_22_05() -> None:
    assert parse_resume(OLD) == ResumeRequest(
        ("cpu-1000", "cpu-1001", "cpu-1002", "cpu-1003"),
        (ResumeJob(12, ("cpu-1000", "cpu-1001")), ResumeJob(13, ("cpu-1002",))),
    )


def test_resume_file_since_23_02() -> None:
    (job,) = parse_resume(NEW).jobs
    assert job == ResumeJob(
        12,
        ("cpu-1", "cpu-2"),
        nodes_alloc=("cpu-0", "cpu-1", "cpu-2"),
        partition="cpu",
        features="spot",
        oversubscribe="OK",
        extra="e",
    )


def test_nodes_that_nobody_waits_for() -> None:
    assert parse_resume('{"all_nodes": "cpu-0"}') == ResumeRequest(("cpu-0",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"all_nodes": 3}',
        '{"all_nodes": "a[", "jobs": []}',
        '{"all_nodes": "a", "jobs": [{"nodes": "a"}]}',
        '{"all_nodes": "a", "jobs": [{"job_id": 1}]}',
        '{"all_nodes": "a", "jobs": 7}',
        # Each list alone would do.
        '{"all_nodes": "a[0-600000]", "jobs": [{"job_id": 1, "nodes": "b[0-600000]"}]}',
    ],
)
def test_what_is_no_resume_file(text: str) -> None:
    with pytest.raises(ValueError, match="resume file"):
        parse_resume(text)


@pytest.mark.parametrize(
    ("release", "uptime", "delay"),
    [
        ((22, 5), 1000.0, 0.0),
        ((22, 5), 1000.5, 0.0),
        ((22, 5), 1000.75, 0.25),
        ((22, 5), 1000.96875, 0.03125),
        # These releases use the clock.
        ((23, 11), 1000.75, 0.0),
        ((24, 11), 1000.75, 0.0),
    ],
)
def test_no_slurmd_starts_shortly_before_a_second_of_uptime_ends(
    release: tuple[int, int], uptime: float, delay: float
) -> None:
    assert start_delay(release, uptime) == delay
    assert start_delay(release, uptime + delay) == 0
    assert delay < QUIET_SECONDS


def boot_time(clock: float, uptime: float, later: float) -> int:
    """The boot time that slurmd 22.05 reports, `later` seconds after its start at this clock and uptime."""
    return math.floor(clock + later) - (math.floor(uptime + later) - math.floor(uptime))


@given(
    start=st.floats(1000, 1001 - QUIET_SECONDS),
    clock=st.floats(5000, 5001),
    pause=st.floats(0, 20),
    way=st.floats(0, 0.6),
)
def test_a_repeated_registration_names_no_earlier_second_than_the_start(
    start: float, clock: float, pause: float, way: float
) -> None:
    wait = repeat_delay(start, start + pause)
    assert 0 <= wait < 1
    # The way from the signal to the registration may take this share of what is left of the second.
    later = pause + wait + way * (1 - start % 1)
    assert boot_time(clock, start, later) >= math.floor(clock)


def test_a_registration_at_any_moment_may_name_an_earlier_second() -> None:
    assert boot_time(5000.3, 1000.5, 0.6) < 5000
    assert boot_time(5000.3, 1000.5, 3.6) < 5000
