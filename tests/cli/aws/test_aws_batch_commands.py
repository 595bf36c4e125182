"""`./cluster` with AWS Batch: status, logs, runs, the budget, refusals, permissions, and the report."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from cli.commands.report import command as reports
from cli.console.progress import Console
from cli.findings import Severity
from cli.providers import provider
from cli.providers.batch import budget, diagnosis, jobs, run_records
from cli.providers.batch.commands import parse_nodes
from cli.providers.batch.provider import BatchProvider
from cli.providers.interface import Runs
from infra.config import load_file
from infra.errors import EXIT_REFUSED
from node.design.model import Budget
from operations.access import StackUp
from operations.aws.batch.service import BatchService
from tests.support import sentences
from tests.support.batch_account import (
    DESIGN,
    RESULT,
    STACK,
    BatchAccount,
    account,
    batch_account,
    moto,
)
from tests.support.batch_stack import batch_design
from tests.support.checkout import ROOT
from tests.support.report_reader import Page

__all__ = ["account", "batch_account", "moto"]


# --- the commands -----------------------------------------------------------------------------------------


@pytest.fixture
def up(batch_account: BatchAccount, monkeypatch: pytest.MonkeyPatch) -> StackUp:
    """The stack as the commands find it."""
    monkeypatch.setattr(BatchProvider, "service", lambda _self, _up: BatchService(DESIGN, batch_account))
    return StackUp.of(STACK, load_file(STACK.file))


def test_status_and_logs_and_run(
    up: StackUp, batch_account: BatchAccount, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = provider.of(up)
    made = jobs.submit(BatchService(DESIGN, batch_account), 2)
    stream = batch_account("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    batch_account.write_log(
        stream, *(f"line {number}" for number in range(50)), f"RESULT {json.dumps(RESULT)}"
    )
    found = chosen.status(up)
    chosen.show_status(up, found)
    text = capsys.readouterr().out
    assert "environment tensorflow-gpu-fsx-ce  enabled, valid" in text
    assert "queue tf-queue                     enabled, valid" in text
    assert made.id in text
    assert json.loads(json.dumps(found)) == found
    assert found["partitions"][0]["name"] == "tf-queue"
    assert [one["how"] for one in found["ended"]] == ["succeeded"]
    assert chosen.logs(up, made.id, lines=3, follow=False) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["line 48", "line 49"]
    chosen.run(up, Console(), Runs(nodes="2"))
    assert "98000.5" in capsys.readouterr().out
    (record,) = run_records.load_records("aws-batch")
    assert record["job_name"].startswith("aws-batch-2-"), "moto itself takes no other number of nodes"
    with sentences.raises("sweep.batch-options"):
        chosen.run(up, Console(), Runs(nodes="2", gpus="1"))
    with sentences.raises("batch.no-job", "nowhere"):
        chosen.logs(up, "nowhere", lines=3, follow=False)


BUDGET = dataclasses.replace(DESIGN, budget=Budget(max_usd=1000.0, max_hours=64.0, running_jobs="cancel"))


@pytest.fixture
def spend(batch_account: BatchAccount) -> Callable[[int], None]:
    """Writes what the state machine has counted, in machines that were up at a tick of five minutes."""
    key: dict[str, Any] = {"AttributeName": "Id"}
    batch_account("dynamodb").create_table(
        TableName="aws-batch-budget",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{**key, "AttributeType": "S"}],
        KeySchema=[{**key, "KeyType": "HASH"}],
    )

    def write(machines: int) -> None:
        ticks = {"Id": {"S": "vcpus"}, "Ticks": {"N": str(machines * 96)}}
        batch_account("dynamodb").put_item(TableName="aws-batch-budget", Item=ticks)

    return write


def test_status_says_what_is_left_of_the_budget(
    up: StackUp, batch_account: BatchAccount, spend: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1000 USD are 32 machine-hours: 38 ticks with ten machines up are all but 12 USD of them."""
    monkeypatch.setattr(BatchProvider, "service", lambda _self, _up: BatchService(BUDGET, batch_account))
    chosen = provider.of(up)
    assert chosen.status(up)["cost"]["budget"]["left_usd"] == 1000.0
    spend(38 * 10)
    found = chosen.status(up)["cost"]["budget"]
    assert found["left_usd"] == pytest.approx(1000 - 380 * 5 / 60 * 31.212, abs=0.1)
    assert found["left_hours"] == pytest.approx(64 - 380 * 5 / 60), "each limit has a rest of its own"
    assert found["used"] == pytest.approx(1 - found["left_usd"] / 1000)
    assert found["running_jobs"] == "cancel"


def test_who_submits_opens_what_is_closed_if_the_budget_covers_it(
    batch_account: BatchAccount, spend: Callable[[int], None]
) -> None:
    service, batch = BatchService(BUDGET, batch_account), batch_account("batch")
    said: list[str] = []
    # Twenty machines for five minutes are 52 USD.
    spend(38 * 10 - 5)
    with sentences.raises("batch.budget-spent", 47, "20 nodes", 100) as caught:
        jobs.submit(service, before=lambda nodes: budget.prepare(service, nodes, said.append))
    assert (caught.value.exit_code, service.jobs()) == (EXIT_REFUSED, [])
    spend(38 * 9)
    budget.prepare(service, 20, said.append)
    assert said == [], "nothing is closed"
    batch.update_job_queue(jobQueue="tf-queue", state="DISABLED")
    batch.update_compute_environment(computeEnvironment="tensorflow-gpu-fsx-ce", state="DISABLED")
    budget.prepare(service, 20, said.append)
    assert said == [
        "environment tensorflow-gpu-fsx-ce was disabled: it is enabled again",
        "queue tf-queue was disabled: it is enabled again",
    ]
    states = [(service.queue() or {})["state"], (service.environment() or {})["state"]]
    assert states == ["ENABLED", "ENABLED"]


def test_numbers_of_nodes() -> None:
    assert parse_nodes(None, 20) == [1, 2, 4, 8, 16, 20]
    assert parse_nodes("2, 4,2", 20) == [2, 4]
    with sentences.raises("batch.nodes-form"):
        parse_nodes("2,x", 20)


def test_nobody_logs_in_and_the_message_says_what_to_do_instead() -> None:
    up = StackUp.of(STACK, load_file(STACK.file))
    with sentences.raises("batch.no-login-machine", "`./cluster status --stack aws-batch`") as caught:
        provider.machine(up, "exec")
    assert caught.value.exit_code == EXIT_REFUSED


def test_the_doctor_says_that_docker_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (finding,) = diagnosis.docker(DESIGN)
    sentences.finding(finding, "docker", Severity.WARNS)
    assert {check.name for check in diagnosis.checks(DESIGN)} == {
        "credentials",
        "quotas",
        "docker",
        "platform",
    }
    assert list(diagnosis.docker(batch_design(repository=None, container_image="x"))) == []


@pytest.mark.parametrize(("status", "severity"), [(0, Severity.FINE), (1, Severity.WARNS)])
def test_a_docker_without_its_daemon_is_not_fine(
    status: int, severity: Severity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text(f"#!/bin/sh\nexit {status}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (finding,) = diagnosis.docker(DESIGN)
    assert finding.severity is severity


# --- permissions ------------------------------------------------------------------------------------------

SERVICES = {
    "batch": "batch", "dynamodb": "dynamodb", "ecr": "ecr", "fsx": "fsx", "logs": "logs", "ssm": "ssm",
    "stepfunctions": "states", "sts": "sts",
}  # fmt: skip
"""What the commands use clients of -> the prefix of its actions in IAM."""
IMAGE_PUSH = {
    "ecr:BatchCheckLayerAvailability", "ecr:CompleteLayerUpload", "ecr:InitiateLayerUpload",
    "ecr:UploadLayerPart",
}  # fmt: skip
"""What Docker's push asks for (ECR user guide, "IAM permissions for pushing an image")."""


def test_the_page_names_each_action_that_the_commands_call_and_no_other() -> None:
    """A call is a method with the name of an operation, or that name as a paginator's text."""
    session = botocore.session.get_session()
    operations: dict[str, set[str]] = {}
    for name_of_service, prefix in SERVICES.items():
        for name in session.get_service_model(name_of_service).operation_names:
            operations.setdefault(xform_name(name), set()).add(f"{prefix}:{name}")
    # Several services may have an operation of that name.
    called: list[set[str]] = []
    for path in [*ROOT.glob("cli/providers/batch/*.py"), *ROOT.glob("operations/aws/batch/*.py")]:
        text = path.read_text()
        for method in re.findall(r"\.(\w+)\(", text) + re.findall(r'get_paginator\("(\w+)"\)', text):
            called += [operations[method]] if method in operations else []
    page = (ROOT / "docs" / "reference" / "permissions.md").read_text()
    table = page.partition("## AWS Batch")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+:[A-Z]\w+)`", table))
    assert len(called) > 25
    assert [one for one in called if not one & named] == []
    assert named - IMAGE_PUSH <= set().union(*called)


# --- the report -------------------------------------------------------------------------------------------


def test_the_report_has_our_runs_beside_the_published_scaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number, (nodes, rate) in enumerate(((1, 6000.0), (20, 108000.0), (20, 110000.0))):
        run_records.keep_record(
            "aws-batch",
            {
                "job_id": f"job-{number}", "job_name": "n", "machine": "p3dn.24xlarge", "nodes": nodes,
                "gpus": 8 * nodes, "seconds_job": 60.0, "cost_usd": 1.5,
                "result": {"images_per_second": rate},
            },
        )  # fmt: skip
    made = reports.make(["aws-batch"], tmp_path, project=ROOT)
    rows = list(csv.DictReader(made.table.open()))
    stated = [row for row in rows if row["origin"] == "published" and not row["note"]]
    assert [(row["gpus"], row["images_per_second"], row["speed_up"]) for row in stated] == [
        ("160", "100000.0", "20.00")
    ]
    inferred = {row["gpus"]: row["note"] for row in rows if row["origin"] == "follows from “linear”"}
    assert inferred == dict.fromkeys(("8", "16", "32", "64", "128"), "follows from linear scaling")
    mine = {row["job_id"]: row["speed_up"] for row in rows if row["origin"] == "ours"}
    assert mine == {"job-0": "1.00", "job-1": "18.17", "job-2": "18.17"}, "the median of repeats"
    page = made.page.read_text()
    read = Page(page)
    assert read.of("th") == [
        "From", "Machines", "GPUs", "Machine", "Images/s", "Images/s a GPU", "Speed-up", "Time", "Cost",
        "Job",
    ]  # fmt: skip
    assert read.of("td").count("published") == 1, "what nobody has stated is not called so"
    assert read.of("td").count("follows from “linear”") == 5
    assert {"6,000", "100,000", "5,000"} <= set(read.of("td"))
    assert "<svg" in page
    assert "on 160 GPUs, in images a second: 110,000." in page
    assert "http://www.w3.org" not in page.replace('xmlns="http://www.w3.org/2000/svg"', ""), "loads nothing"
    for file in run_records.records_folder("aws-batch").iterdir():
        file.unlink()
    without = Page(reports.make(["aws-batch"], tmp_path, project=ROOT).page.read_text())
    assert "Job" not in without.of("th"), "a column of which no row has anything"
    assert without.of("h1") == [
        "Published: about 100,000 images a second on 160 V100s, and “linear” scaling from 8 on"
    ]
    with sentences.raises("report.batch"):
        reports.make(["aws-batch", "local"], tmp_path, project=ROOT)
