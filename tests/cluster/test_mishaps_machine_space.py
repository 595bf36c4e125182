"""No space left, in the run directory or for the state: one message, and `down` always works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.program import locations
from tests.support.checkout import SMALL, Checkout, until
from tests.support.private_mounts import FILL, PrivateMounts


@pytest.fixture
def mounts() -> Iterator[PrivateMounts]:
    made = PrivateMounts()
    yield made
    made.close()


@pytest.fixture
def checkout(mounts: PrivateMounts, tmp_path: Path) -> Iterator[Checkout]:
    """A checkout whose commands run in the namespace of the mounts."""
    made = Checkout(tmp_path / "a checkout", SMALL, inside=mounts)
    yield made
    assert made.close() == []


@pytest.fixture
def state(checkout: Checkout) -> Path:
    """The folder of all of the checkout's states. A mount on it stays when the folder goes."""
    return checkout.state.parent


@pytest.mark.wide
def test_a_run_directory_without_room(checkout: Checkout, mounts: PrivateMounts, tmp_path: Path) -> None:
    runs = locations.run_root()
    tmp = runs.parent
    # 8.5 MiB: whole ones are counted, and somebody else may have a small file there.
    mounts.replace(tmp, [tmp_path], "8704k", mode="1777")
    refused = checkout.cluster("up")
    assert refused.returncode == 3
    assert f"{runs}: 8 MiB are free, and a running cluster needs 64 MiB. Make room there." in refused.stderr
    assert mounts.run("sh", "-c", f"ls {runs} 2>&1 || true").endswith("No such file or directory\n"), (
        "half made"
    )
    mounts.run("mount", "-o", "remount,size=100m", str(tmp))
    checkout.cluster("up", check=True)
    checkout.execute("srun", "-N2", "true")

    mounts.fill(tmp)
    job = checkout.cluster("exec", "--", "sbatch", "--output=/dev/null", "--wrap", "true")
    assert job.returncode != 0
    checkout.cluster("exec", "--", "srun", "-N5", "--immediate=5", "true", timeout=120)

    def reasons() -> str:
        return "\n".join(node["reason"] or "" for node in checkout.status()["nodes"])

    until(lambda: "machines.json: No space left on device" in reasons(), 120, "the nodes' reason")
    until(lambda: checkout.status()["machines"]["running"] == 0, 120, "machines that end unnoted")

    mounts.empty(tmp)
    assert checkout.execute("sbatch", "--parsable", "--output=/dev/null", "--wrap", "true").strip().isdigit()
    mounts.fill(tmp)
    done = checkout.cluster("down", check=True)
    assert "nothing is left" in done.stderr
    assert checkout.processes() == []
    assert "slurm-stacks" not in mounts.run("ls", str(tmp))


@pytest.mark.wide
def test_no_room_for_the_state(checkout: Checkout, mounts: PrivateMounts, state: Path) -> None:
    mounts.tmpfs(state, "100k")
    refused = checkout.cluster("up")
    assert refused.returncode == 3
    assert f"{state}: 0 MiB are free, and the state of the stacks needs 1 MiB" in refused.stderr
    mounts.tmpfs(state, "3m")
    checkout.cluster("up", check=True)
    checkout.write_stack(SMALL.replace("max: 10", "max: 12"))
    mounts.fill(state)
    full = checkout.cluster("up")
    assert full.returncode == 3
    assert "Traceback" not in full.stderr
    assert checkout.execute("srun", "-N1", "hostname"), "the cluster goes on"
    done = checkout.cluster("down", check=True)
    assert "nothing is left" in done.stderr
    assert checkout.processes() == []


@pytest.mark.wide
def test_the_state_disk_fills_while_a_cluster_comes_up(
    checkout: Checkout, mounts: PrivateMounts, state: Path
) -> None:
    mounts.tmpfs(state, "3m")
    (checkout.folder / "hooks").mkdir()
    hook = checkout.folder / "hooks" / "fill.sh"
    hook.write_text(f"#!/bin/sh\n{FILL} >'{state}/filling' || true\n")
    checkout.write_stack(f"{SMALL}        hooks: [{{role: controller, source: hooks/fill.sh}}]\n")
    failed = checkout.cluster("up")
    assert failed.returncode == 1
    assert f"no space left for {state}/test/" in failed.stderr
    assert "Make room and run the command again: it goes on where it stopped." in failed.stderr
    assert "Traceback" not in failed.stderr
    hook.write_text("#!/bin/sh\n")
    mounts.empty(state)
    checkout.cluster("up", check=True)
    assert checkout.execute("srun", "-N1", "hostname")
    checkout.cluster("down", check=True)
    assert mounts.run("ls", str(state)) == ""
