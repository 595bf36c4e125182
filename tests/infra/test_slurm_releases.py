"""The table of Slurm's releases, and what follows from it for a version."""

from __future__ import annotations

import datetime
import re

import pytest

from infra import slurm_releases
from infra.config import distributions
from infra.slurm_releases import Advisory, parse

TABLE = slurm_releases.table()
SEPTEMBER = [f"CVE-2026-{number}" for number in (65107, 65108, 65109, 65138, 65139, 65140, 65165, 65168)]


def open_in(version: str) -> list[str]:
    return [advisory.id for advisory in TABLE.open_in(version)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("slurm-wlm 23.11.4", ("23.11", 4, "")),
        ("24.11.5-4+deb13u1", ("24.11", 5, "4+deb13u1")),
        ("23.11.4-1.2ubuntu5", ("23.11", 4, "1.2ubuntu5")),
        ("slurm 26.05", ("26.05", 0, "")),
    ],
)
def test_versions_are_read_as_slurm_and_apt_print_them(text: str, parts: tuple[str, int, str]) -> None:
    assert parse(text) == parts


def test_a_text_without_a_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="no version"):
        parse("slurmctld")


@pytest.mark.parametrize(
    ("version", "ids"),
    [
        ("23.11.4-1.2ubuntu5", ["CVE-2025-43904", *SEPTEMBER]),
        ("23.11.11", SEPTEMBER),
        ("22.05.8-4+deb12u3", SEPTEMBER),
        ("22.05.8-4+deb12u2", ["CVE-2025-43904", *SEPTEMBER]),
        ("24.11.5-4", SEPTEMBER),
        ("24.11.5-4+deb13u1", []),
        ("24.11.5-4+deb13u2", []),
        ("25.05.9", []),
        ("25.05.8", SEPTEMBER),
        ("25.11.2-1ubuntu2", SEPTEMBER),
        ("25.11.8", []),
        ("26.05.3", SEPTEMBER),
        ("26.05.5-1", []),
        ("26.11.0", []),
    ],
)
def test_what_is_open_in_a_version(version: str, ids: list[str]) -> None:
    assert open_in(version) == ids


def test_advisories_of_2023_are_open_in_the_package_before_its_first_fix() -> None:
    assert open_in("22.05.8-4")[:2] == ["CVE-2023-41914", "CVE-2023-49933 to CVE-2023-49938"]


@pytest.mark.parametrize(
    ("source", "maintained"),
    [
        ("debian-12", False),
        ("debian-13", True),
        ("debian-testing", True),
        ("ubuntu-24.04", False),
        ("ubuntu-26.04", False),
    ],
)
def test_a_package_is_maintained_if_somebody_brings_fixes_and_has_brought_all(
    source: str, maintained: bool
) -> None:
    assert TABLE.maintained(TABLE.packages[source]) is maintained


def test_a_package_is_no_longer_maintained_when_everybodys_time_is_over() -> None:
    package = TABLE.packages["debian-13"]
    assert package.maintainer is not None
    assert TABLE.maintained(package, package.maintainer.until)
    assert not TABLE.maintained(package, package.maintainer.until + datetime.timedelta(days=1))


def test_the_table_has_what_it_refers_to() -> None:
    for name, release in TABLE.releases.items():
        known = [prior for prior in release.takes_over_from if prior >= min(TABLE.releases)]
        assert set(known) <= set(TABLE.releases), name
        assert all(prior < name for prior in release.takes_over_from), name
    for package in TABLE.packages.values():
        assert parse(package.version)[0] in TABLE.releases, package.title
    for advisory in TABLE.advisories:
        assert set(advisory.fixed) <= set(TABLE.releases), advisory.id
        assert advisory.affects in (None, *slurm_releases.FEATURES), advisory.id
        assert advisory.date <= TABLE.date, advisory.id
        assert re.match(r"CVE-\d{4}-\d{4,}", advisory.id), advisory.id
    assert all(source.startswith("https://") for source in TABLE.sources)


def test_every_distribution_that_machines_boot_has_a_package() -> None:
    for source, row in distributions.DISTRIBUTIONS.items():
        assert TABLE.packages[source].suite == row.suite


def test_lines_name_release_maintainer_and_cure() -> None:
    packages = TABLE.packages
    assert "maintained by Debian's security team until August 2028" in TABLE.described(packages["debian-13"])
    assert "nobody maintains: SchedMD's support ended in May 2025" in TABLE.described(
        packages["ubuntu-24.04"]
    )
    assert "8 published advisories open" in TABLE.described(packages["ubuntu-26.04"])
    assert "24.11.5-4 of Debian 13" in TABLE.described(packages["debian-13"], "24.11.5-4")
    lines = TABLE.open_lines("23.11.4", "upgrade it", {"pyxis": True})
    assert len(lines) == 5, lines
    assert all(line.endswith("; upgrade it") for line in lines)
    assert any("CVE-2026-65108" in line for line in lines)
    assert len(TABLE.open_lines("23.11.4", "upgrade it")) == 9


def test_a_release_between_two_fixed_ones_without_its_own_fix_is_open() -> None:
    advisory = Advisory(id="CVE-1", date=TABLE.date, what="x", fixed={"23.11": 1, "24.11": 1})
    assert [advisory.is_open(version) for version in ("24.05.9", "24.11.1", "25.05.0")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("before", "now", "may"),
    [
        ("23.11", "23.11", True), ("23.11", "24.11", True), ("23.11", "22.05", False),
        ("22.05", "25.11", False), ("24.11", "99.05", True), ("99.05", "24.11", False),
    ],
)  # fmt: skip
def test_a_release_takes_over_from_few_before_it_and_from_none_after_it(
    before: str, now: str, may: bool
) -> None:
    assert TABLE.takes_over(before, now) == may
