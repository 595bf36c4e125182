"""What a change of the stack file does to a running local cluster: jobs are safe."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli.changes import table as changes
from cli.changes.decision import ClusterControl
from cli.changes.jobs import Job
from cli.changes.table import refusal
from cli.commands import runs as benchmark_runs
from cli.commands.doctor import general
from cli.console import plan
from cli.findings import Finding, Severity
from cli.providers.local import running
from cli.providers.local.provider import LocalProvider
from cli.providers.local.running import RULES
from infra import bundle, config
from infra.design import design
from infra.effects import Kind
from infra.errors import UserError
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign, Host
from operations.access import StackUp
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import ROOT

STACK = Stack(Path("nowhere"), "test")
LOGIN = Host("login-0", "login", ("login",), "local.small", 0)


def made(**values: Any) -> ClusterDesign:
    """A local cluster's design with login machines."""
    chosen = design(config.load_file(ROOT / "Pulumi.local-machines.yaml"), catalog())
    return dataclasses.replace(chosen, **{"hosts": (*chosen.hosts[:1], LOGIN), **values})


OLD = made()
FIRST, *REST = OLD.partitions


def first(**values: Any) -> dict[str, Any]:
    return {"partitions": (dataclasses.replace(FIRST, **values), *REST)}


CASES = [
    (first(time_limit="01:00:00"), [("partitions.time_limit", Kind.LIVE)]),
    (first(max=FIRST.max + 1), [("partitions.nodes.max", Kind.LIVE)]),
    (first(max=1), [("partitions.nodes.max", Kind.ENDS)]),
    (first(instance_type="local.large", cpus=8, memory_mib=9), [("partitions.instance_type", Kind.RENEWED)]),
    (first(cpus=8), [("instance_types.vcpus", Kind.RENEWED)]),
    (first(accelerator=Accelerator("a100", 2, simulated=True)), [("partitions.accelerator", Kind.RENEWED)]),
    (first(name="other"), [("partitions.name", Kind.ENDS), ("partitions.name", Kind.LIVE)]),
    ({"hosts": OLD.hosts[:1]}, [("login.count", Kind.LIVE)]),
    ({"local": dataclasses.replace(OLD.local, boot_delay=9.0)}, [("local.boot_delay", Kind.LIVE)]),
    ({"isolation": "process"}, [("local.isolation", Kind.DATA)]),
    ({"name": "another"}, [("name", Kind.DATA)]),
    # Another cluster: nothing is said of what its partitions have, because no job of this one lives on.
    ({"name": "another", **first(cpus=8)}, [("name", Kind.DATA)]),
]


@pytest.mark.parametrize(("what", "expected"), CASES, ids=[f"{c[1][0][0]}-{c[1][0][1].name}" for c in CASES])
def test_a_change_is_what_its_row_says(what: dict[str, Any], expected: list[tuple[str, Kind]]) -> None:
    found = changes.compare(OLD, made(**what), RULES)
    assert [(change.key, change.kind) for change in found] == expected


def test_another_name_is_refused_without_jobs_too_and_names_those_that_there_are() -> None:
    found = changes.compare(OLD, made(name="another"), RULES)
    waits = Job("7", "ann", FIRST.name, "", "PENDING", "", "later")
    assert "up --replace" in str(refusal(found, []))
    assert str(refusal(found, [waits])).endswith(f"job 7 later (ann, PENDING on {FIRST.name})")
    assert "the cluster's folder on this machine" in str(refusal(found, []))
    assert [line.partition(",")[0] for line in changes.described(found, [])[0]["lost"]] == [
        "the cluster's folder on this machine"
    ]


def test_a_plan_has_what_becomes_of_each_job() -> None:
    runs = Job("7", "ann", FIRST.name, f"{FIRST.name}-[1-2]", "RUNNING", "", "train")
    waits = Job("8", "ann", FIRST.name, "", "PENDING", "", "later")

    def told(**values: Any) -> list[tuple[str, str]]:
        (found,) = changes.described(changes.compare(OLD, made(**values), RULES), [runs, waits])
        assert found["line"].endswith(found["consequence"])
        return [(job["id"], job["consequence"]) for job in found["jobs"]]

    assert told(**first(max=2)) == [("7", "ends")]
    assert told(partitions=tuple(REST) or ()) == [("7", "ends"), ("8", "is lost")]
    assert told(**first(cpus=8)) == [("7", "goes on; its nodes are removed when it is over")]
    assert told(**first(max=FIRST.max + 1)) == []


def test_a_plan_of_a_cluster_that_does_not_answer_says_that_its_jobs_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster's settings are published, and none of its processes runs."""

    def silent(_run: RunDirectory, _stack: Stack, _command: str) -> Any:
        def ask(_line: str, _seconds: float) -> str:
            raise UserError("Unable to contact slurm controller", code="test.cause")

        return ClusterControl(ask)

    monkeypatch.setattr(running, "published", lambda _run: OLD)
    monkeypatch.setattr(running, "control", silent)
    there = running.changes(RunDirectory(tmp_path), STACK, made(**first(max=2)))
    assert there is not None
    described = changes.described(*there)
    assert [change["jobs"] for change in described] == [None]
    plan.show_changes({"changes": described, "outputs": {}}, Console(width=200))
    assert "its jobs is not known: the cluster does not answer" in capsys.readouterr().out


def test_a_cluster_that_nobody_can_log_in_to_has_no_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the machine, for example: `up` makes the change then, and the doctor says so."""
    monkeypatch.setattr(running, "published", lambda _run: OLD)
    there = running.changes(RunDirectory(tmp_path), STACK, made(**first(max=2)))
    assert there is not None
    assert there[1] == []
    assert refusal(*there) is None


def test_a_plan_says_that_the_checkouts_code_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade of the checkout `up` publishes the code, and what it concerns starts again."""
    monkeypatch.setattr(running, "published", lambda _run: OLD)
    run = RunDirectory(tmp_path)
    run.bucket.mkdir(parents=True)
    current = run.bucket / "current.json"

    def told(digest: str) -> list[str]:
        current.write_text(json.dumps({"code": {"key": "code/x.zip", "sha256": digest}}))
        there = running.changes(run, STACK, OLD)
        assert there is not None
        return [change.line() for change in there[0]]

    now = bundle.digest(bundle.node_archive(OLD))
    assert told(now) == []
    assert told("0" * 64) == [
        f"code 00000000 → {now[:8]}: applied to the running cluster (daemons restart, jobs go on)"
    ]
    current.write_text("{}")
    assert running.changes(run, STACK, OLD) == ([], [])


def test_the_doctor_stops_where_up_would_refuse_because_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_runs, "planned", lambda *_stack: None)
    runs = Job("7", "ann", FIRST.name, f"{FIRST.name}-[1-2]", "RUNNING", "", "train")
    found = changes.compare(OLD, made(**first(max=2)), RULES)

    class Changed(LocalProvider):
        def __init__(self, there: Any) -> None:
            self.there = there

        def changes(self, _stack: Stack, _design: ClusterDesign) -> Any:
            return self.there

    def told(there: Any) -> list[Finding]:
        return list(general.changes(StackUp(Stack(ROOT, "local"), "local"), None, Changed(there)))

    (finding,) = told((found, [runs]))
    assert finding.severity is Severity.STOPS
    sentences.finding(finding, "cluster.changes", Severity.STOPS)
    assert told((found, [])) == told(None) == []

    job = {"id": 9, "state": "RUNNING", "nodes": "debug-0"}
    monkeypatch.setattr(benchmark_runs, "planned", lambda *_stack: benchmark_runs.FormerRun("a/b", None, job))
    (finding,) = told(([], []))
    assert (finding.check, finding.severity) == ("cluster.benchmark", Severity.STOPS)
    sentences.finding(
        finding, "cluster.benchmark", Severity.STOPS, "debug-0", "`./cluster up --no-benchmark`"
    )
