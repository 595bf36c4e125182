"""The runner of the CLI: its backend, what it does not change in the checkout, and who owns the cluster."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from test_engine_semantics import write

from cli import engine as runner
from cli.console.events import Event, Message
from cli.engine.runner import Runner
from infra.errors import UserError
from infra.program import locations, owner
from tests.support.tiny_project import Run, Tiny, make

CONFIG = """\
    # A comment that a rewrite would lose.
    config:
      tiny:word:   'spaced'
"""
PROGRAM = """
    from pathlib import Path
    a = command("a", create="echo made; " + say("a+"), opts={"additional_secret_outputs": ["stdout"]})
    pulumi.export("word", config.require("word"))
    pulumi.export("where", str(Path.cwd()))
    pulumi.export("secret", a.stdout)
"""


@pytest.fixture
def tiny(pulumi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    project = make(tmp_path, monkeypatch)
    write(project, PROGRAM, CONFIG)
    return project


def snapshot(folder: Path) -> dict[str, str]:
    """Return the content of everything in the checkout except Python's caches and the stacks' states."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", locations.STATE_FOLDER} & set(path.parts)
    }


def chosen(tiny: Tiny, events: list[Event] | None = None) -> Runner:
    found = runner.select(tiny.stack, "local", (events if events is not None else []).append)
    assert found.name == "pulumi"
    return found


def test_without_a_login_the_state_is_ours_and_the_checkout_stays_as_it_was(tiny: Tiny) -> None:
    before = snapshot(tiny.path)
    events: list[Event] = []
    engine = chosen(tiny, events)
    assert engine.outputs() is None
    engine.destroy(events.append)
    assert engine.preview().counts == {"created": 2}
    assert tiny.words == []
    assert not tiny.state_file.parent.exists()
    outputs = engine.up(events.append)
    assert outputs == {"word": "spaced", "where": str(tiny.path), "secret": "[secret]"}
    assert "the state is kept here, with no login to Pulumi, in file://" in Run(None, events).messages
    assert owner.read(tiny.stack) == owner.IN_CHECKOUT
    passphrase = tiny.state_file.with_name("passphrase")
    assert passphrase.stat().st_mode & 0o777 == 0o600
    assert len(passphrase.read_text()) >= 32
    assert engine.outputs() == outputs
    again: list[Event] = []
    assert engine.up(again.append) == outputs
    assert Run(None, again).counts == {"unchanged": 2}
    assert snapshot(tiny.path) == before
    engine.destroy()
    assert tiny.words == ["a+", "a-"]
    assert engine.outputs() is None
    assert snapshot(tiny.path) == before
    assert not tiny.state_file.parent.exists()
    assert not tiny.run_root.exists()


def test_a_stack_that_began_without_a_login_stays_where_it_is(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(tiny).up()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{elsewhere}")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "another")
    events: list[Event] = []
    chosen(tiny).up(events.append)
    assert Run(None, events).counts == {"unchanged": 2}
    chosen(tiny).destroy()
    assert tiny.words == ["a+", "a-"]
    assert list(elsewhere.iterdir()) == []


def test_with_a_login_the_users_backend_is_used(tiny: Tiny, backend: str) -> None:
    before = snapshot(tiny.path)
    for _ in range(2):  # a second life after a destroy, with the history of the first
        engine = chosen(tiny)
        engine.up()
        assert owner.read(tiny.stack) == backend
        assert list(Path(backend.removeprefix("file://")).rglob("stacks/tiny/t.json"))
        assert snapshot(tiny.path) == before
        events: list[Event] = []
        engine.up(events.append)
        assert Run(None, events).counts == {"unchanged": 2}
        engine.destroy()
        assert tiny.words == ["a+", "a-"]
    assert snapshot(tiny.path) == before
    assert owner.read(tiny.stack) is None


def test_plain_pulumi_takes_over_a_stack_of_ours(tiny: Tiny, backend: str) -> None:
    chosen(tiny).up()
    done = subprocess.run(
        ["pulumi", "up", "--yes", "--non-interactive", "--stack", "t", "--expect-no-changes"],
        cwd=tiny.path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        ["pulumi", "destroy", "--yes", "--non-interactive", "--stack", "t"],
        cwd=tiny.path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert tiny.words == ["a+", "a-"]
    # The file that names the owner is deleted with the run directory, and then `down` has nothing to do.
    chosen(tiny).destroy()
    assert owner.read(tiny.stack) is None


def test_a_stack_file_with_its_own_encryption_is_used_as_it_is(tiny: Tiny, backend: str) -> None:
    for arguments in (
        ["stack", "init", "t"],
        ["config", "set", "--secret", "word", "encrypted", "--stack", "t"],
    ):
        subprocess.run(
            ["pulumi", *arguments, "--non-interactive"], cwd=tiny.path, check=True, capture_output=True
        )
    before = snapshot(tiny.path)
    engine = chosen(tiny)
    assert engine.up()["word"] == "encrypted"
    assert snapshot(tiny.path) == before
    engine.destroy()


def test_the_engines_output_reaches_the_events(tiny: Tiny, backend: str) -> None:
    program = """
        pulumi.log.warn("look out")
        pulumi.log.info("by the way")
        Command("a", create="echo out; echo err >&2")
    """
    write(tiny, program)
    events: list[Event] = []
    engine = chosen(tiny)
    engine.up(events.append)
    run = Run(None, events)
    assert sorted(run.lines) == ["err", "out"]
    said = {e.text: e.level for e in events if isinstance(e, Message)}
    # The engine itself warns about a plugin on PATH.
    assert {text: level for text, level in said.items() if "$PATH" not in text} == {
        "look out": "warning",
        "by the way": "info",
    }
    assert run.operations == {"a": "created"}
    engine.destroy()


def test_nobody_owns_a_cluster_twice(tiny: Tiny, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tiny, 'command("a", create=say("a+"))')  # which the embedded runner knows as well
    chosen(tiny).up()
    with pytest.raises(UserError, match=f"`PULUMI_BACKEND_URL={backend} pulumi destroy --stack t`"):
        tiny.up()
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///elsewhere")
    with pytest.raises(UserError, match="Destroy it first"):
        runner.select(tiny.stack, "local")
    monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
    chosen(tiny).destroy()
    assert tiny.words == ["a+", "a-"]
    monkeypatch.delenv("PULUMI_BACKEND_URL")
    tiny.up()
    assert runner.select(tiny.stack, "local").name == "embedded"
    tiny.destroy()


def test_a_mistake_of_the_program_is_shown(tiny: Tiny, backend: str) -> None:
    write(tiny, "raise ValueError('so it is')")
    with pytest.raises(UserError, match="ValueError: so it is") as raised:
        chosen(tiny).up()
    assert raised.value.exit_code == 1
    chosen(tiny).destroy()
    assert os.environ["PULUMI_BACKEND_URL"] == backend


def pulumi_says(tiny: Tiny, *words: str) -> None:
    line = ["pulumi", *words, "--yes", "--non-interactive"]
    subprocess.run(line, cwd=tiny.path, check=True, capture_output=True)


def test_a_backend_that_does_not_answer_claims_nothing(
    tiny: Tiny, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = chosen(tiny)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/nowhere")
    for operation in (engine.up, engine.outputs, engine.destroy):
        with pytest.raises(UserError) as raised:
            operation()
        assert raised.value.code == "runner.pulumi-failed"
        assert owner.read(tiny.stack) is None
    monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
    chosen(tiny).up()
    assert owner.read(tiny.stack) == backend
    chosen(tiny).destroy()


def test_a_stack_that_was_removed_comes_up_with_another_passphrase(
    tiny: Tiny, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(tiny).up()
    with monkeypatch.context() as other:
        other.setenv("PULUMI_CONFIG_PASSPHRASE", "another")
        with pytest.raises(UserError) as raised:
            chosen(tiny).outputs()
        assert raised.value.code == "runner.pulumi-failed"
    chosen(tiny).destroy()
    pulumi_says(tiny, "stack", "rm", "t", "--preserve-config")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "another")
    chosen(tiny).up()
    chosen(tiny).destroy()


def test_what_is_protected_is_found_before_anything_is_deleted(tiny: Tiny, backend: str) -> None:
    engine = chosen(tiny)
    engine.up()
    pulumi_says(tiny, "state", "protect", "--all", "--stack", "t")
    with pytest.raises(UserError) as raised:
        engine.check_destroy()
    assert (raised.value.code, raised.value.exit_code) == ("runner.protected", 3)
    pulumi_says(tiny, "state", "unprotect", "--all", "--stack", "t")
    engine.check_destroy()
    engine.destroy()
    assert tiny.words == ["a+", "a-"]
