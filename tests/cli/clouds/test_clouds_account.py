"""`down`, its audit and what finds a cluster ask as the stack file says now, and as it did at `up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.providers.aws.provider import AwsProvider
from cli.providers.clouds import known_clusters
from cli.providers.clouds.slurm import SlurmCloudProvider
from infra.clouds.commands import ClusterRef
from infra.config import ConfigError
from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_cloud import FakeProvider

RESEARCH, OTHER = '{"profile":"research"}', '{"profile":"other"}'
PLACE = ClusterRef("aws-cpu", "eu-central-1")


def write(stack: Stack, line: str = "", broken: str = "") -> None:
    text = (ROOT / "Pulumi.aws-cpu.yaml").read_text()
    stack.file.write_text(text.replace("config:\n", f"config:\n{line}", 1) + broken)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "Pulumi.yaml").write_text("name: slurm-stacks\n")
    made = Stack(tmp_path, "s")
    write(made, "  aws:profile: research\n")
    return made


def at(settings: str | None) -> ClusterRef:
    return ClusterRef(PLACE.cluster, PLACE.region, provider_settings=settings)


def outputs() -> dict[str, object]:
    return {"cluster": {"name": PLACE.cluster, "region": PLACE.region}}


def asked(stack: Stack, *, known: bool = True) -> list[ClusterRef]:
    """Return the clusters of which `down` asks what is left."""
    provider = FakeProvider()
    provider.leftovers(StackUp(stack, "aws"), outputs if known else dict)
    return list(provider.clouds)


@pytest.mark.parametrize("known", [True, False])
def test_the_audit_asks_as_the_stack_file_says(known: bool, stack: Stack) -> None:
    assert asked(stack, known=known) == [at(RESEARCH)]


def test_after_another_profile_both_are_asked(stack: Stack) -> None:
    known_clusters.note_cluster(stack, at(RESEARCH))
    write(stack, "  aws:profile: other\n")
    assert asked(stack) == [at(OTHER), at(RESEARCH)], "the engine's first"


def test_a_former_profile_that_is_gone_is_named_with_what_to_do(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cloud:
        def __init__(self, place: ClusterRef) -> None:
            self.place = place

        def leftovers(self) -> list[str]:
            if self.place.provider_settings == RESEARCH:
                raise UserError("no such profile", EXIT_REFUSED, code="aws.credentials-unusable")
            return []

    monkeypatch.setattr(FakeProvider, "cloud", lambda _self, place: Cloud(place))
    known_clusters.note_cluster(stack, at(RESEARCH))
    with sentences.raises("aws.credentials-unusable", compared=False):
        FakeProvider().leftovers(StackUp(stack, "aws"), outputs)
    write(stack, "  aws:profile: other\n")
    record = clusters.of(stack)
    assert record is not None
    with sentences.raises(
        "cluster.former-account", RESEARCH, "no such profile", f"rm {record.file}", compared=False
    ) as raised:
        FakeProvider().leftovers(StackUp(stack, "aws"), outputs)
    assert raised.value.exit_code == EXIT_REFUSED
    assert clusters.of(stack) is not None, "nobody knows yet whether something is left"
    record.file.unlink()
    assert FakeProvider().leftovers(StackUp(stack, "aws"), outputs) == []


def test_an_environment_that_the_file_no_longer_names_is_not_waited_for(stack: Stack) -> None:
    known_clusters.note_cluster(stack, at('{"environment":["acme/aws-dev"],"profile":"research"}'))
    assert asked(stack) == [at(RESEARCH)]


@pytest.mark.parametrize("broken", ["nonsense: 1\n", "  slurm-stacks:no: 1\n"])
def test_other_mistakes_in_the_file_do_not_change_who_is_asked(broken: str, stack: Stack) -> None:
    write(stack, "  aws:profile: research\n", broken)
    assert asked(stack) == [at(RESEARCH)]


def test_without_a_file_that_can_be_read_the_record_says_who_is_asked(stack: Stack) -> None:
    known_clusters.note_cluster(stack, at(RESEARCH))
    stack.file.write_text("config: [")
    assert asked(stack) == [at(RESEARCH)]
    stack.file.unlink()
    known_clusters.note_cluster(stack, at(RESEARCH))
    assert asked(stack) == [at(RESEARCH)]


@pytest.mark.parametrize(
    "ask",
    [
        lambda provider, stack: provider.leftovers(StackUp(stack, "aws"), outputs),
        lambda provider, stack: provider.force_cleanup(StackUp(stack, "aws"), outputs),
        lambda provider, stack: provider.leftovers(StackUp(stack, "aws"), dict),
        lambda provider, stack: provider.ssh(StackUp(stack, "aws")),
        lambda provider, stack: provider.on_controller(StackUp(stack, "aws"), []),
    ],
    ids=["audit", "sweep", "audit without outputs", "exec", "backup"],
)
def test_a_setting_that_only_the_engine_follows_is_refused_before_anybody_is_asked(
    ask: object, stack: Stack
) -> None:
    known_clusters.note_cluster(stack, at(None))
    write(stack, "  aws:accessKey: AKIA\n")
    provider = FakeProvider()
    with pytest.raises(UserError) as raised:
        ask(provider, stack)  # type: ignore[operator]
    assert isinstance(raised.value, ConfigError)
    assert [mistake.code for mistake in raised.value.mistakes] == ["provider.refused"]
    assert not provider.clouds


@pytest.mark.parametrize("provider", [FakeProvider, AwsProvider])
@pytest.mark.parametrize(
    ("line", "top", "code"),
    [
        ("  aws:accessKey: AKIA\n", "", "provider.refused"),
        ("", "environment: [acme/aws-dev]\n", "cloud.environment-unknown"),
    ],
)
def test_down_is_refused_before_the_engine_destroys_anything(
    provider: type[SlurmCloudProvider], line: str, top: str, code: str, stack: Stack
) -> None:
    known_clusters.note_cluster(stack, at(None))
    write(stack, line, top)
    said: list[str] = []
    with pytest.raises(UserError) as raised:
        provider().drain(StackUp(stack, "aws"), outputs, said.append, lambda _jobs: None)
    mistakes = raised.value.mistakes if isinstance(raised.value, ConfigError) else ()
    assert ([mistake.code for mistake in mistakes] or [raised.value.code]) == [code]
    assert said == []


def test_old_records_without_settings_are_read(stack: Stack) -> None:
    known_clusters.note_cluster(stack, PLACE)
    assert known_clusters.known_places(stack) == [PLACE]
    assert PLACE.plain() == {"cluster": "aws-cpu", "region": "eu-central-1", "zone": None, "project": None}
