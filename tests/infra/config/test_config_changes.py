"""Every key of a stack file says what a change of it does, and every field of the design has such a key."""

from __future__ import annotations

from typing import Annotated, get_args

import pytest
from pydantic import BaseModel

from cli.changes import table as comparison
from infra.config import changes
from infra.config.changes import Provider, Row
from infra.config.cluster import ClusterConfig
from infra.effects import Effect, Kind, Outcome, effect
from node.design.model import SharedPartition
from tests.support.aws_mocks import CONTROLLER, LOGIN, aws_design

PROVIDERS: tuple[Provider, ...] = get_args(Provider)
DERIVED = {
    "cluster.stack", "cluster.provider_settings",
    "controller.name", "controller.role", "controller.tags", "controller.price_hour",
    "controller.open_metadata",
    "login.name", "login.role", "login.tags", "login.price_hour", "login.image",
    "partitions.name", "partitions.reservations", "partitions.tmp_disk_mib",
    "storage.name", "storage.path", "storage.roles", "storage.served_by", "storage.options",
}  # fmt: skip
"""Fields of the design that follow from others, or for which each provider has its own rule."""
RULED: dict[Provider, set[str]] = {
    "aws": {"partitions.zones", "network.zones", "partitions.local_ssds"},
    "gcp": {"partitions.zones", "network.zones", "network.public_cidr", "network.private_cidr"},
    "local": set(),
}
"""Those for which a provider has a rule (`cli.providers`), or that it does not use."""


def silent(model: type[BaseModel]) -> list[str]:
    """The keys that neither say what a change does, nor lie in a section that says it."""
    known = list(changes.keys(model))
    said = {changes.of_table(key) for key, own in known if own is not None}
    return [
        key
        for key, _ in known
        if not any(other.startswith(f"{key}.") for other, _ in known)
        and not any(f"{changes.of_table(key)}.".startswith(f"{section}.") for section in said)
    ]


def test_every_key_says_what_a_change_of_it_does() -> None:
    assert len([key for key, _ in changes.keys(ClusterConfig)]) > 150, "the walk goes into the sections"
    assert silent(ClusterConfig) == []


def test_a_key_without_an_effect_is_found() -> None:
    class Inner(BaseModel):
        size: int

    class Outer(BaseModel):
        name: Annotated[str, effect(Kind.LIVE)]
        whole: Annotated[Inner, effect(Kind.LIVE)]
        parts: list[Inner]

    assert silent(Outer) == ["parts.size"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_field_of_the_design_is_shown_by_one_key(provider: Provider) -> None:
    design = aws_design(hosts=(CONTROLLER, LOGIN), shared_partitions=(SharedPartition("urgent", "cpu"),))
    there = {
        path
        for section, _, part in comparison.parts(design).values()
        for path, _, _ in comparison.values(section, part, part)
    }
    there -= {f"cluster.{name}" for name in ("hosts", "mounts", "batch", *comparison.SECTIONS)}
    there -= {"cluster.partitions", "cluster.shared_partitions"}
    shown = [field for row in changes.table(provider).values() for field in row.fields]
    assert len(shown) == len(set(shown))
    assert set(shown) & (DERIVED | RULED[provider]) == set()
    assert set(shown) | DERIVED | RULED[provider] == there


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_table_says_where_first_and_keeps_a_section_together(provider: Provider) -> None:
    keys = list(changes.table(provider))
    assert keys[: len(changes.LOCATION)] == list(changes.LOCATION)
    assert keys[-1] == "benchmark"
    sections = [key.partition(".")[0] for key in keys]
    runs = [section for n, section in enumerate(sections) if n == 0 or sections[n - 1] != section]
    assert len(runs) == len(set(runs))


def test_the_words_for_an_effect() -> None:
    kept = Outcome(Kind.NOTHING, "kept")
    assert effect(Kind.LIVE) == Effect(*(Outcome(Kind.LIVE),) * 3)
    assert effect(clouds=Kind.NODES, gcp=kept) == Effect(Outcome(Kind.NODES), kept, None)
    assert effect(Kind.LIVE, local=kept).local is kept


@pytest.mark.parametrize(
    ("provider", "key", "row"),
    [
        ("gcp", "access.key", Row(Kind.NOTHING, ("access.key",), "AWS's", used=False)),
        ("aws", "access.users", Row(Kind.NOTHING, ("access.users",), "Google Cloud's", used=False)),
        ("local", "tags", Row(Kind.NOTHING, ("cluster.tags",), "the clouds'", used=False)),
        ("aws", "local.boot_delay", Row(Kind.NOTHING, ("local.boot_delay",), used=False)),
        # A field that two keys show is that of the key that the provider uses.
        ("aws", "storage.*.tier", Row(Kind.NOTHING, (), "Google Cloud's", used=False)),
        ("gcp", "storage.*.deployment", Row(Kind.NOTHING, (), "AWS's", used=False)),
        ("aws", "partitions.local", Row(Kind.NOTHING, used=False)),
        ("local", "instance_types.price_hour", Row(Kind.LIVE)),
        ("aws", "partitions.nodes.max", Row(Kind.LIVE, ("partitions.max",), less=Kind.ENDS)),
    ],
)
def test_the_row_of_a_key(provider: Provider, key: str, row: Row) -> None:
    assert changes.table(provider)[key] == row
