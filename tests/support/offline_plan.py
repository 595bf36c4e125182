"""A plan by a process of its own: without credentials, a Pulumi CLI, a network that answers or a home."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.checkout import ROOT


def check(stack: str, home: Path, unwanted: Iterable[str]) -> None:
    """Check that a stack can be planned there, and that the plan leaves nothing behind.

    Args:
        stack: The stack's name.
        home: An empty folder.
        unwanted: Modules of another cloud, or of live accounts, that a plan imports in vain.
    """
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "SLURM_STACKS_PROJECT": str(ROOT),
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_GCE_CHECK": "true",
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    code = (
        "import sys; from cli.main import main\n"
        "try: main()\n"
        f"finally: print(*sorted({set(unwanted)!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "--stack", stack, "--json"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert json.loads(done.stdout)["stack"] == stack
    assert done.stderr.strip() == "", "imported for nothing"
    assert not list(home.rglob("*.zip")), "a plan leaves nothing behind"
