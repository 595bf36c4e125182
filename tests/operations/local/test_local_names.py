"""Names and addresses of process machines in a cluster's life, with machines whose boot does nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.program import locations
from infra.program.stack import Stack
from localcloud import addresses, network
from node.design.sites import LocalSite
from operations.access import TOOL
from operations.local import cluster, machine_access, namespaces
from tests.support.checkout import until
from tests.support.doubles import DEBUG, design
from tests.support.fake_machines import FakeMachines

DESIGN = design()

needs_views = pytest.mark.skipif(
    (_problem := namespaces.unsupported_reason("127.9.64.0")) is not None,
    reason=f"no hosts namespaces here: {_problem}",
)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachines]:
    machines = FakeMachines(tmp_path, monkeypatch)
    yield machines
    assert machines.close() == []


def launch(local: FakeMachines, host: str) -> int:
    """Launch a node and return the pid of its first process."""
    local.launch(host)
    until(lambda: local.booted(host), 60, host)
    return local.process(host).pid


def seen_by(pid: int) -> dict[str, str]:
    """Return name -> address from the /etc/hosts that a process sees."""
    return network.read_hosts(Path(f"/proc/{pid}/root/etc/hosts"))


def space(pid: int | str) -> str:
    """Return the mount namespace of a process."""
    return str(Path(f"/proc/{pid}/ns/mnt").readlink())


@needs_views
def test_a_machine_that_runs_learns_of_nodes_that_are_added(local: FakeMachines) -> None:
    local.do("cloud-up")
    local.publish(DESIGN)
    pid = launch(local, "debug-0")
    first = addresses.saved_block(local.run.path)
    assert first is not None
    before = seen_by(pid)
    assert before["controller"] == addresses.head_address(first, 0)
    assert before["debug-0"] == addresses.first_node_address(first)
    assert "debug-10" not in before
    assert seen_by(os.getpid()).get("debug-0") != before["debug-0"], "this host knows none of it"

    grown = dataclasses.replace(DEBUG, max=80)
    local.publish(design(grown))
    after = seen_by(pid)
    assert before.items() < after.items(), "who has an address keeps it"
    assert {f"debug-{i}" for i in range(80)} < set(after)
    assert len(set(after.values())) >= 81


@needs_views
def test_the_controllers_daemons_are_on_localhost_and_people_are_on_the_controller(
    local: FakeMachines,
) -> None:
    local.do("cloud-up")
    published = local.publish(DESIGN)
    local.do("head-up")
    assert local.run.current()["settings"]["sha256"] == published["settings"], (
        "the same, from the first up on"
    )
    assert local.run.settings(DESIGN).site.of(LocalSite).loopback_only
    controller = local.process("controller").pid
    assert space(controller) != space("self")
    called = subprocess.run(
        ["nsenter", "--uts", f"--target={controller}", "hostname"], capture_output=True, check=True
    )
    assert called.stdout == b"localhost\n"
    assert "--exec" in machine_access.command(local.run, ["sh"]).argv
    assert machine_access.command(local.run, [TOOL, "status"]).argv == [TOOL, "status"]


@needs_views
def test_an_agent_that_is_started_again_claims_the_same_addresses(local: FakeMachines) -> None:
    local.do("cloud-up")
    local.publish(DESIGN)
    local.do("head-up")
    _stub_tool(local)
    first = addresses.saved_block(local.run.path)
    pid = launch(local, "debug-0")
    assert first in addresses.claimed_blocks()
    agent = local.agent()
    os.kill(agent.pid, signal.SIGKILL)
    # Not the process's end: its last thread closes the socket a moment after the first has ended.
    until(lambda: first not in addresses.claimed_blocks(), 60, "the end of the agent's claim")
    cluster.repair(Stack(local.project, "test"), lambda _text: None)
    assert first in addresses.claimed_blocks()
    assert addresses.saved_block(local.run.path) == first
    assert seen_by(launch(local, "debug-1")) == seen_by(pid)
    local.do("cloud-down")
    until(lambda: first not in addresses.claimed_blocks(), 60, "the end of the claim")


def test_where_the_kernel_refuses_up_says_so_and_machines_start(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(namespaces, "_probe", lambda _address: "unshare: Operation not permitted")
    local.do("cloud-up")
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if "by name" in line]
    assert sentence.startswith("nodes do not know each other by name here, they share this host's /tmp")
    assert "(unshare: Operation not permitted)" in sentence
    local.publish(DESIGN)
    local.do("head-up")
    _stub_tool(local)
    assert not local.run.settings(DESIGN).site.of(LocalSite).loopback_only
    assert space(launch(local, "debug-0")) == space("self")
    assert machine_access.command(local.run, ["sh"]).argv == ["sh"]
    said: list[str] = []
    cluster.repair(Stack(local.project, "test"), said.append)
    assert said == [sentence], "each `up` says so"


def test_a_loopback_with_one_address_has_nodes_that_ports_tell_apart(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(addresses, "usable", lambda _first: False)
    local.do("cloud-up")
    assert "only 127.0.0.1 of the loopback's addresses leads to this host" in capsys.readouterr().err
    local.publish(DESIGN)
    assert local.run.settings(DESIGN).site.first_address is None
    assert space(launch(local, "debug-0")) == space("self")


@needs_views
def test_two_clusters_share_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin their search at the same block."""
    monkeypatch.setattr(addresses, "_seed", lambda _run: 7)
    with contextlib.ExitStack() as stack:
        seen = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            # Each with a folder of clusters of its own, as two users have.
            local = FakeMachines(tmp_path / name, monkeypatch)
            stack.callback(local.close)
            # What the agent, another process, would find first.
            addresses.ensure_block(type(local.run).make(Stack(local.project, "test")).path)
            local.do("cloud-up")
            local.publish(DESIGN)
            seen.append(seen_by(launch(local, "debug-0")))
        one, two = seen
        ours = {"controller", *DEBUG.nodes()}
        assert {one[name] for name in ours}.isdisjoint(two[name] for name in ours)


def _stub_tool(local: FakeMachines) -> None:
    """Make the files that `repair` expects; machines whose boot does nothing do not make them."""
    local.run.tool.parent.mkdir(parents=True, exist_ok=True)
    local.run.tool.touch()
    (local.run.path / "etc").mkdir(exist_ok=True)
    (local.run.path / "etc" / "slurm.conf").touch()


# --- /tmp ------------------------------------------------------------------------------------------------

STACK_FILE = """
config:
  slurm-stacks:cluster:
    provider: local
    hooks: [{{role: compute, source: {tmp}/hook.sh}}]
  slurm-stacks:benchmark:
    script: train.py
    container: {tmp}/bundle
    arguments: [--data={tmp}/data, --out, {tmp}/none, /tmp, "text /tmp", 7]
"""


@pytest.fixture
def in_tmp() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="local-names-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_what_machines_see_in_tmp_besides_their_own_files(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project, home, cache = in_tmp / "a checkout", in_tmp / "home", in_tmp / "cache"
    for folder in (project, home, in_tmp / "elsewhere"):
        folder.mkdir()
    (project / "Pulumi.test.yaml").write_text(STACK_FILE.format(tmp=in_tmp))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    wanted = [locations.run_root(), project, home, cache / "slurm-stacks"]
    wanted += [in_tmp / name for name in ("bundle", "data", "hook.sh", "none")]
    # Python is there, too, where this checkout is in /tmp.
    python = [path for path in {Path(sys.prefix), Path(sys.base_prefix)} if path.is_relative_to("/tmp")]
    wanted += python
    stack = Stack(project, "test")
    assert namespaces.shared_in_tmp(stack) == sorted(map(str, wanted))

    (project / "Pulumi.test.yaml").write_text("config: [\n")
    (tmp_path / "home").symlink_to(in_tmp / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = [locations.run_root(), project, home / "state" / "slurm-stacks", in_tmp / "elsewhere", *python]
    assert namespaces.shared_in_tmp(stack) == sorted(map(str, wanted)), "where a link leads"


@needs_views
def test_a_nodes_tmp_begins_empty_and_ends_with_it(local: FakeMachines) -> None:
    local.do("cloud-up")
    local.publish(DESIGN)
    folder = local.run.path / "tmp" / "debug-0"
    folder.mkdir(parents=True)
    (folder / "former").touch()
    pid = launch(local, "debug-0")
    seen = Path(f"/proc/{pid}/root/tmp")
    assert seen.samefile(folder)
    assert not (folder / "former").exists()
    assert folder.stat().st_mode & 0o7777 == 0o1777
    (seen / "own" / "closed").mkdir(parents=True)
    (seen / "own" / "closed").chmod(0)
    os.kill(pid, signal.SIGKILL)
    until(lambda: list(folder.parent.iterdir()) == [], 60, "the end of a dead machine's files")

    launch(local, "debug-1")
    local.call("terminate", ids=[local.machines()["debug-1"]])
    assert list(folder.parent.iterdir()) == []


@needs_views
def test_a_killed_agents_machines_keep_their_tmp_until_they_end(local: FakeMachines) -> None:
    local.do("cloud-up")
    local.publish(DESIGN)
    local.do("head-up")
    _stub_tool(local)
    pid = launch(local, "debug-0")
    os.kill(local.agent().pid, signal.SIGKILL)
    (Path(f"/proc/{pid}/root/tmp") / "file").touch()
    cluster.repair(Stack(local.project, "test"), lambda _text: None)
    folder = local.run.path / "tmp" / "debug-0"
    assert (folder / "file").exists()
    local.call("terminate", ids=[local.machines()["debug-0"]])
    assert not folder.exists()


@needs_views
def test_the_head_has_this_hosts_tmp(local: FakeMachines) -> None:
    local.do("cloud-up")
    local.publish(DESIGN)
    for role in ("controller", "login"):
        local.launch(role, role=role)
        until(lambda role=role: local.booted(role), 60, role)  # type: ignore[misc]
        assert Path(f"/proc/{local.process(role).pid}/root/tmp").samefile("/tmp")
    assert not (local.run.path / "tmp").exists()
