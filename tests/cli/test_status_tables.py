"""The states of nodes in words: nothing that somebody has taken out of service looks usable."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from cli.console.status import node_words, show_status
from cli.providers import condition
from node.elastic.rules import NodePhase
from node.elastic.view import is_admin_disabled, phase
from node.slurm.node_flags import BASES, FLAGS, MISSING, ORIGINS
from node.slurm.reservations import Reservation, clock
from node.slurm.states import NodeState


@pytest.mark.parametrize(
    ("state", "machine", "reason", "words"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", None, None, ("off", "")),
        ("IDLE+CLOUD+POWERED_DOWN", None, "slurm-stacks quota: 2", ("off", "last: quota: 2")),
        ("DOWN+CLOUD+POWERED_DOWN", None, "ResumeTimeout reached", ("down", "last: ResumeTimeout reached")),
        ("IDLE+CLOUD+POWERED_DOWN", "running", None, ("off", "its machine is being ended")),
        ("ALLOCATED+CLOUD+POWERING_UP", None, None, ("starting", "no machine yet")),
        (
            "IDLE+CLOUD+DRAIN+NOT_RESPONDING+POWERED_DOWN",
            None,
            "slurm-stacks quota: 4 of 8",
            ("drained, powered down", "quota: 4 of 8"),
        ),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", None, "bad fan", ("drained", "bad fan")),
        ("ALLOCATED+CLOUD+POWERING_UP", "pending", None, ("starting", "its machine boots")),
        ("ALLOCATED+CLOUD+POWERING_UP", "running", "old", ("starting", "has not registered yet")),
        ("IDLE+CLOUD+POWERING_DOWN", "running", None, ("going back", "")),
        ("IDLE+CLOUD", "running", None, ("idle", "")),
        ("MIXED+CLOUD", "running", "old", ("busy", "")),
        ("IDLE+CLOUD+DRAIN", "running", "looking", ("drained", "looking")),
        (
            "ALLOCATED+CLOUD+DRAIN",
            "running",
            None,
            ("drained, its job goes on", "it was taken out of service by hand"),
        ),
        ("DOWN+CLOUD", "running", "Not responding", ("down", "Not responding")),
        ("DOWN+CLOUD", None, None, ("down", "Slurm gives no reason")),
        ("ALLOCATED+CLOUD+NOT_RESPONDING", "running", None, ("silent", "does not answer")),
        ("IDLE+CLOUD+INVALID_REG", "running", "low memory", ("unfit", "low memory")),
        # What an administrator has put out of service, as Slurm 22.05 names it on a live cluster.
        ("IDLE+CLOUD+FAIL", "running", "fan", ("drained (fail)", "fan")),
        ("ALLOCATED+CLOUD+FAIL", "running", "fan", ("drained (fail), its job goes on", "fan")),
        ("IDLE+CLOUD+FAIL+NOT_RESPONDING+POWERED_DOWN", None, "fan", ("drained (fail)", "fan")),
        ("DOWN+CLOUD", "running", "fan", ("down", "fan")),
        ("DOWN+CLOUD+NOT_RESPONDING+POWERED_DOWN", None, "fan", ("down", "fan")),
        ("DOWN+CLOUD+POWERED_DOWN", "running", "fan", ("down", "fan")),
        ("DOWN+CLOUD+POWERING_UP", "pending", "fan", ("down", "fan")),
        ("DOWN+CLOUD+POWERING_DOWN", "running", "fan", ("down", "fan")),
        ("IDLE+CLOUD+DRAIN+POWERING_UP", "pending", "fan", ("drained", "fan")),
        (
            "IDLE+CLOUD+MAINTENANCE+PLANNED+RESERVED",
            "running",
            None,
            ("in maintenance, idle", "by a reservation"),
        ),
        (
            "IDLE+CLOUD+MAINTENANCE+POWERED_DOWN+RESERVED",
            None,
            None,
            ("in maintenance, off", "by a reservation"),
        ),
        (
            "ALLOCATED+CLOUD+MAINTENANCE+RESERVED",
            "running",
            None,
            ("in maintenance, busy", "by a reservation"),
        ),
        ("ALLOCATED+CLOUD+RESERVED", "running", None, ("reserved, busy", "by a reservation")),
        ("IDLE+CLOUD+POWERED_DOWN+RESERVED", None, "slurm-stacks x", ("reserved, off", "by a reservation")),
        (
            "IDLE+CLOUD+NOT_RESPONDING+RESERVED",
            "running",
            None,
            ("reserved, silent", "by a reservation; does not answer"),
        ),
        ("DOWN+CLOUD+MAINTENANCE+RESERVED", "running", "fan", ("down", "fan")),
        # What Slurm or a job keeps out of use.
        (
            "UNKNOWN+CLOUD",
            "running",
            None,
            ("unknown", "Slurm has not heard from it since slurmctld started"),
        ),
        ("ERROR+CLOUD", "running", None, ("down", "Slurm gives no reason")),
        ("IDLE+CLOUD+REBOOT_ISSUED", "running", None, ("restarting", "its restart was asked for by hand")),
        ("IDLE+CLOUD+REBOOT_REQUESTED", "running", None, ("idle", "it restarts when it is free")),
        ("DOWN+CLOUD+REBOOT_ISSUED", "running", "new kernel : reboot issued", ("restarting", "new kernel")),
        (
            "MIXED+CLOUD+DRAIN+REBOOT_REQUESTED",
            "running",
            "Reboot ASAP",
            ("drained, its job goes on", "Reboot ASAP; it restarts when it is free"),
        ),
        ("DOWN+CLOUD+REBOOT_REQUESTED", "running", "fan", ("down", "fan; it restarts when it is free")),
        (
            "ALLOCATED+CLOUD+DRAIN+POWER_DOWN",
            "running",
            "slurm-stacks new line",
            ("drained, its job goes on", "new line; it is powered down after its job"),
        ),
        ("IDLE+CLOUD+DRAIN+POWER_DOWN", "running", "fan", ("drained", "fan")),
        (
            "DOWN+CLOUD+MAINTENANCE+REBOOT_ISSUED",
            "running",
            "reboot requested : reboot issued",
            ("in maintenance, restarting", "by a reservation; its restart was asked for by hand"),
        ),
        # Its boot has begun, or Slurm gave the reboot up.
        ("IDLE+CLOUD+DRAIN+POWERING_DOWN+REBOOT_ISSUED", "running", "fan", ("drained", "fan")),
        (
            "DOWN+CLOUD",
            "running",
            "Reboot ASAP : reboot timed out",
            ("down", "Reboot ASAP : reboot timed out"),
        ),
        # A flag of a release to come, and one without a word.
        ("IDLE+CLOUD+FLAG_OF_2030", "running", None, ("idle", "Slurm says FLAG_OF_2030")),
        (
            "MIXED+?+CLOUD+PLANNED",
            "running",
            None,
            ("busy", "Slurm plans to start a waiting job on it; Slurm says ?"),
        ),
        ("IDLE+CLOUD+INVALID_REG", "running", None, ("unfit", "it has less than slurm.conf says")),
        (
            "MIXED+CLOUD+PERFCTRS",
            "running",
            None,
            ("busy", "a job uses its performance counters, so it takes no other job"),
        ),
        (
            "IDLE+BLOCKED+CLOUD",
            "running",
            None,
            ("blocked", "a job that has the nodes around it keeps others away"),
        ),
        ("IDLE+CLOUD+PLANNED", "running", None, ("idle", "Slurm plans to start a waiting job on it")),
        ("ALLOCATED+CLOUD+POWER_DOWN", "running", None, ("busy", "it is powered down after its job")),
        ("IDLE+CLOUD+COMPLETING", "running", None, ("busy", "")),
        # Its machine is gone, and Slurm has not missed it yet.
        ("IDLE+CLOUD", None, None, ("idle", "the cloud lists no machine of this name")),
        ("ALLOCATED+CLOUD", None, None, ("busy", "the cloud lists no machine of this name")),
    ],
)
def test_a_nodes_state_in_words(
    state: str, machine: str | None, reason: str | None, words: tuple[str, str]
) -> None:
    assert node_words(state, machine, reason) == words


@pytest.mark.parametrize(
    ("flags", "next_state", "stays"),
    [
        ("DRAIN", "RESUME", False),
        ("DRAIN", None, True),  # somebody had drained it before
        ("", None, False),
        ("", "DOWN", True),
    ],
)
def test_a_node_that_restarts_and_then_stays_out_of_service(
    flags: str, next_state: str | None, stays: bool
) -> None:
    state = "+".join(filter(None, ("DOWN+CLOUD", flags, "REBOOT_ISSUED")))
    told = node_words(state, "running", "bad fan : reboot issued", next_state=next_state)
    assert told == ("restarting", "bad fan" + "; then it stays out of service" * stays)


def test_what_is_asked_for_with_asap_is_no_drain_of_somebodys() -> None:
    """As 22.05, 24.11 and 26.05 show a free node after `scontrol reboot ASAP`."""
    state, reason = "DOWN+CLOUD+DRAIN+REBOOT_ISSUED", "Reboot ASAP : reboot issued"
    told = node_words(state, "running", reason, next_state="RESUME")
    assert told == ("restarting", "its restart was asked for by hand")
    one = {"name": "debug-0", "state": state, "reason": reason, "next_state": "RESUME"}
    status = cluster_status()
    found = list(condition.service({**status, "nodes": [one]}, "test"))
    assert found == []


def test_a_reservation_is_named_and_a_silent_cloud_misses_nobody() -> None:
    ours = Reservation("r", 0.0, 9e9, ("n",), frozenset(), "ada")
    for flags in ("+RESERVED", ""):  # Slurm marks the nodes a little later
        told = node_words(f"IDLE+CLOUD{flags}", "running", None, ours)
        assert told == ("reserved, idle", f"r, for jobs of ada until {clock(9e9)}")
        repair = dataclasses.replace(ours, flags=frozenset({"MAINT"}))
        told = node_words(f"IDLE+CLOUD+POWERED_DOWN{flags}", None, None, repair)
        assert told == ("in maintenance, off", f"r, for maintenance until {clock(9e9)}")
    assert node_words("IDLE+CLOUD", None, None, listed=False) == ("idle", "")
    word, why = node_words(MISSING, None, None)
    assert word == "missing"
    assert "scontrol reconfigure" in why


# Every flag and base state of all releases (tests/test_node_states.py), but what only says where a node's
# line came from (CLOUD, DYNAMIC_*).
USABLE = {
    "IDLE": True, "ALLOCATED": True, "MIXED": True, "COMPLETING": True, "PLANNED": True, "POWERED_DOWN": True,
    "POWERING_UP": True, "POWER_UP": True, "REBOOT_REQUESTED": True,
    "DOWN": False, "ERROR": False, "UNKNOWN": False, "FUTURE": False, "MISSING": False, "DRAIN": False,
    "FAIL": False, "MAINTENANCE": False, "RESERVED": False, "INVALID_REG": False, "REBOOT_ISSUED": False,
    "NOT_RESPONDING": False, "PERFCTRS": False, "BLOCKED": False, "POWERING_DOWN": False, "POWER_DOWN": False,
}  # fmt: skip


def test_the_words_are_those_of_all_releases() -> None:
    assert USABLE.keys() == BASES | FLAGS - ORIGINS


@pytest.mark.parametrize("word", USABLE)
@pytest.mark.parametrize("machine", [None, "pending", "running", "stopping"])
def test_what_cannot_be_used_never_looks_as_if_it_could(word: str, machine: str | None) -> None:
    state = word if word in BASES else f"IDLE+CLOUD+{word}"
    base, *flags = state.split("+")
    assert NodeState("n", base, frozenset(flags)).is_usable == USABLE[word]
    looks, why = node_words(state, machine, None)
    if not USABLE[word]:
        assert looks not in ("idle", "off", "starting"), (looks, why)
        assert looks != "busy" or why
    for by_hand in ("DRAIN", "FAIL", "MAINTENANCE", "RESERVED"):
        looks, why = node_words(f"{state}+{by_hand}", machine, "fan")
        unusable = ("drained", "in maintenance", "reserved", "down", "missing")
        assert looks.startswith(unusable) or (looks, word) == ("restarting", "REBOOT_ISSUED"), looks


def test_a_node_that_is_set_to_fail_is_left_to_who_set_it() -> None:
    """As a drained one: the elastic daemon neither brings it back nor counts it as capacity."""
    for more in ({"CLOUD"}, {"CLOUD", "POWERED_DOWN", "NOT_RESPONDING"}):
        node = NodeState("n", "IDLE", frozenset({"FAIL", *more}), "fan")
        assert node.is_drained
        assert is_admin_disabled(node)
        assert phase(node) is (NodePhase.POWERED_DOWN if "POWERED_DOWN" in more else NodePhase.UP)


@pytest.mark.parametrize(
    ("state", "does"),
    [
        ("DOWN", "it takes jobs and starts none"),
        ("DRAIN", "it takes no more jobs, and starts those that wait"),
        ("INACTIVE", "it takes no jobs and starts none"),
    ],
)
def test_what_a_partition_that_is_not_up_does(
    capsys: pytest.CaptureFixture[str], state: str, does: str
) -> None:
    show_status(cluster_status(partition=state))
    output = capsys.readouterr().out
    assert f"Partition debug is {state.lower()}: {does}; `./cluster exec" in output
    assert "scontrol update partitionname=debug state=up` opens it" in output


def test_a_line_that_people_paste_runs_nothing_of_a_machines(capsys: pytest.CaptureFixture[str]) -> None:
    status = cluster_status(partition="DOWN")
    status["partitions"][0]["name"] = "x; touch y"
    show_status(status)
    output = " ".join(capsys.readouterr().out.split())
    assert "-- scontrol update 'partitionname=x; touch y' state=up` opens it" in output


@pytest.mark.parametrize("works", [True, False])
def test_what_a_command_has_closed_is_opened_by_that_command_or_by_up(
    capsys: pytest.CaptureFixture[str], works: bool
) -> None:
    closed = {
        "command": "down", "who": "ann@laptop", "at": 1764317627.0, "partitions": ["debug"], "works": works,
    }  # fmt: skip
    show_status(cluster_status(partition="DOWN", closed=closed), "test")
    output = " ".join(capsys.readouterr().out.split())
    told = (
        "it is working"
        if works
        else "it was interrupted. `./cluster up --stack test` opens what it has closed"
    )
    assert f"`down` of ann@laptop has closed partitions at 2025-11-28 08:13:47 UTC (debug): {told}" in output
    assert "state=up" not in output, "one command"


@pytest.mark.parametrize(
    ("step", "times", "cloud", "told"),
    [
        ("topology", 1, None, False),
        ("topology", 2, None, True),
        ("topology", 2, "too many calls", False),
        ("reconcile", 9, "too many calls", False),
        ("budget", 9, "too many calls", True),
        ("reconcile", 2, None, True),
    ],
)
def test_a_step_that_fails_again_and_again_is_told_unless_the_cloud_is(
    capsys: pytest.CaptureFixture[str], step: str, times: int, cloud: str | None, told: bool
) -> None:
    error = {"message": "may not [b]list", "at": 1764317687.0, "since": 1764317627.0, "times": times}
    steps = [
        {"name": "works", "does": "works", "error": None},
        {"name": step, "does": "acts", "error": error},
    ]
    show_status(cluster_status(steps=steps, cloud=cloud), "test")
    line = (
        f"warning: the elastic daemon's step {step}, which acts, has failed since 2025-11-28 08:13:47 UTC: "
        "may not [b]list; its log: `./cluster logs controller --stack test`"
    )
    assert (line in " ".join(capsys.readouterr().out.split())) is told


def cluster_status(
    *nodes: tuple[str, str, str | None], partition: str = "UP", **changes: Any
) -> dict[str, Any]:
    return {
        "partitions": [
            {"name": "debug", "state": partition, "machine": "local.small", "min": 0, "max": 3, "up": 0}
        ],
        "nodes": [
            {"name": name, "partition": "debug", "state": state, "machine_state": None, "reason": reason}
            for name, state, reason in nodes
        ],
        "reservations": [],
        "machines": {"running": 0, "pending": 0},
        "jobs": [],
        "cost": {"node_hours": 0.0, "usd": 0.0, "by_partition": {}, "damaged": [], "budget": None},
        **changes,
    }


def test_reservations_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    now = int(time.time())
    reserved = [
        {"name": "later", "start": now + 9000, "end": now + 9999, "nodes": "", "flags": [],
         "users": "ada,bob"},
        {"name": "fix\x1b[2J", "start": now - 9, "end": now + 99, "nodes": "debug-[0-1]", "flags": ["MAINT"],
         "users": "root"},
    ]  # fmt: skip
    nodes = [(f"debug-{n}", "IDLE+CLOUD+MAINTENANCE+RESERVED+POWERED_DOWN", None) for n in range(2)]
    show_status(cluster_status(*nodes, reservations=reserved))
    output = capsys.readouterr().out
    assert "\x1b" not in output
    row, first, second = (line for line in output.splitlines() if "until" in line)
    assert row.startswith("debug-[0-1]")
    assert "in maintenance, off" in row
    assert r"fix\x1b[2J, for maintenance until 2" in row
    assert first.startswith(r"fix\x1b[2J")
    assert "debug-[0-1]  maintenance" in first
    assert second.startswith("later")
    assert "jobs of ada,bob" in second
    assert " from 2" in second


def test_the_doctor_names_what_is_out_of_service() -> None:
    fine = cluster_status(
        ("debug-0", "IDLE+CLOUD", None),
        ("debug-1", "IDLE+CLOUD+DRAIN+POWERED_DOWN", "slurm-stacks quota: no more"),
        ("debug-2", "DOWN+CLOUD", "Not responding"),
    )
    assert list(condition.service(fine, "s")) == []
    bad = cluster_status(
        ("debug-0", "IDLE+CLOUD+FAIL", "fan"),
        ("debug-1", "DOWN+CLOUD+POWERED_DOWN", "fan"),
        ("debug-2", "MISSING", None),
        partition="INACTIVE",
        reservations=[
            {"name": "fix", "start": 0, "end": 9, "nodes": "debug-0", "flags": ["MAINT"], "users": ""}
        ],
    )
    told = [(found.check, f"{found.found} {found.cure}") for found in condition.service(bad, "s")]
    assert {check for check, _ in told} == {"cluster.service"}
    for words, (_, text) in zip(
        (
            ("partition debug is inactive", "state=up"),
            ("by hand: debug-[0-1]: fan", "nodename=debug-[0-1] state=resume"),
            ("does not list debug-2", "scontrol reconfigure"),
            ("reservation fix keeps debug-0 for maintenance", "scontrol delete reservation=fix"),
        ),
        told,
        strict=True,
    ):
        assert all(word in text for word in words), text
