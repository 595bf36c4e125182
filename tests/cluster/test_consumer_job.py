"""All commands of docs/consuming.md against a real cluster, from another folder."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import outputs
from tests.support import consumer
from tests.support.checkout import Checkout


@pytest.mark.wide
def test_every_way_of_the_page_works(make_checkout: Callable[..., Checkout], tmp_path: Path) -> None:
    checkout = make_checkout()
    checkout.cluster("up", check=True)
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
