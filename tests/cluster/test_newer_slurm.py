"""The same code on Slurm 24.11: what it renders and reads, and one elastic job from zero nodes to zero."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcloud import cgroups, nspawn
from localcloud.containers import leftovers
from node.design.names import SUFFIX
from tests.support import newer_slurm
from tests.support.checkout import ROOT, SMALL, Checkout, until
from tests.support.newer_slurm import NewerSlurm, Unavailable

# The first run makes the image, which takes minutes.
pytestmark = [pytest.mark.timeout(900), pytest.mark.wide]

# These run with a real slurmctld and slurmds. Tests of a behaviour of 22.05 alone are left out.
SLURM_TESTS = ("test_slurm_conf_cluster.py", "test_control_cluster.py", "test_pool_submissions_cluster.py")
MACHINES = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {isolation: container, suite: trixie}
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
        slurm: {suspend_time: 4, accounting: false}
      slurm-stacks:benchmark: {enabled: false}
"""
LEFT_OUT = "not in_the_second_of_their_request"


def mounts_of(layers: list[Path]) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if any(str(layer) in line for layer in layers)]


def processes_in(namespace: str) -> list[int]:
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            if str(link.readlink()) == namespace:
                found.append(int(link.parts[2]))
        except OSError:
            continue
    return found


@contextmanager
def kept(pid: int) -> Iterator[None]:
    """Hold this process's namespace, so that the kernel gives its number to no other one meanwhile."""
    descriptor = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
    try:
        yield
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> list[Path]:
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", flush=True)

    try:
        return newer_slurm.layers(say)
    except Unavailable as reason:
        pytest.skip(f"no Slurm 24.11: {reason}")


@pytest.fixture(scope="module")
def newer(made: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewerSlurm]:
    try:
        running = NewerSlurm(made, tmp_path_factory.mktemp("newer"))
    except Unavailable as reason:
        pytest.skip(f"no Slurm 24.11: {reason}")
    namespace = running.namespace
    with kept(running.pid):
        yield running
        running.close()
        assert processes_in(namespace) == []
    assert mounts_of(made) == []


def test_what_is_rendered_is_taken_and_what_slurm_says_is_understood(newer: NewerSlurm) -> None:
    def run(name: str) -> subprocess.CompletedProcess[str]:
        options = ["-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, f"--rootdir={ROOT}"]
        python = str(ROOT / ".venv" / "bin" / "python")
        return newer.run(
            *(python, "-B", "-m", "pytest", *options, str(ROOT / "tests" / "node" / name)),
            env={"PYTHONPATH": str(ROOT)},
            timeout=600,
        )

    with ThreadPoolExecutor() as pool:
        for done in pool.map(run, SLURM_TESTS):
            assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
            assert "skipped" not in done.stdout


def test_an_elastic_job_from_nothing_to_nothing(
    newer: NewerSlurm, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = newer.work
    checkout = Checkout(work / "a checkout", SMALL, inside=newer.command)
    checkout.env |= {"XDG_CACHE_HOME": str(work / "cache"), "HOME": "/root"}

    def states() -> set[str]:
        return set(checkout.execute("sinfo", "--noheader", "--Node", "--format=%T").split())

    up = checkout.cluster("up", check=True)
    assert "slurm-wlm 24.11." in up.stdout, "the version in the outputs"
    assert checkout.execute("scontrol", "--version").startswith("slurm-wlm 24.11.")
    assert states() == {"idle~"}

    out = work / "out"
    script = f"srun printenv SLURMD_NODENAME; while [ ! -e '{work}/seen' ]; do sleep 0.1; done"
    checkout.execute("sbatch", f"--output={out}", "-N2", "--wrap", script)
    until(lambda: out.exists() and sorted(out.read_text().split()) == ["debug-0", "debug-1"], 120, "the job")
    status = checkout.status()
    assert status["machines"]["running"] == 2
    assert [partition["up"] for partition in status["partitions"]] == [2]
    (work / "seen").touch()
    until(lambda: states() == {"idle~"}, 120, "zero nodes")
    until(lambda: checkout.status()["machines"]["running"] == 0, 120, "zero machines")

    down = checkout.cluster("down", check=True)
    assert "nothing is left" in down.stderr
    assert checkout.processes() == []
    assert not (newer.root / checkout.run_directory.relative_to("/")).exists()


def test_a_cluster_of_machines_that_run_it(made: list[Path], tmp_path: Path) -> None:
    """The machines boot from their user data on, as on the clouds."""
    assert made
    checkout = Checkout(tmp_path / "a checkout", MACHINES)
    try:
        up = checkout.cluster("up", check=True, timeout=600)
        assert "slurm-wlm 24.11." in up.stdout
        names = checkout.execute("srun", "-N2", "sh", "-c", "getent hosts debug-1; slurmd -V").splitlines()
        found = sorted(line.split() for line in names if line.startswith("10."))
        # The other node knows the short name. The node itself has its full name as well.
        assert found == [["10.99.1.1", "debug-1"], ["10.99.1.1", f"debug-1.test.{SUFFIX}", "debug-1"]]
        assert sum(line.startswith("slurm-wlm 24.11.") for line in names) == 2
        assert "nothing is left" in checkout.cluster("down", check=True).stderr
    finally:
        assert checkout.close() == []
    assert leftovers(checkout.run_directory) == []


def test_a_test_that_is_killed_leaves_no_mount_and_no_process(made: list[Path], tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from tests.support.newer_slurm import NewerSlurm
inside = NewerSlurm([Path(layer) for layer in sys.argv[2:]], Path(sys.argv[1]))
print(inside.namespace, flush=True)
inside.run("sh", "-c", "touch $0/runs; sleep 300 & exec sleep 300", sys.argv[1], timeout=200)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), *map(str, made)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        assert killed.stdout
        namespace = killed.stdout.readline().strip()
        until((tmp_path / "runs").exists, 120, "a command inside")
        until(lambda: len(processes_in(namespace)) >= 3, 120, "its processes inside")
        assert mounts_of(made) == [], "nobody else sees its mounts"
        with kept(processes_in(namespace)[0]):
            killed.send_signal(signal.SIGKILL)
            until(lambda: processes_in(namespace) == [], 120, "the end of all that ran inside")
    # A machine whose starter was killed leaves an empty cgroup.
    assert cgroups.remove(lambda: cgroups.of(nspawn.group(f"newer-{killed.pid}"))) == []
    assert mounts_of(made) == []
