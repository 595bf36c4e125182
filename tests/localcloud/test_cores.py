"""Local machines have CPU cores of their own, as many as their type says, where this host has enough."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud import cores, init
from localcloud.cloud import Cloud
from localcloud.cores import Cores
from localcloud.limits import Limits
from localcloud.machines import Boot, ProcessRuntime
from tests.support.checkout import until
from tests.support.sleepers import Sleepers, names

# The numbers are unlike any real core's and differ for each process, because all clusters see the claims.
FIRST = 70000 + 8 * os.getpid()
TAGS = {"cluster": "t", "role": "compute", "cpus": "1"}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A host with three cores."""
    made = [FIRST, FIRST + 1, FIRST + 2]
    monkeypatch.setattr(cores, "by_sharing", lambda _siblings: made)
    return made


@pytest.fixture
def maker() -> Iterator[Sleepers]:
    made = Sleepers()
    yield made
    made.close()


def own(cloud: Cloud) -> dict[str, list[int]]:
    return {m["node"]: m["cores"] for m in cloud.list({})["machines"] if m["state"] == "running"}


def test_two_clusters_of_a_host_never_have_the_same_core(host: list[int]) -> None:
    one, other = Cores(), Cores()
    assert one.take(2) == host[:2]
    assert other.take(2) == [], "all or none: the one that is left would not be enough"
    assert other.take(1) == [host[2]]
    assert one.take(1) == []
    one.give_back([host[0]])
    assert other.take(1) == [host[0]]
    one.give_back(host)
    other.give_back(host)
    assert one.take(3) == host
    one.give_back(host)


def test_a_machine_has_its_cores_as_long_as_it_lives(
    host: list[int], tmp_path: Path, maker: Sleepers
) -> None:
    cloud = Cloud(tmp_path, maker, Limits())
    two = {**TAGS, "cpus": "2"}
    first = cloud.launch("a", names(1), 1, "local.medium", two)["machines"][0]["id"]
    until(lambda: own(cloud) == {"debug-0": host[:2]}, 60, "the first machine")
    cloud.launch("b", {"debug-1": "t-debug-1"}, 1, "local.medium", two)
    until(lambda: own(cloud) == {"debug-0": host[:2], "debug-1": []}, 60, "one for which too few are left")
    cloud.launch("c", {"debug-2": "t-debug-2"}, 1, "local.small", TAGS)
    until(lambda: own(cloud).get("debug-2") == [host[2]], 60, "one for which there is a core")
    assert {boot.host: boot.cores for boot in maker.booted} == {
        "debug-0": tuple(host[:2]),
        "debug-1": (),
        "debug-2": (host[2],),
    }
    cloud.terminate([first])
    maker.children[2].kill()
    until(lambda: "debug-2" not in own(cloud), 60, "the death to be seen")
    cloud.launch("d", {"debug-3": "t-debug-3"}, 1, "local.medium", two)
    until(lambda: own(cloud).get("debug-3") == host[:2], 60, "one that has what the first gave back")
    head = {"cluster": "t", "role": "controller"}
    cloud.launch("e", {"controller": "t-controller"}, 1, "local.small", head)
    until(lambda: own(cloud).get("controller") == [], 60, "a machine whose launch says no number")
    cloud.close()
    free = Cores()
    assert free.take(3) == host
    free.give_back(host)


def test_another_agent_knows_whose_the_cores_are(host: list[int], tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, Limits())
    cloud.launch("a", names(1), 1, "local.small", TAGS)
    until(lambda: own(cloud) == {"debug-0": host[:1]}, 60, "the machine")
    cloud._cores.give_back(host)  # as the kernel does when the agent is killed
    after = Cloud(tmp_path, maker, Limits())
    after.launch("b", {"debug-1": "t-debug-1"}, 1, "local.small", TAGS)
    until(lambda: own(after) == {"debug-0": [host[0]], "debug-1": [host[1]]}, 60, "the other core")
    after.close()


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("", 0), ("-1", 0), ("many", 0)])
def test_a_tag_that_is_no_number_asks_for_none(text: str, count: int) -> None:
    assert cores.wanted({cores.TAG: text}) == count


def test_hyperthreads_come_after_whole_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    pairs = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    assert cores.by_sharing(lambda cpu: pairs[cpu]) == [0, 2, 1, 3]
    assert [list(cores._range(part)) for part in ("3", "4-6")] == [[3], [4, 5, 6]]


def test_all_of_a_process_machine_runs_on_its_cores(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    (tmp_path / "bucket").mkdir()
    (tmp_path / "cloud").mkdir()
    (tmp_path / "bucket" / "loader.py").write_text(
        "import os, subprocess, time\n"
        "assert 'SLURM_STACKS_CORES' not in os.environ\n"
        "subprocess.run(['grep', 'Cpus_allowed_list', '/proc/self/status'])\n"
        "time.sleep(600)\n"
    )
    maker = ProcessRuntime(tmp_path, sys.executable)
    boot = Boot("m-1", "compute", "debug-0", cores=(core,))
    process = maker.start(boot)
    log = tmp_path / "log" / "boot-debug-0.log"
    try:
        until(lambda: "Cpus_allowed_list" in log.read_text(), 60, "the machine's word")
        assert log.read_text().split() == ["Cpus_allowed_list:", str(core)]
    finally:
        maker.kill(boot, process)


def test_a_core_that_is_gone_keeps_no_machine_from_starting() -> None:
    code = f"from localcloud.init import take_cores; take_cores('{FIRST}'); print('started')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "started"
    assert f"does not have cores {FIRST} of its own" in done.stdout
    init.take_cores("")  # on any
