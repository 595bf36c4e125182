"""Options of slurm.conf that a stack file gives: how they join ours, and which of them are in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from node.design.model import Settings, Site
from node.slurm import conf, in_force, own_settings, runtime, trial
from node.slurm.in_force import Given
from tests.node.slurm_cluster import design, partition

RELEASE = "slurm-wlm 22.05.8"


def settings(of_all: dict[str, str] | None = None, of_part: dict[str, str] | None = None) -> Settings:
    plan = design(partition(nodes=3), partition("gpu", gpus=2))
    parts = tuple(replace(p, settings=(of_part or {}) if p.name == "gpu" else {}) for p in plan.partitions)
    plan = replace(plan, partitions=parts, slurm=replace(plan.slurm, settings=of_all or {}))
    return Settings(plan, Site("/run/x", "slurm", "head", "10.0.0.1", 6817, 6818))


def lines(given: Settings) -> list[str]:
    return conf.render(given, (24, 11))["slurm.conf"].splitlines()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"MaxArraySize": "5"}, {"MaxArraySize=5"}),
        ({"KillWait": "45"}, {"KillWait=45"}),
        ({"DebugFlags": "Backfill,power"}, {"DebugFlags=Power,Backfill"}),
        ({"PrivateData": "jobs"}, {"PrivateData=jobs"}),
        ({"MailDomain": "a b"}, {'MailDomain="a b"'}),
        ({"AuthInfo": "ttl=60"}, {"AuthInfo=socket=/run/x/run/munge.sock,cred_expire=30,ttl=60"}),
        (
            {"SchedulerParameters": "defer, bf_window=10"},
            {"SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=5,defer,bf_window=10"},
        ),
    ],
)
def test_an_option_joins_ours(given: dict[str, str], expected: set[str]) -> None:
    before, after = lines(settings()), lines(settings(given))
    assert {line for line in after if line not in before} == expected
    keys = [line.partition("=")[0] for line in after]
    assert [keys.count(key) for key in given] == [1]


def test_an_option_of_ours_goes_that_cannot_stand_beside_the_stack_files() -> None:
    machines = settings()
    machines = replace(machines, design=replace(machines.design, isolation="vm"))
    assert "PropagateResourceLimitsExcept=MEMLOCK" in lines(machines)
    given = Given({"PropagateResourceLimits": "NONE"}).put_in(machines)
    assert [line for line in lines(given) if line.startswith("Propagate")] == ["PropagateResourceLimits=NONE"]


@pytest.mark.parametrize("option", ["DefMemPerNode", "DefMemPerGPU", "DefMemPerCPU"])
def test_a_partitions_line_has_one_default_of_memory(option: str) -> None:
    every = lines(settings(of_part={option: "77", "PriorityTier": "4"}))
    (debug,) = (line for line in every if line.startswith("PartitionName=debug"))
    (gpu,) = (line for line in every if line.startswith("PartitionName=gpu"))
    assert gpu.count("DefMem") == 1
    assert {f"{option}=77", "PriorityTier=4"} <= set(gpu.split())
    assert "PriorityTier" not in debug


@pytest.mark.parametrize("value", ["a\nb", 'a"b', "a#b", "a\\", " a", "a ", "", "a\u2028b", "a\x85b", "\x00"])
def test_no_value_becomes_another_line(value: str) -> None:
    for given in (settings({"MailDomain": value}), settings(of_part={"AllowGroups": value})):
        with pytest.raises(ValueError, match="cannot hold"):
            lines(given)


def test_what_people_change_at_run_time_wins() -> None:
    designed = conf.designed(settings({"DebugFlags": "Backfill", "SlurmctldDebug": "debug"}))
    assert designed.controller["DebugFlags"] == "Power,Backfill"
    assert designed.controller["SlurmctldDebug"] == "debug"
    kept = runtime.Kept(controller={"DebugFlags": "Steps"}, partitions={"gpu": {"PriorityTier": "9"}})
    given = settings({"DebugFlags": "Backfill"}, {"PriorityTier": "4"})
    text = conf.render(given, (24, 11), kept=kept)["slurm.conf"]
    assert "DebugFlags=Steps\n" in text
    assert "PriorityTier=9" in text
    assert "PriorityTier=4" not in text


class Tries:
    """Tries settings: those fail that have one of `bad`."""

    def __init__(self, *bad: str) -> None:
        self.bad, self.tried = bad, list[dict[str, str]]()

    def __call__(self, given: Settings) -> str:
        self.tried.append(dict(given.design.slurm.settings))
        return "; ".join(f"{key} is bad" for key in self.bad if key in given.design.slurm.settings)


def chosen(
    folder: Path, of_all: dict[str, str], tries: Callable[[Settings], str], release: str = RELEASE
) -> tuple[dict[str, str], str]:
    given = settings(of_all, {"PriorityTier": "4"} if of_all else {})
    made, refused = in_force.choose(given, release, folder, tries)
    assert Given.of(in_force.settings_in_force(given, folder)) == Given.of(made)
    assert made.design.partitions[1].settings == ({"PriorityTier": "4"} if made.design.slurm.settings else {})
    return made.design.slurm.settings, refused


def test_new_options_are_tried_once_and_bad_ones_leave_the_former_in_force(tmp_path: Path) -> None:
    tries = Tries("B")
    assert chosen(tmp_path, {}, tries) == ({}, "")
    assert chosen(tmp_path, {"A": "1"}, tries) == ({"A": "1"}, "")
    assert chosen(tmp_path, {"A": "1"}, tries) == ({"A": "1"}, "")
    assert tries.tried == [{"A": "1"}]
    former, refused = chosen(tmp_path, {"A": "2", "B": "1"}, tries)
    assert former == {"A": "1"}
    assert "B is bad" in refused
    assert "the former ones stay in force" in refused
    assert "`up`" in refused
    # A start of slurmctld tries again, and comes to the same.
    assert chosen(tmp_path, {"A": "2", "B": "1"}, tries) == (former, refused)
    assert chosen(tmp_path, {"A": "2"}, tries) == ({"A": "2"}, "")
    tried = len(tries.tried)
    assert chosen(tmp_path, {}, tries) == ({}, "")
    assert len(tries.tried) == tried
    assert in_force.read(tmp_path) is None


def test_bad_options_of_a_new_cluster_leave_none_in_force(tmp_path: Path) -> None:
    former, refused = chosen(tmp_path, {"B": "1"}, Tries("B"))
    assert former == {}
    assert "none of them is in force" in refused


def test_another_release_tries_again_what_is_in_force(tmp_path: Path) -> None:
    tries = Tries()
    chosen(tmp_path, {"A": "1"}, tries)
    newer = Tries("A")
    former, refused = chosen(tmp_path, {"A": "1"}, newer, "slurm-wlm 24.11.5")
    assert (former, newer.tried) == ({}, [{"A": "1"}])
    assert "24.11.5" in refused


@pytest.mark.parametrize("text", ["", "{", "[]", '{"release": 1}', "\xff"])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / in_force.RECORD).write_text(text, encoding="latin-1")
    tries = Tries()
    assert chosen(tmp_path, {"A": "1"}, tries) == ({"A": "1"}, "")
    assert tries.tried == [{"A": "1"}]


def test_the_trial_shares_nothing_with_the_cluster(tmp_path: Path) -> None:
    given = settings({"SlurmctldPrimaryOnProg": "/apps/on", "SlurmctldDebug": "quiet", "KillWait": "45"})
    given = replace(given, design=replace(given.design, slurm=replace(given.design.slurm, accounting=True)))
    before = conf.render(given, (22, 5))["slurm.conf"]
    after = dict(
        line.split("=", 1)
        for line in trial.trial_conf(before, tmp_path, 4711).splitlines()
        if "=" in line and not line.startswith(("#", "NodeName", "PartitionName"))
    )
    assert after["SlurmctldPort"] == "4711"
    assert after["KillWait"] == "45"
    of_ours = {key for key, value in after.items() if "/run/x" in value}
    assert of_ours == {
        "SlurmdSpoolDir",
        "SlurmdPidFile",
        "SlurmdLogFile",
        "TmpFS",
    }
    assert not {key for key in after if key.startswith("AccountingStorage")} - {"AccountingStorageType"}
    assert own_settings.words("a, b,,c=1 ") == ["a", "b", "c=1"]
