"""The local cloud's rules: quota, capacity, errors, boot times and shares; and changes of the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.behaviour import (
    ERRORS,
    LaunchAllowance,
    RunningMachine,
    allowed,
    boot_seconds,
    changed,
    refusal,
    registers,
)
from localcloud.machines import CloudError
from node.design.local_cloud import CloudBehaviour
from node.system.codec import to_json
from tests.support import texts

PARTITIONS, ZONES = ("debug", "gpu"), (None, "a", "b")
NUMBER = st.integers(0, 6)
LIMITS = st.builds(
    CloudBehaviour,
    quota_nodes=st.none() | NUMBER,
    quota_gpus=st.none() | NUMBER,
    capacity=st.dictionaries(st.sampled_from(["debug", "gpu", "debug/a", "debug/b", "gpu/a"]), NUMBER),
)
WISH = st.tuples(st.sampled_from(PARTITIONS), st.sampled_from(ZONES), st.integers(0, 8), st.integers(0, 4))


def exceeded(limits: CloudBehaviour, living: list[RunningMachine]) -> list[str]:
    """Count these machines independently, and return the limits that they exceed."""
    found = []
    if limits.quota_nodes is not None and len(living) > limits.quota_nodes:
        found.append("quota_nodes")
    if limits.quota_gpus is not None and sum(m.gpus for m in living) > limits.quota_gpus:
        found.append("quota_gpus")
    for pool, most in limits.capacity.items():
        partition, _, zone = pool.partition("/")
        mine = [m for m in living if m.partition == partition and (not zone or m.zone == zone)]
        if len(mine) > most:
            found.append(pool)
    return found


@given(LIMITS, st.lists(WISH, max_size=8))
def test_no_limit_is_ever_exceeded_and_nothing_is_held_back(
    limits: CloudBehaviour, wishes: list[Any]
) -> None:
    living: list[RunningMachine] = []
    for partition, zone, wanted, gpus in wishes:
        found = allowed(limits, living, wanted, gpus, partition, zone)
        assert 0 <= found.count <= wanted
        machine = RunningMachine(partition, zone, gpus)
        living += [machine] * found.count
        assert exceeded(limits, living) == []
        if found.count < wanted:
            assert exceeded(limits, [*living, machine]) != [], "one more would have been too much"
            assert found.message
            quota = {"quota_nodes", "quota_gpus"} & set(exceeded(limits, [*living, machine]))
            assert found.code == "InsufficientCapacity" or (found.code == "QuotaExceeded" and quota)
        else:
            assert found == LaunchAllowance(wanted)


@given(LIMITS, LIMITS, st.lists(WISH, max_size=4), WISH)
def test_limits_below_what_lives_allow_nothing_more(
    before: CloudBehaviour, after: CloudBehaviour, wishes: list[Any], wish: Any
) -> None:
    """A quota that is lowered while machines run ends none of them, and allows no negative number."""
    living: list[RunningMachine] = []
    for partition, zone, wanted, gpus in wishes:
        living += [RunningMachine(partition, zone, gpus)] * allowed(
            before, living, wanted, gpus, partition, zone
        ).count
    partition, zone, wanted, gpus = wish
    assert 0 <= allowed(after, living, wanted, gpus, partition, zone).count <= wanted


def test_the_cause_names_the_limit_that_binds() -> None:
    living = [
        RunningMachine("debug", "a", 0),
        RunningMachine("debug", "b", 0),
        RunningMachine("gpu", None, 4),
    ]
    limits = CloudBehaviour(quota_nodes=9, quota_gpus=8, capacity={"debug": 5, "debug/a": 2})
    assert allowed(limits, living, 9, 0, "debug", "a") == LaunchAllowance(
        1, "InsufficientCapacity", "pool debug/a has 2 machines: 1 run, 1 left"
    )
    assert allowed(limits, living, 9, 0, "debug", None) == LaunchAllowance(
        3, "InsufficientCapacity", "pool debug has 5 machines: 2 run, 3 left"
    )
    assert allowed(limits, living, 9, 4, "gpu", None) == LaunchAllowance(
        1, "QuotaExceeded", "quota of 8 GPUs would be exceeded: 4 used, 4 left"
    )
    assert allowed(limits, living, 9, 0, "gpu", "a") == LaunchAllowance(
        6, "QuotaExceeded", "quota of 9 machines would be exceeded: 3 run, 6 left"
    )


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_hits_the_calls_of_its_class(kind: str) -> None:
    limits = CloudBehaviour(api_error=kind)
    for method in ("launch", "available_capacity"):
        error = refusal(limits, method)
        assert error is not None
        assert error.code == ERRORS[kind][0]
        assert kind in str(error)
    for method in ("list", "terminate"):
        assert (refusal(limits, method) is not None) == (kind in ("permission", "throttled"))
    assert refusal(CloudBehaviour(), "launch") is None


@given(texts.text(max_size=8), st.floats(0, 100), st.floats(0, 100))
def test_a_boot_takes_its_delay_and_a_part_of_the_spread(machine: str, delay: float, spread: float) -> None:
    seconds = boot_seconds(CloudBehaviour(boot_delay=delay, boot_spread=spread), machine)
    assert delay <= seconds <= delay + spread
    assert seconds == boot_seconds(CloudBehaviour(boot_delay=delay, boot_spread=spread), machine)


def test_boots_differ() -> None:
    limits = CloudBehaviour(boot_delay=1, boot_spread=10)
    times = {boot_seconds(limits, f"{n} debug-{n}") for n in range(20)}
    assert len(times) == 20
    assert max(times) - min(times) > 3, "a spread that is used"


@given(texts.text(max_size=8))
def test_a_share_of_none_and_of_all(machine: str) -> None:
    assert registers(CloudBehaviour(), machine)
    assert not registers(CloudBehaviour(never_register=1.0), machine)


def test_a_share_is_a_share_and_the_same_again() -> None:
    limits = CloudBehaviour(never_register=0.3)
    fates = [registers(limits, f"{n} debug-0") for n in range(1000)]
    assert 0.25 < fates.count(False) / 1000 < 0.35
    assert fates == [registers(limits, f"{n} debug-0") for n in range(1000)]
    more = [registers(replace(limits, never_register=0.5), f"{n} debug-0") for n in range(1000)]
    assert not any(late and not early for early, late in zip(fates, more, strict=True))


def test_settings_are_changed_and_cleared() -> None:
    limits = changed(
        CloudBehaviour(), {"boot_delay": 3, "quota_nodes": 2, "capacity.debug": 4, "capacity.gpu/a": 0}
    )
    assert limits == CloudBehaviour(boot_delay=3.0, quota_nodes=2, capacity={"debug": 4, "gpu/a": 0})
    limits = changed(limits, {"capacity.debug": None, "quota_nodes": None, "boot_delay": None})
    assert limits == CloudBehaviour(capacity={"gpu/a": 0})
    assert changed(limits, {"capacity": {"debug": 1}}) == CloudBehaviour(capacity={"debug": 1})
    assert changed(limits, {"capacity": None}) == CloudBehaviour()
    assert changed(limits, to_json(CloudBehaviour(api_error="quota"))) == CloudBehaviour(api_error="quota")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quota": 1}, "no limit is called 'quota'"),
        ({"capacity.": 1}, "no limit is called"),
        ({"quota_nodes": 1.5}, "quota_nodes: int"),
        ({"quota_nodes": -1}, "quota_nodes: -1 is not 0 or more"),
        ({"quota_nodes": True}, "quota_nodes: int"),
        ({"boot_delay": "5"}, "boot_delay: float"),
        ({"boot_delay": float("nan")}, "boot_delay: nan"),
        ({"list_lag": float("inf")}, "list_lag: inf"),
        ({"never_register": 1.01}, "more than 1"),
        ({"api_error": "thunder"}, "'thunder' is none of quota, capacity"),
        ({"capacity.debug": -1}, "capacity.debug: -1"),
        ({"capacity.debug": "3"}, "capacity.debug: int"),
        ({"capacity": 3}, "an object is expected"),
    ],
)
def test_wrong_settings_are_refused_and_change_nothing(changes: dict[str, Any], said: str) -> None:
    limits = CloudBehaviour(quota_nodes=5, capacity={"debug": 1})
    before = to_json(limits)
    with pytest.raises(CloudError, match=said) as caught:
        changed(limits, {"boot_spread": 2.0, **changes})
    assert caught.value.code == "InvalidRequest"
    assert to_json(limits) == before
