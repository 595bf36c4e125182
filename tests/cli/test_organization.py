"""The engine gets the organization of a stack, and in one checkout a short name means one organization's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli import engine as runner
from cli import hints, options, selection
from cli.engine import organization
from cli.engine.automation import PulumiRunner
from infra.config import ConfigError, stack_file
from infra.errors import EXIT_REFUSED, EXIT_USAGE
from infra.program import clusters, folders, owner
from infra.program.stack import Stack
from tests.support import sentences
from tests.support.checkout import ROOT, SMALL
from tests.support.fake_pulumi import install
from tests.support.tiny_project import Tiny, make


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    for variable in ("PULUMI_ACCESS_TOKEN", "PULUMI_CREDENTIALS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    return make(tmp_path, monkeypatch).write("command('a')")


@pytest.fixture
def calls(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CLI on PATH, whose user is logged in to a service. Returns the file with its calls."""
    noted = install(tmp_path, monkeypatch)
    monkeypatch.setenv("PULUMI_BACKEND_URL", "https://pulumi.example.test")
    return noted


def of(tiny: Tiny, name: str | None) -> Stack:
    """Return the stack with an organization."""
    return replace(tiny.stack, organization=name)


def named_to_the_engine(calls: Path) -> set[str]:
    """Return the names by which the engine was told of its stack."""
    found = set()
    for line in calls.read_text().splitlines() if calls.exists() else ():
        words, *_ = json.loads(line)
        if words[:2] in (["stack", "init"], ["stack", "select"], ["stack", "rm"]):
            found.add(next(word for word in words[2:] if not word.startswith("-")))
        elif "--stack" in words:
            found.add(words[words.index("--stack") + 1])
    return found


@pytest.mark.parametrize("act", ["up", "destroy", "outputs"])
@pytest.mark.parametrize("name", ["acme", "organization", None])
def test_the_engine_gets_the_full_name(act: str, name: str | None, tiny: Tiny, calls: Path) -> None:
    stack = of(tiny, name)
    getattr(PulumiRunner(stack, local=False), act)()
    expected = f"{name}/tiny/{stack.name}" if name else stack.name
    assert named_to_the_engine(calls) == {expected}


@pytest.mark.parametrize(
    ("name", "organization_and_short"),
    [
        ("team-a", (None, "team-a")),
        ("acme/team-a", ("acme", "team-a")),
        ("acme/slurm-stacks/team-a", ("acme", "team-a")),
        ("organization/slurm-stacks/team-a", ("organization", "team-a")),
    ],
)
def test_a_name_has_up_to_three_parts(name: str, organization_and_short: tuple[str | None, str]) -> None:
    stack = stack_file.named(name, ROOT)
    assert (stack.organization, stack.name) == organization_and_short
    assert stack.file == ROOT / "Pulumi.team-a.yaml"


@pytest.mark.parametrize(
    "name",
    ["acme/other/team-a", "../../x", "./x", "a/b/c/d", "/team-a", "acme//team-a", "acme/slurm-stacks/"],
)
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        stack_file.named(name, ROOT)
    assert raised.value.exit_code == EXIT_USAGE
    assert f"{name} " in str(raised.value).replace('"', " "), "the message has the whole name"
    assert raised.value.code == ("stack.other-project" if name == "acme/other/team-a" else "stack.name")


@pytest.mark.parametrize("way", ["option", "variable", "selected"])
def test_every_way_to_name_a_stack_takes_the_full_name(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (selection.VARIABLE, selection.PULUMI_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    (tmp_path / "Pulumi.yaml").write_text("name: slurm-stacks\n")
    (tmp_path / "Pulumi.team-a.yaml").write_text(SMALL)
    full = "acme/slurm-stacks/team-a"
    if way == "variable":
        monkeypatch.setenv(selection.PULUMI_VARIABLE, full)
    elif way == "selected":
        note = selection.note(tmp_path)
        note.parent.mkdir(parents=True)
        note.write_text(json.dumps({"stack": full}))
    stack = options._checked(full if way == "option" else options.default_stack())
    assert stack == Stack(tmp_path, "team-a", "acme")


def brought_up(stack: Stack) -> None:
    """Note that a cluster of the stack may be up."""
    clusters.note(stack, "aws", folders.make_state_dir(stack))


def test_a_short_name_means_the_organization_that_was_brought_up_from_here(tiny: Tiny) -> None:
    assert organization.resolved(of(tiny, None)) == of(tiny, None)
    brought_up(of(tiny, "acme"))
    assert organization.resolved(of(tiny, None)) == of(tiny, "acme")
    brought_up(of(tiny, None))
    assert organization.resolved(of(tiny, None)) == of(tiny, "acme"), "as messages name it"
    clusters.forget(of(tiny, None))
    assert organization.resolved(of(tiny, None)) == of(tiny, None)


@pytest.mark.parametrize("up", ["acme", None])
def test_another_organizations_stack_is_not_made_beside_it(up: str | None, tiny: Tiny, calls: Path) -> None:
    brought_up(of(tiny, up))
    with sentences.raises("stack.other-organization", "beta/", "down --stack") as raised:
        runner.select(of(tiny, "beta"), "aws")
    assert raised.value.exit_code == EXIT_REFUSED
    assert named_to_the_engine(calls) == set()


@pytest.mark.parametrize("words", ["org get-default", "whoami"])
def test_the_users_default_organization_is_that_of_a_short_name(
    words: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\ncase "$*" in "{words}"*) echo acme ;; *) exit 255 ;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    brought_up(of(tiny, None))
    assert organization.resolved(of(tiny, "acme")) == of(tiny, "acme")
    with sentences.raises("stack.other-organization", compared=False):
        organization.resolved(of(tiny, "beta"))


@pytest.mark.parametrize("plugin", [True, False], ids=["no CLI", "no plugin"])
def test_without_the_engine_an_organizations_stack_is_refused(
    plugin: bool, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if not plugin:
        program = tmp_path / "bin" / "pulumi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\nexit 255\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        monkeypatch.setenv("PULUMI_BACKEND_URL", "https://pulumi.example.test")
    with sentences.raises("stack.organization-needs-pulumi", "acme/tiny/") as raised:
        runner.select(of(tiny, "acme"), "local")
    assert raised.value.exit_code == EXIT_REFUSED
    assert runner.select(of(tiny, "organization"), "local").name == "embedded"


def test_without_a_login_an_organizations_stack_is_refused(
    tiny: Tiny, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULUMI_BACKEND_URL")
    with sentences.raises("stack.organization-without-login", "pulumi login") as raised:
        runner.select(of(tiny, "acme"), "aws")
    assert raised.value.exit_code == EXIT_REFUSED


def test_the_owners_command_has_the_full_name(tiny: Tiny) -> None:
    stack = of(tiny, "acme")
    assert f"pulumi destroy --stack {stack.engine_name}`" in owner.refusal(
        stack, "https://pulumi.example.test"
    )


def test_the_record_of_a_cluster_knows_the_full_name(tiny: Tiny) -> None:
    stack = of(tiny, "acme")
    clusters.note(stack, "local", folders.make_state_dir(stack))
    (record,) = clusters.recorded()
    assert record.home.engine_name == stack.engine_name


def test_a_plain_pulumi_up_is_refused_beside_another_organizations_cluster(tiny: Tiny) -> None:
    for up, program, allowed in (
        (None, "acme", True),
        ("acme", "acme", True),
        ("acme", "organization", True),
        ("acme", "beta", False),
    ):
        clusters.forget(of(tiny, None))
        brought_up(of(tiny, up))
        if allowed:
            owner.refuse_other_organization(of(tiny, program))
            continue
        with sentences.raises("runner.other-organization", "beta/", "acme/") as raised:
            owner.refuse_other_organization(of(tiny, program))
        assert raised.value.exit_code == EXIT_REFUSED


@pytest.mark.parametrize("up", [False, True])
def test_commands_in_messages_name_the_organization_until_the_short_name_means_it(
    up: bool, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_FULL", {})
    stack = of(tiny, "acme")
    if up:
        brought_up(stack)
    hints.name_in_full(stack)
    name = stack.name if up else f"acme/tiny/{stack.name}"
    for text in (
        f"run `./cluster up --stack {stack.name}`",
        f"run `{hints.hint('up', stack.name, '--replace')}`",
        f"`./cluster logs {stack.name} --stack {stack.name}` shows --stack {stack.name}-2",
    ):
        told = hints.from_here(text)
        assert f" --stack {name}" in told
        assert told.replace(f" --stack {name}", f" --stack {stack.name}") == text
    hints.name_in_full(of(tiny, None))
    assert len(hints._FULL) == (0 if up else 1)
