"""Two stacks with one cluster name: the second is refused before anything is made, and ends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli import engine as runner
from cli.findings import Finding, Severity
from cli.providers.clouds import known_clusters
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from operations.access import StackUp
from tests.support import sentences
from tests.support.cloud_up import FILE, cloud, head, made, outputs, provider, state
from tests.support.fake_cloud import PLACE, FakeCloud, FakeProvider, Head

__all__ = ["cloud", "head", "provider", "state"]
OF_FILE = ClusterRef("renamed", "eu-west-1")
"""The cluster that the stack file names."""
OTHERS = [f"secret {number}" for number in range(7)]


def nothing() -> dict[str, Any]:
    return {}


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    (tmp_path / "Pulumi.mine.yaml").write_text(FILE)
    return Stack(tmp_path, "mine")


def check(
    provider: FakeProvider, stack: Stack, known: Any = nothing, design: ClusterDesign | None = None
) -> list[str]:
    said: list[str] = []
    provider.check_changes(stack, design or made(), known, said.append, replace=False)
    return said


def findings(provider: FakeProvider, stack: Stack) -> list[Finding]:
    (look,) = (one for one in provider.diagnose(stack, made(), None) if one.name == "name")
    return list(look.look())


def test_up_is_refused_where_another_stack_has_a_cluster_of_that_name(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack
) -> None:
    cloud.left = OTHERS
    with pytest.raises(UserError) as caught:
        check(provider, stack)
    assert caught.value.exit_code == EXIT_REFUSED
    text = str(caught.value)
    assert text.startswith(
        "nothing was made: slurm-stacks:cluster.name: c is the name of a cluster in region-1"
    )
    assert "secret 0, secret 1, secret 2, secret 3, secret 4, 2 things more. " in text
    assert "Write another `name` into Pulumi.mine.yaml" in text
    assert "`./cluster down --stack mine`" in text
    assert known_clusters.known_places(stack) == [], "it is not taken for our own the next time"
    with sentences.raises("cluster.name-taken"):
        check(provider, stack)


@pytest.mark.parametrize("stays", [True, False])
def test_a_free_name_is_used_and_is_ours_from_then_on(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack, stays: bool
) -> None:
    """Also after an `up` that failed: the engine then has no outputs."""
    assert check(provider, stack) == []
    cloud.left = OTHERS if stays else []
    assert check(provider, stack) == []


def test_what_the_engine_knows_is_ours(cloud: FakeCloud, provider: FakeProvider, stack: Stack) -> None:
    cloud.left = OTHERS
    with sentences.raises("cluster.name-taken"):
        check(provider, stack, lambda: outputs(name="d"))
    assert check(provider, stack, outputs) == [], "a colleague's checkout with the same backend"


def test_on_google_cloud_a_name_is_one_in_the_whole_project(provider: FakeProvider, stack: Stack) -> None:
    moved = made(region="elsewhere", zone="elsewhere-a", project="p")
    other = FakeCloud(ClusterRef.of(moved))
    other.left = OTHERS
    provider.clouds[ClusterRef.of(moved)] = other
    with sentences.raises("cluster.name-taken"):
        check(provider, stack, lambda: outputs(project="q"), moved)
    here = lambda: outputs(zone="region-1-a", project="p")  # noqa: E731
    assert check(provider, stack, here, moved) == [], "it is this stack's own that moves"


def test_a_cloud_that_does_not_say_it_stops_nobody(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack
) -> None:
    cloud.refuses = UserError("the cloud does not answer", code="cluster.no-answer")
    assert check(provider, stack)[0] == (
        "whether another stack has a cluster of this name cannot be told: the cloud does not answer"
    )


def test_doctor_says_it_too(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Engine:
        known: dict[str, Any] = {}  # noqa: RUF012

        def outputs(self) -> dict[str, Any]:
            return self.known

    engine = Engine()
    monkeypatch.setattr(runner, "select", lambda *_: engine)
    (finding,) = findings(provider, stack)
    sentences.finding(finding, "name", Severity.FINE)
    cloud.left = OTHERS
    (finding,) = findings(provider, stack)
    assert finding.severity is Severity.STOPS
    sentences.finding(finding, "name", Severity.STOPS, "slurm-stacks:cluster.name", "`name`")
    cloud.refuses = UserError("no answer", code="cluster.no-answer")
    (finding,) = findings(provider, stack)
    assert finding.severity is Severity.WARNS
    cloud.refuses = None
    engine.known = outputs()
    assert findings(provider, stack) == []
    known_clusters.note_cluster(stack, PLACE)
    cloud.refuses = UserError("no answer", code="cluster.no-answer")
    assert findings(provider, stack) == [], "ours is not asked about"


def test_down_of_a_stack_that_has_made_nothing_ends_no_other_stacks_cluster(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack, head: Head
) -> None:
    provider.clouds[OF_FILE] = cloud
    cloud.run("controller", stack="theirs")
    with sentences.raises(
        "cluster.of-another-stack", "eu-west-1", "`./cluster down --stack theirs`"
    ) as caught:
        provider.drain(StackUp(stack, "aws"), nothing, print, print)
    assert caught.value.exit_code == EXIT_REFUSED
    assert known_clusters.known_places(stack) == []
    assert head.lines == [], "no partition is held"


@pytest.mark.parametrize("owner", ["mine", None])
def test_down_without_a_record_still_ends_what_is_this_stacks(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack, head: Head, owner: str | None
) -> None:
    """The state of the engine may be lost."""
    provider.clouds[OF_FILE] = cloud
    cloud.up(made())
    cloud.there.clear()
    cloud.run("controller", stack=owner)
    provider.drain(StackUp(stack, "aws"), nothing, lambda _line: None, lambda _jobs: None)
    assert head.lines
