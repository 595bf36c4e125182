"""Every command that the documentation shows is run as it stands there, or is marked with what it needs."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import shipped
from tests.support.checkout import ROOT, Checkout
from tests.support.documents import Block, blocks, pages

BLOCKS = [block for page in pages() for block in blocks(page)]
RUNNABLE = [block for block in BLOCKS if block.needs is None]
PICTURES = ROOT / "docs" / "pictures"
# These commands work without a cluster, or fail with the right message.
NO_CLUSTER = ("init", "up", "down", "plan", "doctor", "report", "--help")


def only_plans(block: Block) -> bool:
    """Return whether a block only plans cloud stacks, which tests/infra does without a process for each."""
    return all(re.match(r"\./cluster plan --stack (aws|gcp)", command) for command in block.commands)


def is_wide(block: Block) -> bool:
    """Return whether other tests run a block's commands by default.

    By default the pictures show `./cluster up` and `./cluster down`, of a whole cluster for each run.
    tests/cli/local/test_chaos.py gives every word of `chaos` to a local cloud, and test_faults.py shows what
    machines and jobs do then. test_sharing_cluster.py has a team's cluster. test_sweep.py runs a sweep to
    its report, and test_pools_example.py the training of examples/pools. That each command of any page is
    one that `./cluster` takes is shown by tests/docs/test_documents.py.
    """
    of_others = block.where.startswith(("docs/failures.md:", "docs/team.md:", "examples/pools/")) or any(
        "cluster run " in command for command in block.commands
    )
    return of_others or only_plans(block) or set(block.commands) <= {"./cluster up", "./cluster down"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """The project with its own stack files and a training of a second."""
    checkout = Checkout(tmp_path_factory.mktemp("documents") / "slurm-stacks", stack="local")
    for file in shipped.files():
        shutil.copy2(file, checkout.folder)
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, checkout.folder / folder)
    # The example runs long enough for the next command to find it, even on a slow machine.
    counting = checkout.folder / "examples" / "counting.sh"
    text = counting.read_text()
    assert "-lt 60 ]" in text
    counting.write_text(text.replace("-lt 60 ]", "-lt 6000 ]"))
    shutil.copytree(ROOT / "tests", checkout.folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    local = checkout.folder / "Pulumi.local.yaml"
    text = local.read_text()
    assert "slurm-stacks:benchmark:" in text
    # Nodes are powered down soon, because `up` waits for that.
    local.write_text(re.sub(r"(?m)^  slurm-stacks:benchmark:", "    slurm: {suspend_time: 3}\n\\g<0>", text))
    checkout.shorten_training()
    try:
        yield checkout
    finally:
        left = checkout.close()
    assert left == []


@pytest.mark.timeout(560)
def test_the_pictures_show_what_the_commands_print(clone: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PICTURES)
    record = importlib.import_module("record")

    for scene in ("up", "use"):
        fresh = record.draw(record.shown(record.SCENES[scene], clone.folder, clone.env), "a title")
        picture = (PICTURES / f"{scene}.svg").read_text(encoding="utf-8")
        assert record.labels(record.drawn(picture)) == record.labels(record.drawn(fresh)), (
            f"run python docs/pictures/record.py {scene}"
        )


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block.where, marks=[pytest.mark.wide] if is_wide(block) else [])
        for block in RUNNABLE
    ],
)
@pytest.mark.timeout(560)
def test_the_commands_of_a_block_work(clone: Checkout, block: Block, tmp_path: Path) -> None:
    verbs = [match[1] for command in block.commands for match in re.finditer(r"\./cluster (\S+)", command)]
    if any(verb not in NO_CLUSTER for verb in verbs) and not clone.run_directory.exists():
        clone.cluster("up", check=True)
    for command in block.commands:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=clone.folder,
            env=clone.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, f"{block.where}: {command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
