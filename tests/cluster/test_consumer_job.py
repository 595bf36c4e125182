"""The example consumer without the Pulumi CLI: the embedded runner submits real jobs to a real cluster."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra import outputs
from tests.support import consumer
from tests.support.checkout import ROOT, Checkout

RUN = """
import json, sys
from pathlib import Path
from infra.errors import UserError
from cli.engine import embedded
from cli.console.events import Summary
from infra.program.stack import Stack
events = []
try:
    outputs = getattr(embedded, sys.argv[1])(Stack(Path.cwd(), "dev"), events.append)
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
(summary,) = [event for event in events if isinstance(event, Summary)]
print(json.dumps({"outputs": outputs, "counts": {str(k): v for k, v in summary.counts.items()}}))
"""


def run(checkout: Checkout, folder: Path, verb: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, verb],
        cwd=folder,
        env={**checkout.env, "PYTHONPATH": str(ROOT), "PULUMI_CONFIG_PASSPHRASE": "hush"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.wide
def test_the_example_from_its_first_job_to_another_cluster(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    checkout = make_checkout()
    folder = consumer.copy(tmp_path / "my job", checkout)

    def done(verb: str) -> tuple[dict[str, Any], int]:
        ended = run(checkout, folder, verb)
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        return found["outputs"], sum(n for op, n in found["counts"].items() if op != "unchanged")

    def refused() -> str:
        ended = run(checkout, folder, "up")
        assert ended.returncode == 3
        return ended.stderr

    checkout.cluster("up", check=True)
    every_way_of_the_page(checkout, tmp_path)
    try:
        consumer.Story(
            checkout,
            folder,
            up=lambda: done("up"),
            refused=refused,
            destroy=lambda: (done("destroy"), None)[1],
            cluster_up=lambda: (checkout.cluster("up", check=True), None)[1],
            cluster_down=lambda: (checkout.cluster("down", check=True), None)[1],
        ).tell()
    finally:
        run(checkout, folder, "destroy")


def every_way_of_the_page(checkout: Checkout, tmp_path: Path) -> None:
    """Run all commands of docs/consuming.md, from another folder."""
    found = json.loads(checkout.cluster("outputs", check=True).stdout)
    cluster = outputs.load(found["cluster"])
    assert cluster.login is not None
    assert cluster.shared is not None
    assert (
        cluster.login.ssh
        == found["login_ssh"]
        == shlex.join([str(checkout.folder / "cluster"), "ssh", "--stack", checkout.stack])
    )
    (tmp_path / "job.sh").write_text("#!/bin/sh\nhostname\n")
    result = Path(cluster.shared) / "result.json"
    result.write_text("{}")
    commands = consumer.page_commands(login_ssh=cluster.login.ssh, result_path=str(result))
    assert len(commands) == 4
    here = shlex.quote(str(checkout.folder / "cluster"))
    for command in commands:
        line = command.replace("./cluster", here).replace("--stack local", f"--stack {checkout.stack}")
        env = {**checkout.env, "PULUMI_CONFIG_PASSPHRASE": "hush"}
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout.strip()
    # A shell on the login machine reads the command, as with ssh. Output and exit status come back.
    line = f"{cluster.login.ssh} 'cat; exit 7'"
    done = subprocess.run(
        line, shell=True, input="given", env=checkout.env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("given", 7)
