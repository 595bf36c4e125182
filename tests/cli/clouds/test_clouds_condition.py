"""The doctor's look at a cluster on a cloud that is up: its budget, and nodes whose devices failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.findings import Finding, Severity
from cli.providers import provider as providers
from cli.providers.clouds import known_clusters
from infra.config import load_file
from infra.design import design as design_of
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from infra.ssh import Target
from operations.clouds.ssh_access import Login
from operations.openssh import SshError
from tests.support import sentences
from tests.support.doubles import design
from tests.support.fake_cloud import PLACE, FakeProvider, Head, head
from tests.support.stack_values import stack_file

__all__ = ["head"]

STACK = Stack(Path("nowhere"), "test")
HOT = "slurm-stacks health: GPU 1: too hot"
STATUS: dict[str, Any] = {
    "partitions": [{"name": "gpu", "state": "DOWN"}],
    "reservations": [],
    "nodes": [
        {"name": "gpu-0", "state": "MIXED+CLOUD+DRAIN", "reason": HOT},
        {"name": "gpu-1", "state": "IDLE+CLOUD+DRAIN", "reason": HOT},
        {"name": "gpu-2", "state": "IDLE+CLOUD", "reason": None},
    ],
    "machines": {"running": 3, "pending": 0},
    "cost": {"budget": {"used": 0.9}},
}


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    monkeypatch.chdir(tmp_path)
    STACK.project.mkdir()
    fake_provider = FakeProvider()
    login = Login("controller", Target(host="10.0.0.1", user="ubuntu", host_keys=()))
    monkeypatch.setattr(fake_provider, "_login", lambda _stack: login)
    return fake_provider


def look(provider: FakeProvider) -> list[Finding]:
    (check,) = (one for one in provider.diagnose(STACK, design(), None) if one.name == "condition")
    return list(check.look())


def test_a_stack_that_was_never_up_from_here_is_not_asked(head: Head, provider: FakeProvider) -> None:
    assert look(provider) == []
    assert head.lines == []


def test_nodes_whose_devices_failed_and_the_budget(head: Head, provider: FakeProvider) -> None:
    known_clusters.note_cluster(STACK, PLACE)
    head.answer = json.dumps(STATUS)
    found = {one.check: one for one in look(provider)}
    assert head.lines == ["slurm-stacks status"]
    sentences.finding(found["cluster.health"], "cluster.health", Severity.WARNS, "0-1", "gpu-0")
    sentences.finding(found["cluster.service"], "cluster.service", Severity.WARNS, "`up`")
    sentences.finding(found["cluster.budget"], "cluster.budget", Severity.WARNS)
    sentences.finding(found["cluster.state"], "cluster.state", Severity.FINE)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            SshError("the login machine does not answer\nmore", code="ssh.no-answer"),
            "the login machine does not answer",
        ),
        (NotUpError("stack test is not up", code="cluster.not-up"), None),
        (UserError("no credentials", EXIT_REFUSED, code="aws.no-credentials"), None),
    ],
)
def test_a_cluster_that_does_not_answer(
    head: Head, provider: FakeProvider, error: Exception, said: str | None
) -> None:
    known_clusters.note_cluster(STACK, PLACE)
    head.answer = error
    found = look(provider)
    assert [one.found.rpartition(": ")[2] for one in found] == ([said] if said else [])
    assert all(one.severity is Severity.WARNS for one in found), "`up` may do well all the same"


def test_a_file_with_mistakes_and_aws_batch_have_no_nodes_to_ask_for(provider: FakeProvider) -> None:
    batch = load_file(stack_file("aws-batch"))
    assert provider.diagnose(STACK, None, None) == []
    of_batch = providers.load("aws", "batch")
    checks = {check.name for check in of_batch.diagnose(STACK, design_of(batch, catalog()), None)}
    assert "name" in checks
    assert "condition" not in checks
