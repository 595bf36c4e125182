"""What becomes of a local cluster when its stack file changes: every key has a word, and jobs are safe."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra import config
from infra.changes import table as changes
from infra.changes.jobs import Job
from infra.changes.reach import Reach
from infra.changes.table import Kind, refusal
from infra.console import tables
from infra.design import design
from infra.errors import UserError
from infra.local import running
from infra.local.changes import RULES, TABLE, UNSEEN
from infra.local.site import RunDirectory
from infra.machines import catalog
from infra.node.model import Accelerator, ClusterDesign, Host
from tests.support.changes_table import check_fields, check_keys, document
from tests.support.checkout import ROOT

LOGIN = Host("login-0", "login", ("login",), "local.small", 0)


def made(**values: Any) -> ClusterDesign:
    """A local cluster's design, with machines for people to log in."""
    chosen = design(config.load_file(ROOT / "Pulumi.local-machines.yaml"), catalog())
    return dataclasses.replace(chosen, **{"hosts": (*chosen.hosts[:1], LOGIN), **values})


OLD = made()
FIRST, *REST = OLD.partitions


def first(**values: Any) -> dict[str, Any]:
    return {"partitions": (dataclasses.replace(FIRST, **values), *REST)}


def test_every_key_of_a_stack_file_has_one_row() -> None:
    check_keys(TABLE, {"benchmark"})


def test_every_field_of_the_design_is_found_by_one_row() -> None:
    check_fields(TABLE, UNSEEN, OLD)


CASES = [
    (first(time_limit="01:00:00"), [("partitions.time_limit", Kind.LIVE)]),
    (first(max=FIRST.max + 1), [("partitions.nodes.max", Kind.LIVE)]),
    (first(max=1), [("partitions.nodes.max", Kind.ENDS)]),
    (first(machine="local.large", cpus=8, memory_mib=9), [("partitions.machine", Kind.RENEWED)]),
    (first(cpus=8), [("machines.vcpus", Kind.RENEWED)]),
    (first(accelerator=Accelerator("a100", 2, simulated=True)), [("partitions.accelerator", Kind.RENEWED)]),
    (first(name="other"), [("partitions.name", Kind.ENDS), ("partitions.name", Kind.LIVE)]),
    ({"hosts": OLD.hosts[:1]}, [("login.count", Kind.LIVE)]),
    ({"local": dataclasses.replace(OLD.local, boot_delay=9.0)}, [("local.boot_delay", Kind.LIVE)]),
    ({"machines": "process"}, [("local.machines", Kind.DATA)]),
    ({"name": "another"}, [("name", Kind.DATA)]),
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


def test_a_plan_has_what_becomes_of_each_job() -> None:
    runs = Job("7", "ann", FIRST.name, f"{FIRST.name}-[1-2]", "RUNNING", "", "train")
    waits = Job("8", "ann", FIRST.name, "", "PENDING", "", "later")

    def told(**values: Any) -> list[tuple[str, str]]:
        (found,) = changes.described(changes.compare(OLD, made(**values), RULES), [runs, waits])
        assert found["line"].endswith(found["consequence"])
        return [(job["id"], job["consequence"]) for job in found["jobs"]]

    assert told(**first(max=2)) == [("7", "ends")]
    assert told(partitions=tuple(REST) or ()) == [("7", "ends"), ("8", "is lost")]
    assert told(**first(cpus=8)) == [("7", "goes on; its nodes go when it is over")]
    assert told(**first(max=FIRST.max + 1)) == []


def test_a_plan_of_a_cluster_that_does_not_answer_says_that_its_jobs_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its settings are published, and nothing of it runs."""

    def silent(_run: RunDirectory, _stack: str) -> Any:
        def ask(_line: str, _seconds: float) -> str:
            raise UserError("Unable to contact slurm controller")

        return Reach(ask)

    monkeypatch.setattr(running, "published", lambda _run: OLD)
    monkeypatch.setattr(running, "way", silent)
    there = running.changes(RunDirectory(tmp_path), "test", made(**first(max=2)))
    assert there is not None
    described = changes.described(*there)
    assert [change["jobs"] for change in described] == [None]
    tables.show_changes({"changes": described, "outputs": {}}, Console(width=200))
    assert "its jobs is not known: the cluster does not answer" in capsys.readouterr().out


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "local.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("|")] == document(TABLE)
