"""Machines as namespaces, made for real: what each has for itself, what happens to it, and what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.cloud import cgroups
from infra.local.cloud.machines import Boot
from infra.local.cloud.namespaces import traces
from tests.support.checkout import ROOT, until
from tests.support.namespace_run import ADDRESSES, NamespaceRun, need_namespaces, of_run, seen_on_host
from tests.support.ordinary_user import OrdinaryUser


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NamespaceRun]:
    need_namespaces()
    made = NamespaceRun(tmp_path / "run")
    yield made
    made.close()
    assert of_run(made.path) == {"processes": set(), "folders": set()}
    assert traces(made.path) == []


def test_a_machine_has_a_name_an_address_files_and_processes_of_its_own(run: NamespaceRun) -> None:
    run.start("controller")
    run.start("debug-0")

    assert run.inside("debug-0", "hostname") == "debug-0"
    assert "10.99.1.0/16" in run.inside("debug-0", "ip", "-brief", "address", "show", "eth0")
    assert run.answers("controller", ADDRESSES["debug-0"]) == "debug-0"
    assert run.answers("debug-0", ADDRESSES["controller"]) == "controller"
    assert run.inside("debug-0", "cat", "/etc/mark-of-the-machine") == "debug-0"
    assert run.inside("controller", "cat", "/etc/mark-of-the-machine") == "controller"
    assert not Path("/etc/mark-of-the-machine").exists()
    assert "init.py" in run.inside("debug-0", "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline")
    assert run.inside("debug-0", "readlink", "/proc/self/ns/pid") != str(Path("/proc/self/ns/pid").readlink())
    # This host has got nothing of it.
    assert seen_on_host(run.path) == []


def test_a_machine_that_is_stopped_leaves_nothing(run: NamespaceRun) -> None:
    boot, process = run.start("debug-0")
    children = of_run(run.path)["processes"]
    assert len(children) >= 3
    if not run.rootless:
        assert traces(run.path)
    assert run.maker.stop(boot, process)
    assert not process.alive()
    assert traces(run.path) == []
    assert of_run(run.path)["folders"] == set()
    # What is left is the network, which has no machine any more.
    (holder,) = of_run(run.path)["processes"]
    names = subprocess.run(
        [*run.maker._network.enter(), "ip", "-brief", "link"], capture_output=True, text=True, check=True
    ).stdout
    assert holder != str(process.pid)
    assert {line.split()[0] for line in names.splitlines()} == {"lo", "br0"}


def test_a_killed_machine_takes_what_jobs_left_along(run: NamespaceRun) -> None:
    boot, process = run.start("debug-0")
    run.start("debug-1")
    run.maker.kill(boot, process)
    assert not process.alive()
    assert [line for line in traces(run.path) if line.endswith(boot.id)] == []
    assert run.ask("debug-1", ADDRESSES["debug-0"]) == "no answer"
    # Its name and address are free for the next one.
    run.start("debug-0")


def test_a_frozen_machine_does_not_answer_until_it_is_thawed(run: NamespaceRun) -> None:
    run.start("controller")
    boot, process = run.start("debug-0")
    run.maker.freeze(boot, process)
    assert run.ask("controller", ADDRESSES["debug-0"]) == "no answer"
    assert process.alive()
    run.maker.thaw(boot, process)
    assert run.answers("controller", ADDRESSES["debug-0"]) == "debug-0"


def test_a_machine_that_is_cut_off_lives_without_its_network(run: NamespaceRun) -> None:
    run.start("controller")
    boot, process = run.start("debug-0")
    run.maker.cut(boot, process)
    assert run.ask("controller", ADDRESSES["debug-0"]) == "no answer"
    assert run.answers("debug-0", "127.0.0.1") == "debug-0"
    run.maker.join(boot, process)
    until(lambda: run.answers("controller", ADDRESSES["debug-0"]) == "debug-0", 60, "the network")


def test_another_agent_has_the_same_network_and_ends_machines_of_the_first(run: NamespaceRun) -> None:
    boot, process = run.start("debug-0")
    run.maker = run.another_maker()
    run.start("debug-1")
    assert run.answers("debug-1", ADDRESSES["debug-0"]) == "debug-0"
    assert run.maker.stop(boot, process)
    assert [line for line in traces(run.path) if line.endswith(boot.id)] == []


def test_a_machine_whose_first_process_died_is_cleared(run: NamespaceRun) -> None:
    boot, process = run.start("debug-0")
    os.kill(process.pid, 9)
    until(lambda: not process.alive(), 60, "its end")
    run.maker.clear(boot)
    assert traces(run.path) == []
    assert of_run(run.path)["folders"] == set()


def test_a_machine_that_cannot_start_says_why_and_leaves_nothing(run: NamespaceRun) -> None:
    with pytest.raises(OSError, match="debug-7 has no address"):
        run.maker.start(Boot("m-7", "compute", "debug-7"))
    (run.path / "python3").unlink()
    with pytest.raises(OSError, match=r"boot-debug-0\.log"):
        run.maker.start(Boot("m-8", "compute", "debug-0"))
    assert traces(run.path) == []


def test_a_machine_that_never_registers_runs_and_can_be_stopped(run: NamespaceRun) -> None:
    boot = Boot("m-mute", "compute", "debug-0", registers=False)
    process = run.maker.start(boot)
    assert process.alive()
    assert run.maker.stop(boot, process)


def test_machines_of_root_have_cgroups_of_their_own(run: NamespaceRun) -> None:
    if run.rootless:
        pytest.skip("an ordinary user's machines have no cgroups")
    run.start("debug-0")
    assert len(traces(run.path)) == len(cgroups.hierarchies()) > 0
    for hierarchy in cgroups.hierarchies():
        folder = f"/sys/fs/cgroup/{hierarchy.name}".rstrip("/")
        # Its own cgroup is the root there: nothing of another machine's is to be seen.
        assert "slurm-stacks-" not in run.inside("debug-0", "ls", folder)
        pids = run.inside("debug-0", "cat", f"{folder}/cgroup.procs", f"{folder}/init.scope/cgroup.procs")
        assert "1" in pids.split()


TRIAL = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from infra.local import possible
from tests.support.namespace_run import ADDRESSES, NamespaceRun, of_run
print(possible.way())
run = NamespaceRun(Path(sys.argv[2]) / "run")
try:
    boot, process = run.start("controller")
    run.start("debug-0")
    print(run.answers("controller", ADDRESSES["debug-0"]))
    print(run.inside("controller", "cat", "/etc/mark-of-the-machine"))
    print(run.maker.stop(boot, process))
finally:
    run.close()
print(of_run(run.path))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests above are an ordinary user's already")
def test_an_ordinary_user_makes_machines_in_a_user_namespace(tmp_path: Path) -> None:
    user = OrdinaryUser(tmp_path)
    try:
        can = subprocess.run(user("unshare", "--user", "--map-root-user", "--net", "true"), check=False)
        if can.returncode:
            pytest.skip("this kernel lets no ordinary user make namespaces")
        done = subprocess.run(
            user(sys.executable, "-c", TRIAL, str(ROOT), str(tmp_path)),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        user.close()
    assert done.returncode == 0, done.stderr
    expected = ["rootless", "debug-0", "controller", "True", "{'processes': set(), 'folders': set()}"]
    assert done.stdout.splitlines() == expected
