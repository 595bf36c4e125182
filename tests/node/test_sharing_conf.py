"""What slurm.conf says of priorities, preemption, and who may use a partition."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from node.design.model import ClusterDesign, SlurmSettings
from node.design.sharing import Account, Priority, Qos
from node.slurm import conf, runtime, sharing_conf
from tests.support.doubles import design, settings

ON = SlurmSettings(accounting=True, priority=Priority())
TEAM = (Account("research"), Account("vision", parent="research"), Account("robots", parent="vision"))


def options(**changes: Any) -> dict[str, object]:
    made = dataclasses.replace(design(), **changes)
    return dict([*sharing_conf.priority(made), *sharing_conf.preemption(made)])


def test_jobs_are_ordered_by_submission_unless_somebody_asks_for_shares() -> None:
    basic = {"PriorityType": "priority/basic"}
    assert options() == basic
    assert options(slurm=dataclasses.replace(ON, accounting=False)) == basic
    assert options(slurm=dataclasses.replace(ON, priority=None)) == basic


def test_shares_order_jobs() -> None:
    found = options(slurm=dataclasses.replace(ON, priority=Priority("INFINITE", "00:01:00", age=7)))
    assert found == {
        "PriorityType": "priority/multifactor",
        "PriorityDecayHalfLife": 0,
        "PriorityCalcPeriod": "00:01:00",
        "PriorityMaxAge": "7-00:00:00",
        "PriorityWeightFairshare": 100000,
        "PriorityWeightQOS": 1000000,
        "PriorityWeightAge": 7,
        "PriorityWeightJobSize": 0,
        "PriorityWeightPartition": 0,
    }


def test_preemption_is_on_where_a_qos_preempts() -> None:
    levels = (Qos("high", preempts=("low",)), Qos("low"))
    preempts = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
    assert options(slurm=ON, qos=levels).items() >= preempts.items()
    assert not preempts.keys() & options(slurm=ON, qos=levels[1:]).keys()
    assert not preempts.keys() & options(qos=levels).keys(), "without accounting nobody has a QOS"


def with_partition(levels: tuple[Qos, ...] = (), **changes: Any) -> ClusterDesign:
    made = design()
    first = dataclasses.replace(made.partitions[0], **changes)
    return dataclasses.replace(
        made, partitions=(first, *made.partitions[1:]), slurm=ON, accounts=TEAM, qos=levels
    )


def test_who_may_use_a_partition() -> None:
    made = with_partition(allow_accounts=("vision",), allow_qos=("normal", "high"), qos="cap")
    assert sharing_conf.of_partition(made, made.partitions[0]) == [
        # Releases before 23.11 do not include the accounts below it.
        ("AllowAccounts", "vision,robots"),
        ("AllowQos", "normal,high"),
        ("QoS", "cap"),
    ]
    assert sharing_conf.with_children(made, ("research",)) == ["research", "vision", "robots"]


@pytest.mark.parametrize("preempting", [False, True])
def test_nothing_of_it_counts_as_changed_by_people(preempting: bool) -> None:
    """What `scontrol show partition` prints of these options is what slurm.conf says."""
    levels = (Qos("high", preempts=("low",)), Qos("low")) if preempting else ()
    made = with_partition(levels, allow_accounts=("vision",), allow_qos=("high",), qos="cap")
    name = made.partitions[0].name
    (line,) = [
        line
        for line in conf.render(settings(Path("/var/tmp/c"), made), (22, 5))["slurm.conf"].splitlines()
        if line.startswith(f"PartitionName={name} ")
    ]
    shown = runtime.shown_partitions(line)[name]
    designed = conf.designed(settings(Path("/var/tmp/c"), made))
    assert shown == designed.partitions[name]
    assert (shown["AllowAccounts"], shown["QoS"]) == ("vision,robots", "cap")
    assert shown.get("PreemptMode", "OFF") == ("REQUEUE" if preempting else "OFF")
