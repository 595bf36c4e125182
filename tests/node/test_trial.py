"""The trial of a slurm.conf, with the real slurmctld."""

from __future__ import annotations

import contextlib
import getpass
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.design.folders import Folders
from node.design.model import Settings, Site
from node.slurm import conf, trial, version
from node.slurm.configure import configure
from node.system import files, subprocesses
from tests.node.slurm_cluster import PATH, design, needs_slurm, partition

pytestmark = [pytest.mark.cluster, needs_slurm]


@pytest.fixture(scope="module")
def release() -> str:
    return subprocesses.run(["slurmctld", "-V"], {"PATH": PATH}).output.strip()


@pytest.fixture
def site() -> Iterator[Site]:
    # The path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="slurm-test-", dir="/tmp") as root:
        yield Site(root, getpass.getuser(), "localhost", "127.0.0.1", 6817, 6818)


def settings(site: Site, given: dict[str, str]) -> Settings:
    plan = design(partition(nodes=3, static=1), partition("gpu", gpus=2))
    made = Settings(replace(plan, slurm=replace(plan.slurm, settings=given)), site)
    folders = Folders(made)
    for folder in (folders.etc, folders.elastic, folders.state):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return made


def fault(site: Site, release: str, given: dict[str, str]) -> str:
    made = settings(site, given)
    lib, rendered = Path(Folders(made).elastic), conf.render(made, version.parse(release))
    said = trial.fault(made, rendered, lib)
    assert [*lib.iterdir()] == [], "the trial leaves nothing"
    assert [*Path(Folders(made).state).iterdir()] == []
    assert [line for line in _command_lines() if str(lib) in line] == []
    return said


def _command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"MaxArraySize": "100001", "SlurmctldDebug": "quiet", "PrologFlags": "Contain"},
        {"InteractiveStepOptions": "--interactive --pty $SHELL", "Licenses": "matlab:4"},
    ],
)
def test_what_slurmctld_takes(site: Site, release: str, given: dict[str, str]) -> None:
    assert fault(site, release, given) == ""


def test_what_only_the_database_knows_is_left_out(site: Site, release: str) -> None:
    made = settings(site, {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"})
    line = {"QOS": "high", "AllowAccounts": "ml,cv", "DenyQos": "low", "PriorityTier": "3"}
    slurm = replace(made.design.slurm, accounting=True)
    parts = tuple(replace(p, settings=line) for p in made.design.partitions)
    made = replace(made, design=replace(made.design, slurm=slurm, partitions=parts))
    rendered = conf.render(made, version.parse(release))
    assert "QOS=high" in rendered["slurm.conf"]
    assert trial.fault(made, rendered, Path(Folders(made).elastic)) == ""
    kept = trial.trial_conf(rendered["slurm.conf"], Path("/x"), 1)
    assert "PriorityTier=3" in kept
    assert not any(f"{key}=" in kept for key in ("QOS", "AllowAccounts", "DenyQos"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        # of the parser
        ({"NoSuchOption": "1"}, "NoSuchOption"),
        ({"MaxStepCount": "many"}, "MaxStepCount"),
        ({"DebugFlags": "nonsense"}, "Invalid DebugFlag: nonsense"),
        # of slurmctld's start
        ({"SwitchType": "switch/nosuch"}, "switch/nosuch"),
        ({"JobSubmitPlugins": "lua"}, "job_submit"),
        ({"MaxNodeCount": "1"}, "MaxNodeCount"),
        ({"JobContainerType": "job_container/tmpfs"}, "PrologFlags=Contain"),
    ],
)
def test_what_slurmctld_refuses_in_its_own_words(
    site: Site, release: str, given: dict[str, str], words: str
) -> None:
    said = fault(site, release, given)
    assert words in said
    assert "try-" not in said, "paths are those that people know"
    assert "\n" not in said


def test_a_slurmctld_that_never_controls_is_a_fault(
    site: Site, release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\necho 'slurmctld: error: waits'\nsleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(trial, "SLURMCTLD", str(hangs))
    monkeypatch.setattr(trial, "SECONDS", 0.3)
    assert "does not control" in fault(site, release, {})


def test_configure_leaves_the_former_options_in_force(site: Site, release: str) -> None:
    def line(given: dict[str, str], key: str) -> tuple[list[str], str]:
        made = settings(site, given)
        refused = configure(made, release, files.write).refused
        text = Path(Folders(made).slurm_conf).read_text()
        return [line for line in text.splitlines() if line.startswith(f"{key}=")], refused

    assert line({"KillWait": "45"}, "KillWait") == (["KillWait=45"], "")
    kept, refused = line({"KillWait": "46", "SwitchType": "switch/nosuch"}, "KillWait")
    assert kept == ["KillWait=45"]
    assert "switch/nosuch" in refused
    assert line({"KillWait": "46"}, "KillWait") == (["KillWait=46"], "")
    assert line({}, "KillWait") == ([], "")
