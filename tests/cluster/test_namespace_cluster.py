"""A cluster of namespace machines: head, login machine and nodes as on a cloud, from zero and back."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infra.local import packages
from infra.local.cloud.namespaces import traces
from infra.node import rpc
from tests.support.checkout import Checkout, until
from tests.support.mishaps import end, until_saved
from tests.support.namespace_run import need_namespaces, seen_on_host
from tests.support.ordinary_user import OrdinaryUser
from tests.support.sshd import missing

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {machines: namespace}
        login: {count: 1}
        partitions:
          - {name: debug, machine: local.small, nodes: {max: 4}, default: true}
        slurm: {suspend_time: 4}
      slurm-stacks:benchmark: {enabled: false}
"""
# In the same clusters, because each takes seconds to come up.
ACCOUNTING = not packages.missing_for_accounting()
if ACCOUNTING:
    STACK = STACK.replace("{suspend_time: 4}", "{suspend_time: 4, accounting: true}")
GREEDY = "x = bytearray(300 * 1024 * 1024)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    need_namespaces()
    checkout = Checkout(tmp_path_factory.mktemp("namespaces") / "a checkout", STACK)
    try:
        checkout.cluster("up", check=True)
        yield checkout
    finally:
        left = checkout.close()
    assert left == []
    assert traces(checkout.run_directory) == []
    assert seen_on_host(checkout.run_directory) == []


def recorded(checkout: Checkout) -> set[str]:
    """The states that the login machine's sacct knows of."""
    return set(checkout.execute("sacct", "-X", "-a", "-n", "--format=State").split())


def states(checkout: Checkout) -> set[str]:
    return set(checkout.execute("sinfo", "--noheader", "--Node", "--format=%T").split())


def job(checkout: Checkout, number: str) -> str:
    text = checkout.execute("scontrol", "--oneliner", "show", "job", number)
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)["JobState"]


def machine(checkout: Checkout, node: str) -> dict[str, Any]:
    """What the local cloud knows of the living machine of this name."""
    answer = rpc.call(str(checkout.run_directory / "cloud" / "agent.sock"), "list", 10.0, tags={"node": node})
    (found,) = [m for m in answer["machines"] if m["state"] == "running"]
    return dict(found)


def test_jobs_run_on_machines_that_came_up_for_them_and_went_again(cluster: Checkout) -> None:
    until(lambda: states(cluster) == {"idle~"}, 120, "a cluster without nodes")
    assert cluster.execute("hostname").strip() == "login-0"

    # The node's own name and address: not this host's.
    script = "echo $SLURMD_NODENAME $(hostname); while [ ! -e seen ]; do sleep 0.1; done"
    with ThreadPoolExecutor() as pool:
        names = pool.submit(cluster.execute, "srun", "-N2", "sh", "-c", script)
        try:
            until(lambda: cluster.status()["machines"]["running"] == 2, 120, "two machines")
        finally:
            cluster.execute("touch", "seen")
        assert sorted(names.result().splitlines()) == ["debug-0 debug-0", "debug-1 debug-1"]
    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    until(lambda: cluster.status()["machines"]["running"] == 0, 120, "zero machines")


@pytest.mark.skipif(not ACCOUNTING, reason="packages for accounting are missing")
def test_sacct_works_where_people_log_in(cluster: Checkout) -> None:
    cluster.execute("srun", "true")
    until(lambda: "COMPLETED" in recorded(cluster), 120, "the record", 0.5)


def test_all_machines_share_home_and_nothing_else(cluster: Checkout) -> None:
    number = cluster.execute(
        "sbatch", "--parsable", "--wrap", "hostname; echo $PWD; touch /etc/of-a-node"
    ).strip()
    until(lambda: job(cluster, number) == "COMPLETED", 120, "the batch job")
    host, folder = cluster.execute("cat", f"slurm-{number}.out").split()
    assert host.startswith("debug-")
    assert folder == cluster.execute("pwd").strip()
    assert folder.startswith("/home/")
    assert cluster.cluster("exec", "--", "test", "-e", "/etc/of-a-node").returncode == 1
    assert not Path("/etc/of-a-node").exists()


def test_exec_passes_input_output_and_status(cluster: Checkout) -> None:
    done = cluster.cluster("exec", "--", "sh", "-c", "cat; echo problem >&2; exit 7", stdin="some text")
    assert (done.stdout, done.returncode) == ("some text", 7)
    assert "problem" in done.stderr
    assert cluster.cluster("exec", "--", "no-such-command").returncode == 127
    assert "slurmctld" in cluster.cluster("logs", "--lines=5").stdout


def test_files_go_to_the_shared_home_and_come_back(cluster: Checkout, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a file").write_text("content\n")
    cluster.cluster("cp", str(data), ":", check=True)
    assert cluster.execute("cat", "data/a file") == "content\n"
    cluster.execute("sh", "-c", "hostname >data/host; hostname >/etc/of-the-login-machine")
    cluster.cluster("cp", ":data/host", ":/etc/of-the-login-machine", str(tmp_path), check=True)
    assert (tmp_path / "host").read_text() == (tmp_path / "of-the-login-machine").read_text() == "login-0\n"
    told = cluster.cluster("cp", ":no-such", str(tmp_path))
    assert (told.returncode, told.stderr) == (1, ":no-such: there is no such file on the login machine\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's machines have no sshd")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_openssh_reaches_the_login_machine_by_the_stanza(cluster: Checkout, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(cluster.cluster("ssh-config", check=True).stdout)
    alias = f"slurm-stacks-{cluster.stack}"

    def works(*words: str) -> str:
        environment = {name: text for name, text in os.environ.items() if name != "SSH_AUTH_SOCK"}
        done = subprocess.run(
            words, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert works("ssh", "-F", str(config), alias, "hostname; sinfo -h -o %P") == "login-0\ndebug*\n"
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    works("scp", "-F", str(config), str(tmp_path / "big"), f"{alias}:by-scp")
    assert cluster.execute("stat", "-c", "%s", "by-scp") == "3000000\n", "it lies in the shared home"
    works("scp", "-F", str(config), f"{alias}:by-scp", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "big").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's machines have no cgroups")
def test_a_job_over_its_memory_is_killed_by_its_cgroup(cluster: Checkout) -> None:
    done = cluster.cluster("exec", "--", "srun", "-N1", "--mem=50", "python3", "-c", GREEDY, timeout=120)
    assert done.returncode != 0
    assert re.search("Out Of Memory|oom-kill", done.stderr), done.stderr


def test_a_controller_that_dies_comes_back_with_its_queue(cluster: Checkout) -> None:
    waits = "while [ ! -e goes-on ]; do sleep 0.1; done; echo whole"
    number = cluster.execute("sbatch", "--parsable", "--wrap", waits).strip()
    until(lambda: job(cluster, number) == "RUNNING", 120, "the job")
    # What it has not written is lost with a power cut.
    until_saved(cluster)
    end(machine(cluster, "controller")["process"]["pid"])
    told = cluster.cluster("exec", "--", "squeue")
    assert "starts it again" in told.stderr
    again = cluster.cluster("up", check=True)
    assert "the controller has ended" in again.stderr
    assert job(cluster, number) == "RUNNING"
    cluster.execute("touch", "goes-on")
    until(lambda: job(cluster, number) == "COMPLETED", 120, "the job")
    assert cluster.execute("cat", f"slurm-{number}.out").strip() == "whole"


def test_a_login_machine_that_died_is_made_anew(cluster: Checkout) -> None:
    end(machine(cluster, "login-0")["process"]["pid"])
    until(lambda: cluster.execute("hostname", check=False).strip() == "controller", 120, "another way in")
    assert "login-0 has ended" in cluster.cluster("up", check=True).stderr
    assert cluster.execute("hostname").strip() == "login-0"


def test_machines_outlive_their_agent(cluster: Checkout) -> None:
    agent = int((cluster.run_directory / "cloud" / "agent.lock").read_text())
    controller = machine(cluster, "controller")["id"]
    end(agent)
    assert cluster.execute("hostname").strip() == "login-0"
    cluster.cluster("up", check=True)
    assert machine(cluster, "controller")["id"] == controller
    assert len(cluster.execute("srun", "-N3", "hostname").split()) == 3


def test_a_machine_that_loses_its_network_is_replaced_and_its_job_runs_again(cluster: Checkout) -> None:
    script = 'hostname; [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || sleep 600'
    number = cluster.execute("sbatch", "--parsable", "--open-mode=append", "--wrap", script).strip()
    until(lambda: job(cluster, number) == "RUNNING", 120, "the job")
    # Until it has told where: it is cut off in the middle of its work.
    until(lambda: cluster.execute("cat", f"slurm-{number}.out", check=False).strip(), 120, "its first word")
    # Where it runs: a node of the test before may be just going.
    first = cluster.execute("squeue", "--noheader", "--format=%N", f"--jobs={number}").strip()
    cluster.chaos("cut", first)
    began = time.monotonic()
    until(lambda: job(cluster, number) == "COMPLETED", 200, "the second run", 0.5)
    print(f"cut off: done again after {time.monotonic() - began:.1f} s")
    ran = cluster.execute("cat", f"slurm-{number}.out").split()
    assert (len(ran), ran[0]) == (2, first)
    assert ran[1] != first


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests above are an ordinary user's already")
def test_an_ordinary_user_has_such_a_cluster_too(tmp_path: Path) -> None:
    user: OrdinaryUser | None = None
    checkout = Checkout(
        tmp_path / "a checkout", STACK, inside=lambda *command: user(*command) if user else list(command)
    )
    checkout.env |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    user = OrdinaryUser(tmp_path)
    try:
        can = subprocess.run(user("unshare", "--user", "--map-root-user", "--net", "true"), check=False)
        if can.returncode:
            pytest.skip("this kernel lets no ordinary user make namespaces")
        checkout.cluster("up", check=True)
        assert sorted(checkout.execute("srun", "-N2", "hostname").split()) == ["debug-0", "debug-1"]
        if ACCOUNTING:
            until(lambda: recorded(checkout) == {"COMPLETED"}, 120, "the record", 0.5)
        findings = checkout.cluster("doctor", "--json").stdout
        assert "in a user namespace" in findings
    finally:
        down = checkout.cluster("down")
        user.close()
    assert down.returncode == 0, down.stderr
    assert "nothing is left" in down.stderr
