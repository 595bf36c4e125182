"""The lines of plan, doctor and status on the Slurm of a stack."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cli import slurm_release
from cli.commands.doctor import general
from cli.console.status import show_release
from cli.findings import Severity
from infra.config import StackConfig, load_file
from infra.design import design
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from node.design.containers import Package
from node.design.model import ClusterDesign, Image
from node.slurm import packaged
from operations.access import StackUp
from operations.local import system_packages

ROOT = Path(__file__).parents[2]
STACK = Stack(ROOT, "test")


def of_file(config: StackConfig) -> StackUp:
    return StackUp.of(STACK, config)


def of(stack: str) -> ClusterDesign:
    return design(load_file(ROOT / f"Pulumi.{stack}.yaml"), catalog())


def test_a_plan_names_the_release_and_nothing_open_where_it_is_maintained() -> None:
    name, lines = slurm_release.planned(of("gcp-cpu"))
    assert name.startswith("Slurm 24.11.5 (24.11.5-4+deb13u1 of Debian 13), maintained by")
    assert lines == []


def test_a_plan_names_what_is_open_for_what_the_cluster_uses() -> None:
    containers = of("aws-p4de-containers")
    slurm = dataclasses.replace(containers.slurm, source=None, accounting=False)
    name, lines = slurm_release.planned(dataclasses.replace(containers, slurm=slurm))
    assert "nobody maintains" in name
    ids = [line.split()[2] for line in lines]
    assert "CVE-2026-65108" in ids, "its containers are Pyxis's"
    assert "CVE-2026-65139" not in ids, "it has no accounting"
    assert all("{source: debian-13}" in line for line in lines)


def test_a_slurm_that_is_built_counts_as_the_package_that_it_is_built_from() -> None:
    name, lines = slurm_release.planned(of("aws-p4de-containers"))
    assert name.startswith("Slurm 24.11.5 (24.11.5-4+deb13u1 of Debian 13), maintained by")
    assert lines == []
    config = load_file(ROOT / "Pulumi.aws-gpu.yaml")
    there = {"slurm": {"version": "24.11.5-4+deb13u1", "suite": "noble"}}
    assert slurm_release.running(of_file(config), there) == (name, [])


def test_the_release_of_the_users_own_packages_is_not_known_before_they_are_there() -> None:
    gpu = of("gcp-gpu")
    package = Package("https://example.org/slurmctld.deb", "0" * 64)
    slurm = dataclasses.replace(gpu.slurm, source=None, packages=(package,))
    name, lines = slurm_release.planned(dataclasses.replace(gpu, slurm=slurm))
    assert "your own packages" in name
    assert lines == []


def test_aws_batch_has_no_slurm() -> None:
    assert slurm_release.planned(of("aws-batch")) == ("", [])


def test_processes_of_this_machine_run_its_own_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "version", lambda: "22.05.8-4+deb12u2")
    monkeypatch.setattr(packaged, "suite", lambda: "bookworm")
    name, lines = slurm_release.planned(of("local"))
    assert "22.05.8-4+deb12u2 of Debian 12" in name
    assert any("CVE-2026-65107" in line for line in lines)
    assert all("suite: trixie" in line for line in lines)


def test_a_machine_without_slurm_will_get_its_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "version", lambda: None)
    monkeypatch.setattr(packaged, "suite", lambda: "trixie")
    assert "24.11.5-4+deb13u1 of Debian 13" in slurm_release.planned(of("local"))[0]
    monkeypatch.setattr(packaged, "suite", lambda: None)
    assert slurm_release.planned(of("local")) == ("", [])


@pytest.mark.parametrize("lacking", [True, False])
def test_a_plan_says_where_slurm_has_no_pmix(lacking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages, "has_no_pmix", lambda: lacking)
    for suite in ("bookworm", "forky"):
        image = Image(source=suite)
        boots = dataclasses.replace(of("local-machines"), image=image)
        built = dataclasses.replace(boots, slurm=dataclasses.replace(boots.slurm, source="debian-13"))
        said = [slurm_release.without_pmix(design) for design in (of("local"), boots, built)]
        assert [len(lines) for lines in said] == [lacking, suite == "forky", 0]
        assert all("`srun --mpi=pmix` does not work" in line for lines in said for line in lines)
    assert slurm_release.without_pmix(of("gcp-cpu")) == []


def test_the_doctor_warns_of_each_advisory_with_its_cure() -> None:
    gpu = of("aws-gpu")
    of_ubuntu = dataclasses.replace(gpu, slurm=dataclasses.replace(gpu.slurm, source=None))
    name, *advisories = general.slurm(of_ubuntu)
    assert (name.check, name.severity) == ("slurm.release", Severity.FINE)
    assert {finding.severity for finding in advisories} == {Severity.WARNS}
    assert all(finding.cure and "debian-13" in finding.cure for finding in advisories)


def test_the_status_is_about_the_package_that_the_controller_has(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_file(ROOT / "Pulumi.gcp-cpu.yaml")
    late = {"slurm": {"version": "24.11.5-4", "suite": "trixie"}}
    name, lines = slurm_release.running(of_file(config), late)
    assert "published advisories open" in name
    assert {line.split()[2] for line in lines} >= {"CVE-2026-65107", "CVE-2026-65138"}
    assert len(slurm_release.running(StackUp(STACK, "gcp"), late)[1]) > len(lines), (
        "without a stack file all are named"
    )
    show_release(name, lines)
    printed = " ".join(capsys.readouterr().out.split())
    assert "CVE-2026-65107" in printed
    assert "24.11.5-4 of Debian 13" in printed
    here = load_file(ROOT / "Pulumi.local.yaml")
    name, lines = slurm_release.running(of_file(here), late)
    assert "published advisories open (`./cluster doctor --stack test` names them)" in name
    assert lines == [], "status is read many times a day"
    unknown = {"slurm": {"version": None, "suite": None}}
    assert slurm_release.running(of_file(config), unknown) == ("", [])
    built = {"slurm": {"version": "25.11.8-1", "suite": "plucky"}}
    assert "25.11.8-1 of plucky), maintained by SchedMD" in slurm_release.running(of_file(config), built)[0]
