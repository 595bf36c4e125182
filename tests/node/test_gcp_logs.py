"""Tests of logs in Cloud Logging: the files, the agent, and that a failure does not stop the boot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.bootstrap import step_runner
from node.bootstrap.context import SkipStep
from node.bootstrap.steps import STEPS
from node.bootstrap.vm import baking, clouds, ops_agent
from node.system import http_client
from node.system.cloud_api import UnreachableError
from node.system.http_client import Answer
from tests.support.recorded import Recorder, machine

DRIVER = {"cluster": "t", "logs": True}
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []

    def fetch(_method: str, url: str, *_rest: object, **_options: object) -> Answer:
        urls.append(url)
        return Answer(200, KEY)

    monkeypatch.setattr(http_client, "call", fetch)
    return urls


def installed(run: Recorder) -> None:
    run.answer("dpkg-query", lambda *argv: f"installed {argv[-1]}\n" if run.having("install") else "")


def test_the_repository_is_that_of_the_machines_distribution(tmp_path: Path, asked: list[str]) -> None:
    context, run = machine(tmp_path, "login", "login-0", provider="gcp", driver=DRIVER, suite="trixie")
    installed(run)
    clouds.of(context.settings).install_agent(context)
    assert len(asked) == 1
    source = (tmp_path / "root/etc/apt/sources.list.d/google-cloud-ops-agent.list").read_text()
    assert source.endswith(" google-cloud-ops-agent-trixie-2 main\n")


def test_each_role_sends_its_own(tmp_path: Path, asked: list[str]) -> None:
    context, run = machine(tmp_path, "controller", "controller", provider="gcp", driver=DRIVER)
    installed(run)
    for _ in range(2):
        assert clouds.of(context.settings).ship_logs(context) == "sent to Cloud Logging"
    assert asked == ["https://packages.cloud.google.com/apt/doc/apt-key.gpg"]
    (install,) = run.having("install")
    assert install.endswith(" google-cloud-ops-agent")
    assert run.calls.count("systemctl restart google-cloud-ops-agent.service") == 1
    root = tmp_path / "root"
    source = (root / "etc/apt/sources.list.d/google-cloud-ops-agent.list").read_text()
    assert source == (
        "deb [signed-by=/etc/apt/keyrings/google-cloud-ops-agent.asc] https://packages.cloud.google.com/apt "
        "google-cloud-ops-agent-noble-2 main\n"
    )
    assert (root / "etc/apt/keyrings/google-cloud-ops-agent.asc").read_bytes() == KEY
    known = json.loads((root / ops_agent.CONFIG).read_text())["logging"]
    log = root / "var/log/slurm"
    assert {name: receiver["include_paths"] for name, receiver in known["receivers"].items()} == {
        "slurmctld": [f"{log}/slurmctld.log"],
        "elastic": [f"{log}/elastic.log"],
        "slurmdbd": [f"{log}/slurmdbd.log"],
    }
    assert known["service"]["pipelines"]["slurm"]["receivers"] == list(known["receivers"])
    login, _ = machine(tmp_path, "login", "login-0", provider="gcp", driver=DRIVER)
    assert ops_agent.wanted(login) == {"logging": {"receivers": {}, "service": {"pipelines": {}}}}


@pytest.mark.parametrize(
    "answer", [Answer(403), Answer(200, b"<html>"), UnreachableError("packages did not answer: no route")]
)
def test_no_boot_fails_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer | UnreachableError
) -> None:
    def fetch(*_arguments: object, **_options: object) -> Answer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(http_client, "call", fetch)
    context, run = machine(tmp_path, provider="gcp", driver=DRIVER)
    (step,) = [step for step in STEPS if step.name == "logs"]
    assert step_runner.run_steps(context, [step]) is True
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"][-1]["state"] == "skipped"
    assert report["steps"][-1]["note"].startswith("logs stay on this machine: ")
    assert report["facts"]["logs"].startswith("not in Cloud Logging: ")
    assert not run.having("install")


def test_a_site_that_wants_none_has_none(tmp_path: Path, asked: list[str]) -> None:
    context, run = machine(tmp_path, provider="gcp")
    for ask in (clouds.of(context.settings).ship_logs, clouds.of(context.settings).install_agent):
        with pytest.raises(SkipStep, match="no logs in Cloud Logging"):
            ask(context)
    assert (asked, run.calls) == ([], [])


@pytest.mark.usefixtures("asked")
def test_an_image_holds_the_agent_and_no_configuration(tmp_path: Path) -> None:
    context, run = machine(tmp_path, provider="gcp", driver=DRIVER)
    installed(run)
    assert baking._agent(context) == "the agent is there"
    assert run.having("install")
    assert not (tmp_path / "root" / ops_agent.CONFIG).exists()
    assert not run.having("restart")
