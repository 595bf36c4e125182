"""The project's own local stack under the real CLI: preview, up, no change, a change, destroy; real Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.program import owner
from infra.program.stack import Stack
from operations.local import system_packages
from tests.support.checkout import SMALL, Checkout

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(system_packages.missing()), reason=f"missing packages: {', '.join(system_packages.missing())}"
    ),
]


class Engine:
    """Runs `pulumi` in a checkout."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout

    @property
    def env(self) -> dict[str, str]:
        # The CLI needs uv, which the project's toolchain names, on PATH.
        env = {**self.checkout.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return env | {name: value for name, value in os.environ.items() if name.startswith("PULUMI_")}

    def __call__(self, verb: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["pulumi", *verb.split(), "--non-interactive", "--stack", self.checkout.stack, *arguments],
            cwd=self.checkout.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def cluster(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run `./cluster` with the CLI on PATH."""
        return self.checkout.cluster(*arguments, env={**self.env, **extra})


@pytest.fixture
def engine(pulumi: None, tmp_path: Path) -> Iterator[Engine]:
    checkout = Checkout(tmp_path / "a checkout", SMALL)
    yield Engine(checkout)
    left = checkout.processes()
    if checkout.run_directory.exists() or left:
        from operations.local.cluster import cloud_down

        cloud_down(Stack(checkout.folder, checkout.stack))
    assert left == []


def test_preview_up_again_change_and_destroy(engine: Engine, backend: str) -> None:
    checkout = engine.checkout
    engine("stack init")
    engine("preview")
    assert not checkout.run_directory.exists(), "a preview starts and claims nothing"

    engine("up", "--yes", "--skip-preview")
    assert (checkout.run_directory / "owner").read_text().strip() == backend
    assert "debug" in checkout.execute("sinfo", "-h", "-o", "%P %a")
    assert checkout.execute("srun", "-N2", "hostname", timeout=60).count("\n") == 2

    engine("preview", "--expect-no-changes")
    engine("up", "--yes", "--skip-preview", "--expect-no-changes")

    refused = engine.cluster("up", PATH="/usr/bin:/bin")
    assert refused.returncode == 3
    assert f"PULUMI_BACKEND_URL={backend} pulumi destroy --stack {checkout.stack}" in refused.stderr

    again = engine.cluster("up")
    assert again.returncode == 0, again.stderr

    checkout.write_stack(SMALL.replace("max: 10", "max: 12"))
    engine("up", "--yes", "--skip-preview")
    assert checkout.execute("sinfo", "-h", "-o", "%D").strip() == "12"

    engine("destroy", "--yes", "--skip-preview")
    assert checkout.processes() == []
    assert not checkout.run_directory.exists()


def test_cluster_drives_the_cli_and_writes_nothing_into_the_checkout(engine: Engine) -> None:
    checkout = engine.checkout
    stack_file = checkout.folder / f"Pulumi.{checkout.stack}.yaml"
    before = stack_file.read_bytes()
    up = engine.cluster("up")
    assert up.returncode == 0, up.stderr
    assert (checkout.run_directory / "owner").read_text().strip() == owner.IN_CHECKOUT
    assert stack_file.read_bytes() == before
    down = engine.cluster("down")
    assert down.returncode == 0, down.stderr
    assert stack_file.read_bytes() == before
    assert not checkout.run_directory.exists()


def test_the_cli_refuses_what_the_embedded_runner_brought_up(engine: Engine, backend: str) -> None:
    checkout = engine.checkout
    up = checkout.cluster("up", env={"PATH": "/usr/bin:/bin"})
    assert up.returncode == 0, up.stderr
    engine("stack init")
    for verb in ("preview", "up --yes --skip-preview"):
        refused = engine(verb, check=False)
        assert refused.returncode != 0
        assert f"./cluster down --stack {checkout.stack}" in refused.stdout + refused.stderr
    assert "debug" in checkout.execute("sinfo", "-h", "-o", "%P")
    down = engine.cluster("down")
    assert down.returncode == 0, down.stderr
    assert not checkout.run_directory.exists()
