"""The pages of clients: what they say of accounting, MPI and lists of nodes is what the product does."""

from __future__ import annotations

import re

import pytest

from infra.config import load_file
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.model import Settings, Site
from node.slurm import conf
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
PROGRAMS = (ROOT / "docs" / "reference" / "programs.md").read_text(encoding="utf-8")
LINE = re.compile(r"^export MASTER_ADDR=.*$", re.MULTILINE)


def section(title: str, page: str = PAGE) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of a section's tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_who_needs_accounting_is_named_where_people_look() -> None:
    text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    (paragraph,) = [part for part in re.split(r"\n\n|\n\|", text) if "submitit" in part]
    (_, *table) = rows(section("Clients that need accounting"))
    clients = [row[0].split()[0] for row in table]
    assert {"submitit", "ReFrame", "TorchX", "NeMo-Run", "reportseff", "slurm-magic"} == set(clients)
    assert [client for client in clients if client not in paragraph] == []
    assert "slurm: {accounting: true}" in paragraph
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if "`Slurm accounting storage is disabled`" in line]
    assert "clients.md#clients-that-need-accounting" in row
    assert "slurm: {accounting: true}" in row


def test_every_client_has_its_version_and_its_result() -> None:
    """A name without a number says nothing to somebody who has another one."""
    parts = ("Workflow managers and libraries", "Launchers of jobs and clusters", "Training frameworks")
    for row in [row for part in parts for row in rows(section(part, PROGRAMS))[1:]]:
        assert re.search(r"\d", row[0]) or "toil" in row[0].lower(), row
        assert len(row) == 2, row


@pytest.mark.parametrize(
    ("stack", "on"), [("local", False), ("local-machines", True), ("aws-cpu", True), ("gcp-gpu", True)]
)
def test_accounting_is_on_where_the_page_says_it(stack: str, on: bool) -> None:
    assert "on by default on clouds and on machines that boot" in section("In short")
    cluster = design(load_file(ROOT / f"Pulumi.{stack}.yaml"), catalog())
    assert cluster.slurm.accounting is on


def test_the_default_of_mpi_is_that_of_the_page() -> None:
    assert "Slurm's default is `none` (`MpiDefault`), and stays so." in section("MPI")
    site = Site("/r", "slurm", "controller", "127.0.0.1")
    cluster = design(load_file(ROOT / "Pulumi.local.yaml"), catalog())
    assert "\nMpiDefault=none\n" in conf.render(Settings(cluster, site), (24, 11))["slurm.conf"]


def test_the_line_for_rank_0_is_the_same_on_all_pages() -> None:
    """`tests/cluster/test_nodes_by_name.py` runs it."""
    found = {page.name: LINE.findall(page.read_text(encoding="utf-8")) for page in ROOT.glob("docs/*.md")}
    named = {line for name in ("local.md", "clients.md") for line in found[name]}
    assert len(named) == 1
