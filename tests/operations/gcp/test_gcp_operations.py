"""The processes of a stack's resources: `terminate-nodes`, `wait`, and the proxy that becomes gcloud."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clouds.commands import WaitRequest
from infra.errors import EXIT_REFUSED
from infra.gcp import access
from operations.clouds import commands as shared_operations
from operations.clouds import termination
from operations.gcp import __main__, account, os_login
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_google import BUCKET, KEY, USER, Project, project
from tests.support.gcp_mocks import gcp_design

ZONE = "europe-west4-a"
PLACE = ["--region", "europe-west4", "--zone", ZONE, "--project", "p-1", "--cluster", "c"]


@pytest.fixture
def gcp_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project, and a home with a key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(KEY)
    with project() as made:
        monkeypatch.setattr(account, "of", lambda place: made.account if place.project == "p-1" else None)
        yield made


def run(arguments: list[str]) -> int:
    return shared_operations.run(__main__.VERBS, __main__.parse(arguments))


def test_it_says_how_many_machines_it_ended(
    gcp_project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "TERMINATION_POLL_SECONDS", 0.05)
    gcp_project.node("cpu-0")
    gcp_project.node("cpu-0", cluster="other")
    for ended in (1, 0):
        assert run(["terminate-nodes", "--stack", "test", *PLACE]) == 0
        assert json.loads(capsys.readouterr().out) == {"terminated": ended}
    assert [str(instance.name) for instance in gcp_project.gce.cloud.instances()] == ["other-cpu-0"]


def test_the_wait_reads_its_wish_and_prints_the_facts(
    gcp_project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gcp_project.bucket()
    gcp_project.head()
    gcp_project.report("controller", "ready")
    wish = WaitRequest.of(gcp_design(project="p-1"), BUCKET).text()
    monkeypatch.setattr(sys, "stdin", io.StringIO(wish))
    assert run(["wait", "--stack", "test"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"host_keys": [KEY], "login_user": USER, "scheduler_version": "slurm 23.11.4"}


def test_the_proxy_brings_the_key_and_becomes_gcloud_or_says_that_there_is_none(
    gcp_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda file, line: ran.append(line) or {})  # type: ignore[func-returns-value]
    options = __main__.parse(["proxy", "--project", "p-1", "--zone", ZONE, "--instance", "c-login-0"])
    __main__.proxy(options)
    assert ran == [os_login.tunnel("p-1", ZONE, "c-login-0", "22")]
    assert ran[0][:6] == ["gcloud", "compute", "start-iap-tunnel", "c-login-0", "22", "--listen-on-stdin"]
    assert len(gcp_project.keys) == 1

    def missing(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "execvp", missing)
    with sentences.raises("cloud.tool-missing", "`gcloud`") as caught:
        __main__.proxy(options)
    assert caught.value.exit_code == EXIT_REFUSED


def test_who_runs_it_is_asked_and_their_key_brought(
    gcp_project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["user", "--project", "p-1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"login_user": USER}
    assert len(gcp_project.keys) == 1


def test_a_refusal_is_one_line_and_its_exit_status(
    gcp_project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    gcp_project.gce.faults = []
    gcp_project.account.project = "p-2"
    assert run(["terminate-nodes", "--stack", "test", *PLACE]) == EXIT_REFUSED
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("your account may not do that in project p-2 (forbidden: ")
    assert output.err.count("\n") == 1


def test_as_a_process_it_says_that_there_are_no_credentials(tmp_path: Path) -> None:
    env = {**os.environ, "CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "true"}
    env.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
    line = [sys.executable, "-m", access.OPERATIONS, "terminate-nodes", "--stack", "test", *PLACE]
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_REFUSED
    assert done.stderr.startswith("there are no credentials for Google Cloud here. Log in")
    assert "Traceback" not in done.stderr


def test_no_library_is_loaded_that_every_connection_would_wait_for() -> None:
    """google-cloud-compute takes five seconds to import, Pulumi one."""
    seen = "import sys, operations.gcp.__main__, operations.gcp.cloud, google.auth.transport.requests; "
    seen += "print([m for m in sys.modules if m.startswith(('google.cloud', 'pulumi_gcp', 'grpc'))])"
    line = [sys.executable, "-c", seen]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr
