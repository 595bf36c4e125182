"""The choice of the runner of a stack: a cluster never has two owners."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import engine
from cli.console.events import Event, Message
from cli.engine.automation import PulumiRunner
from infra.program import locations, owner
from infra.program.stack import Stack
from tests.support import sentences
from tests.support.tiny_project import Tiny, make


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    for variable in ("PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN", "PULUMI_CREDENTIALS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi-home"))
    return make(tmp_path, monkeypatch).write("command('a')")


@pytest.fixture
def no_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert shutil.which("pulumi") is None


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a `pulumi` on PATH that is a shell script."""

    def install(script: str) -> Path:
        program = tmp_path / "bin" / "pulumi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho \"$*\" >> '{program}.calls'\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return program.with_name("pulumi.calls")

    return install


def with_plugin() -> str:
    from importlib.metadata import version

    plugin = {"name": "command", "kind": "resource", "version": version("pulumi-command")}
    return f"echo '{json.dumps([plugin])}'"


def said(events: list[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Message))


@pytest.mark.usefixtures("no_cli")
def test_without_the_cli_a_local_stack_is_embedded(tiny: Tiny) -> None:
    assert engine.select(tiny.stack, "local").name == "embedded"


@pytest.mark.usefixtures("no_cli")
@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_without_the_cli_a_cloud_is_refused(tiny: Tiny, provider: str) -> None:
    with sentences.raises("runner.needs-pulumi") as raised:
        engine.select(tiny.stack, provider)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("provider", ["local", "aws", "gcp"])
def test_with_the_cli_and_its_plugin_the_cli_runs(
    tiny: Tiny, cli: Callable[[str], Path], provider: str
) -> None:
    cli(with_plugin())
    assert engine.select(tiny.stack, provider).name == "pulumi"


def test_without_the_plugin_the_embedded_runner_takes_over_and_says_so(
    tiny: Tiny, cli: Callable[[str], Path]
) -> None:
    calls = cli("[ $2 = ls ] && echo '[]' && exit; echo 'no route to host' >&2; exit 1")
    events: list[Event] = []
    assert engine.select(tiny.stack, "local", events.append).name == "embedded"
    assert "cannot get its command plugin (no route to host): the embedded runner takes over" in said(events)
    assert any(line.startswith("plugin install resource command ") for line in calls.read_text().splitlines())


def test_an_embedded_cluster_stays_embedded_when_the_cli_comes(
    tiny: Tiny, cli: Callable[[str], Path]
) -> None:
    tiny.up()
    calls = cli(with_plugin())
    events: list[Event] = []
    chosen = engine.select(tiny.stack, "local", events.append)
    assert chosen.name == "embedded"
    assert "brought up without the Pulumi CLI and stays so until `./cluster down --stack t`" in said(events)
    assert chosen.outputs() == {}
    chosen.destroy()
    assert engine.select(tiny.stack, "local").name == "pulumi"
    assert calls.exists()


def test_the_cli_refuses_an_embedded_cluster(tiny: Tiny) -> None:
    tiny.up()
    direct = PulumiRunner(tiny.stack, local=True)
    for operation in (direct.up, direct.destroy):
        with sentences.raises("runner.other-owner", "`./cluster down --stack t`") as raised:
            operation()
        assert raised.value.exit_code == 3


@pytest.mark.usefixtures("no_cli")
def test_a_cluster_of_a_backend_is_refused_when_the_cli_has_gone(tiny: Tiny) -> None:
    owner.claim(tiny.stack, "https://api.pulumi.com")
    with sentences.raises("runner.other-owner", "PULUMI_BACKEND_URL=https://api.pulumi.com"):
        engine.select(tiny.stack, "local")
    owner.release(tiny.stack)
    owner.claim(tiny.stack, owner.fallback_url(tiny.stack))
    with sentences.raises("runner.other-owner", "`./cluster down --stack t`", "`pulumi`"):
        engine.select(tiny.stack, "local")


def test_a_cluster_of_another_backend_is_refused(
    tiny: Tiny, cli: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = cli(with_plugin())
    owner.claim(tiny.stack, "file:///one")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///one")
    assert engine.select(tiny.stack, "local").name == "pulumi"
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///two")
    with sentences.raises("runner.other-owner", "PULUMI_BACKEND_URL=file:///one"):
        engine.select(tiny.stack, "local")
    assert not calls.exists(), "a cluster that is up needs no search for plugins"


def test_where_the_user_is_logged_in(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources of the CLI in its order; each step overrides those before it."""
    assert owner.logged_in(tiny.path) is None
    assert PulumiRunner(tiny.stack, local=True).backend == owner.fallback_url(tiny.stack)
    monkeypatch.setenv("PULUMI_ACCESS_TOKEN", "x")
    assert owner.logged_in(tiny.path) == "https://api.pulumi.com"
    home = tmp_path / "pulumi-home"
    home.mkdir()
    (home / "credentials.json").write_text('{"current": "file://~"}')
    assert owner.logged_in(tiny.path) == "file://~"
    (tiny.path / "Pulumi.yaml").write_text("name: tiny\nruntime: python\nbackend: {url: 's3://bucket'}\n")
    assert owner.logged_in(tiny.path) == "s3://bucket"
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///env")
    assert owner.logged_in(tiny.path) == "file:///env"
    assert PulumiRunner(tiny.stack, local=True).backend == "file:///env"


def test_a_released_cluster_leaves_no_folder_even_if_its_own_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    for remove_first in (True, False):
        owner.claim(Stack(tmp_path, "test"), owner.EMBEDDED)
        if remove_first:
            shutil.rmtree(locations.run_dir(Stack(tmp_path, "test")))
        owner.release(Stack(tmp_path, "test"))
        assert not (tmp_path / "runs").exists()
