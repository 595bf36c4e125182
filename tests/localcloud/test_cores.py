"""A local machine has as many cores as its type, whoever came first; where none is free it shares as many."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud import cgroups, cores
from localcloud.addresses import claim_name
from localcloud.cloud import Cloud
from localcloud.cores import Cores, Use, uses
from localcloud.fault_injection import FaultInjector
from localcloud.machines import Boot, ProcessRuntime
from node.design.local_cloud import CloudBehaviour
from node.system.processes import ProcessId, with_descendants
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
    sleepers = Sleepers()
    yield sleepers
    sleepers.close()


def folder(parent: Path, run: str) -> Path:
    """A cluster's folder, as the agent has it."""
    made = parent / run / "cloud"
    made.mkdir(parents=True)
    return made


def own(cloud: Cloud) -> dict[str, list[int]]:
    return {m["node"]: m["cores"] for m in cloud.list({})["machines"] if m["state"] == "running"}


def claimed(host: list[int]) -> list[tuple[int, str, int]]:
    return [(use.core, use.run, use.machines) for use in uses() if use.core in host]


def test_each_machine_has_its_number_of_cores_the_least_used_first(host: list[int]) -> None:
    one, other = Cores("one"), Cores("other")
    assert one.take("a", 2) == host[:2]
    assert other.take("b", 2) == [host[0], host[2]], "the free one, and one of the others"
    assert other.take("c", 1) == [host[1]], "evenly: nobody has a third of three while another has a half"
    assert one.take("d", 1) == [host[2]]
    assert one.take("e", 9) == host, "a type with more cores than the host has all of it"
    assert claimed(host) == [
        *((host[0], "one", 2), (host[0], "other", 1)),
        *((host[1], "one", 2), (host[1], "other", 1)),
        *((host[2], "one", 2), (host[2], "other", 1)),
    ]
    one.close()
    assert {run for _, run, _ in claimed(host)} == {"other"}
    other.close()
    assert claimed(host) == []


@pytest.mark.parametrize("machines", range(1, 13))
def test_no_core_has_two_machines_more_than_another(machines: int, host: list[int]) -> None:
    clusters = [Cores("one"), Cores("other")]
    for number in range(machines):
        clusters[number % 2].take(f"m{number}", 1)
    shares = [sum(n for core, _, n in claimed(host) if core == one) for one in host]
    assert sum(shares) == machines
    assert max(shares) - min(shares) <= 1
    for one in clusters:
        one.close()


def test_a_core_that_becomes_free_is_given_out_again(host: list[int]) -> None:
    one, other = Cores("one"), Cores("other")
    assert [one.take(name, 1)[0] for name in "abcd"] == [*host, host[0]]
    assert one.moves() == {}, "a and d share, and no core is free"
    one.give_back("b")
    assert one.moves() == {"a": [host[1]]}
    assert one.moves() == {}, "now all is even"
    assert other.take("x", 2) == host[:2]
    one.give_back("c")
    assert other.moves() == {"x": [host[1], host[2]]}, (
        "another cluster's machine moves, too; of equals the first"
    )
    other.give_back("x")
    one.close()


def test_agents_that_give_out_cores_at_once_do_not_choose_the_same(host: list[int]) -> None:
    clusters = [Cores(f"run{n}") for n in range(3)]
    threads = [threading.Thread(target=cluster.take, args=("m", 1)) for cluster in clusters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(core for core, _, _ in claimed(host)) == host
    for cluster in clusters:
        cluster.close()


def test_an_agent_that_stands_still_keeps_no_other_from_starting_machines(
    host: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "_LOCK", f"cores-lock-{FIRST}")
    monkeypatch.setattr(cores, "LOCK_SECONDS", 0.05)
    stuck = claim_name(cores._LOCK)
    assert stuck is not None
    one = Cores("one")
    assert one.take("a", 1) == host[:1]
    one.close()
    stuck.close()


def test_cores_are_given_out_on_a_host_without_abstract_sockets(
    host: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "claim_name", lambda _name: None)
    one = Cores("one")
    assert [one.take(name, 1)[0] for name in "abcd"] == [*host, host[0]]
    one.give_back("b")
    assert one.moves() == {"a": [host[1]]}
    assert claimed(host) == []


def test_a_claim_names_the_cluster_and_fits_into_a_name() -> None:
    long = Use(FIRST, 4_294_967_294, "f" * 24, 100_000, "c" * 200)
    assert len(f"\0slurm-stacks-{long.name}") <= 107
    read = Use.of(long.name)
    assert read is not None
    assert long.cluster.startswith(read.cluster)
    assert (read.core, read.owner, read.run, read.machines) == (FIRST, 4_294_967_294, "f" * 24, 100_000)
    for wrong in ("127.4.0.0", "core-1", "core:x:0:r:1:c", "core:1:0:r", "cores-lock"):
        assert Use.of(wrong) is None


def test_a_machine_has_its_cores_as_long_as_it_lives(
    host: list[int], tmp_path: Path, maker: Sleepers
) -> None:
    cloud = Cloud(folder(tmp_path, "run"), maker, CloudBehaviour())
    two = {**TAGS, "cpus": "2"}
    first = cloud.launch("a", names(1), 1, "local.medium", two)["machines"][0]["id"]
    until(lambda: own(cloud) == {"debug-0": host[:2]}, 60, "the first machine")
    cloud.launch("b", {"debug-1": "t-debug-1"}, 1, "local.medium", two)
    shared = [host[0], host[2]]
    until(lambda: own(cloud).get("debug-1") == shared, 60, "one that shares")
    cloud.launch("c", {"debug-2": "t-debug-2"}, 1, "local.small", TAGS)
    until(lambda: own(cloud).get("debug-2") == [host[1]], 60, "one that shares, too: with the first")
    assert {boot.host: list(boot.cores) for boot in maker.booted} == {
        "debug-0": host[:2],
        "debug-1": shared,
        "debug-2": [host[1]],
    }
    cloud.terminate([first])
    until(lambda: own(cloud) == {"debug-1": shared, "debug-2": [host[1]]}, 60, "each has its own now")
    assert maker.done == []
    head = {"cluster": "t", "role": "controller"}
    cloud.launch("e", {"controller": "t-controller"}, 1, "local.small", head)
    until(lambda: own(cloud).get("controller") == [], 60, "a machine whose launch says no number")
    cloud.close()
    assert claimed(host) == []


@pytest.mark.parametrize("end", ["terminate", "death", "kill"])
def test_a_machine_that_shares_moves_to_a_core_that_becomes_free(
    host: list[int], tmp_path: Path, maker: Sleepers, end: str
) -> None:
    cloud = Cloud(folder(tmp_path, "run"), maker, CloudBehaviour())
    made = {}
    for number in range(4):
        answer = cloud.launch(str(number), names(1, number), 1, "local.small", TAGS)
        made[number] = answer["machines"][0]["id"]
        until(lambda: len(own(cloud)) == number + 1, 60, "the machine")  # noqa: B023
    assert own(cloud) == {"debug-0": host[:1], "debug-1": host[1:2], "debug-2": host[2:], "debug-3": host[:1]}
    if end == "terminate":
        cloud.terminate([made[2]])
    elif end == "death":
        maker.children[2].kill()
    else:
        FaultInjector.inject(cloud._faults, "kill", "debug-2")
    until(lambda: "debug-2" not in own(cloud), 60, "its end")
    assert own(cloud) == {"debug-0": host[2:], "debug-1": host[1:2], "debug-3": host[:1]}
    assert [what for what in maker.done if what[0].startswith("move")] == [(f"move to {host[2]}", "debug-0")]
    cloud.close()


def test_another_agent_knows_whose_the_cores_are(host: list[int], tmp_path: Path, maker: Sleepers) -> None:
    where = folder(tmp_path, "run")
    cloud = Cloud(where, maker, CloudBehaviour())
    cloud.launch("a", names(1), 1, "local.small", TAGS)
    until(lambda: own(cloud) == {"debug-0": host[:1]}, 60, "the machine")
    cloud._cores.close()  # as the kernel does when the agent is killed
    after = Cloud(where, maker, CloudBehaviour())
    after.launch("b", {"debug-1": "t-debug-1"}, 1, "local.small", TAGS)
    until(lambda: own(after) == {"debug-0": [host[0]], "debug-1": [host[1]]}, 60, "the other core")
    after.close()


def test_an_agent_that_was_killed_between_a_move_and_its_note_has_moved_the_machine() -> None:
    mine = sorted(os.sched_getaffinity(0))
    one = Cores("one", [*mine, FIRST])
    with cores.running_on(mine[-1:]), subprocess.Popen(["sleep", "300"]) as child:
        process = ProcessId.of(child.pid)
        assert one.moved(process, [FIRST]) == mine[-1:], "where it runs, not where the note says"
        assert one.moved(process, [FIRST, FIRST + 1]) == [FIRST, FIRST + 1], "not as many: it left by itself"
        child.kill()
        child.wait()
        assert one.moved(process, [FIRST]) == [FIRST]
    assert one.moved(None, [FIRST]) == [FIRST]


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("", 0), ("-1", 0), ("many", 0)])
def test_a_tag_that_is_no_number_asks_for_none(text: str, count: int) -> None:
    assert cores.wanted({cores.TAG: text}) == count


def test_hyperthreads_come_after_whole_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    pairs = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    assert cores.by_sharing(lambda cpu: pairs[cpu]) == [0, 2, 1, 3]
    assert [list(cores._range(part)) for part in ("3", "4-6")] == [[3], [4, 5, 6]]


LOADER = """
import os, subprocess, sys, threading, time
run = lambda: print(sorted(os.sched_getaffinity(threading.get_native_id())), flush=True)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
subprocess.Popen(["setsid", "sh", "-c", "while :; do sleep 0.01; done"])  # always a new process
run()
time.sleep(600)
"""


def test_all_of_a_process_machine_runs_on_its_cores_and_moves_as_a_whole(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    (tmp_path / "bucket").mkdir()
    (tmp_path / "cloud").mkdir()
    (tmp_path / "bucket" / "loader.py").write_text(LOADER)
    maker = ProcessRuntime(tmp_path, sys.executable)
    boot = Boot("m-1", "compute", "debug-0", cores=(usable[0],))
    process = maker.start(boot)
    log = tmp_path / "log" / "boot-debug-0.log"

    def runs_on() -> set[int]:
        found: set[int] = set()
        for pid in with_descendants([process.pid]):
            for thread in cores._threads(pid):
                try:
                    found |= os.sched_getaffinity(thread)
                except OSError:  # it has ended
                    continue
        return found

    try:
        until(lambda: "]" in log.read_text(), 60, "the machine's word")
        assert log.read_text().strip() == f"[{usable[0]}]"
        until(lambda: len(with_descendants([process.pid])) > 1, 60, "a process below")
        assert runs_on() == {usable[0]}
        assert os.sched_getaffinity(0) == set(usable), "only the machine is bound to them"
        maker.move(boot, process, [usable[-1]])
        assert runs_on() == {usable[-1]}
    finally:
        maker.kill(boot, process)


def test_a_thread_keeps_as_many_of_its_machines_cores_as_it_has_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks = {1: {0, 1}, 2: {1}, 3: {0}, 4: {0, 1, 2, 3}}
    monkeypatch.setattr(cores, "_threads", lambda pid: [pid])
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(masks[thread]))
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, mask: masks.update({thread: set(mask)}))
    cores.move(lambda: list(masks), [0, 1], [0, 2])
    assert masks == {1: {0, 2}, 2: {2}, 3: {0}, 4: {0, 1, 2, 3}}


def test_a_core_that_is_gone_keeps_no_machine_from_starting(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getaffinity(0)
    with cores.running_on([FIRST]):
        assert os.sched_getaffinity(0) == before
    assert f"does not run on its cores {FIRST}" in capsys.readouterr().out
    with cores.running_on([]):
        assert os.sched_getaffinity(0) == before


def test_cgroups_of_both_versions_follow_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In version 1 a group's cores are always among those of the group above: the kernel refuses others."""
    newer, older = tmp_path / "unified" / "m", tmp_path / "cpuset" / "m"
    for group in (newer, older, older / "job"):
        group.mkdir(parents=True)
        (group / "cpuset.cpus").write_text("0,1\n")
    (newer / "cgroup.controllers").write_text("cpuset\n")
    (tmp_path / "freezer" / "m").mkdir(parents=True)
    monkeypatch.setattr(
        cgroups, "_everywhere", lambda: [tmp_path / n for n in ("unified", "cpuset", "freezer")]
    )
    cgroups.set_cores("m", [0, 2])
    assert [(g / "cpuset.cpus").read_text() for g in (newer, older, older / "job")] == ["0,2"] * 3
    assert not (tmp_path / "freezer" / "m" / "cpuset.cpus").exists()
