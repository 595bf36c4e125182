"""A local cluster and the backend that has its state: who claims it, and when a claim ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.commands import list_clusters
from cli.engine import plugins
from cli.engine.automation import PulumiRunner
from cli.providers.local import published_settings
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program import clusters, folders, locations, owner
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_pulumi import called, install, spared
from tests.support.tiny_project import Tiny, make

SERVICE = "https://api.example.com"
STATE = "urn:pulumi:t::tiny::"
ROOT_ENTRY = {"urn": f"{STATE}pulumi:pulumi:Stack::tiny-t", "type": "pulumi:pulumi:Stack", "custom": False}
PROVIDER = {
    "urn": f"{STATE}pulumi:providers:command::default",
    "type": "pulumi:providers:command",
    "custom": True,
    "inputs": {"version": "1.0.0"},
}
COMMAND = {"urn": f"{STATE}command:local:Command::a", "type": "command:local:Command", "custom": True}
WRONG_PASSPHRASE = "could not create secrets manager for new stack: incorrect passphrase"
LOGGED_OUT = "PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions"
UNREACHABLE = 'could not load current stack: Get "https://api.example.com": dial tcp: no such host'


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch).write("command('a')")


def runner(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, url: str = SERVICE) -> PulumiRunner:
    monkeypatch.setenv("PULUMI_BACKEND_URL", url)
    return PulumiRunner(tiny.stack, local=True)


def is_free(tiny: Tiny) -> bool:
    return owner.read(tiny.stack) is None


def is_forgotten(tiny: Tiny) -> bool:
    return not locations.run_dir(tiny.stack).exists() and clusters.of(tiny.stack) is None


# What fails -> what the CLI says.
FAILURES: dict[str, dict[str, str]] = {
    "logged out": {"stack select": LOGGED_OUT},
    "backend not reachable": {"stack select": UNREACHABLE},
    "wrong passphrase": {"stack init": WRONG_PASSPHRASE},
    "wrong passphrase of a stack that is there": {"up": "decrypting secret: incorrect passphrase"},
    "no state": {"stack export": "could not export deployment: permission denied", "up": "failed"},
    "nothing said": {"stack select": ""},
}


@pytest.mark.parametrize("fails", FAILURES.values(), ids=FAILURES)
def test_an_up_that_fails_before_anything_is_made_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, fails: Mapping[str, str]
) -> None:
    install(tmp_path, monkeypatch, fails=fails, made="up" in fails)
    with sentences.raises("runner.pulumi-failed", *filter(None, fails.values())):
        runner(tiny, monkeypatch).up()
    # Where the state cannot be read, nobody knows what is there, and the claim ends with this process.
    assert is_forgotten(tiny) or "stack export" in fails
    elsewhere = f"file://{tmp_path}/mine"
    if is_free(tiny):
        install(tmp_path, monkeypatch)
        runner(tiny, monkeypatch, elsewhere).up()
        assert owner.read(tiny.stack) == elsewhere


@pytest.mark.parametrize("resources", [[], [ROOT_ENTRY, PROVIDER]], ids=["empty", "components"])
def test_a_program_that_fails_at_once_leaves_no_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, resources: list[dict[str, Any]]
) -> None:
    install(tmp_path, monkeypatch, status=255, resources=resources)
    with sentences.raises("runner.pulumi-failed"):
        runner(tiny, monkeypatch).up()
    assert is_forgotten(tiny)


def test_what_was_made_keeps_its_owner_and_so_does_a_cluster_that_had_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    install(tmp_path, monkeypatch, status=255, resources=[ROOT_ENTRY, PROVIDER, COMMAND])
    owner.claim(tiny.stack, SERVICE)  # else the engine would destroy first what the run directory lacks
    (locations.run_dir(tiny.stack) / "cloud").mkdir()
    with sentences.raises("runner.pulumi-failed"):
        runner(tiny, monkeypatch).up()
    assert owner.read(tiny.stack) == SERVICE
    install(tmp_path, monkeypatch, status=255)
    with sentences.raises("runner.pulumi-failed"):
        runner(tiny, monkeypatch).up()
    assert owner.read(tiny.stack) == SERVICE, "it had one before"
    with sentences.raises("runner.other-owner", f"PULUMI_BACKEND_URL={SERVICE} pulumi destroy"):
        runner(tiny, monkeypatch, "file:///elsewhere").up()


def test_ctrl_c_before_anything_is_made_leaves_no_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    install(tmp_path, monkeypatch, signals={"up": signal.SIGINT})
    with pytest.raises(UserError) as caught:
        runner(tiny, monkeypatch).up()
    assert (caught.value.code, caught.value.exit_code) == ("runner.interrupted", EXIT_INTERRUPTED)
    assert is_forgotten(tiny)


@pytest.mark.parametrize("call", ["stack select", "stack init", "stack export", "up"])
def test_a_killed_up_keeps_nobody_else_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, call: str
) -> None:
    install(tmp_path, monkeypatch, signals={call: signal.SIGKILL}, made=False)
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from cli.engine.automation import PulumiRunner
from infra.program import locations
from infra.program.stack import Stack
locations.run_root = lambda: Path({str(tiny.run_root)!r})
PulumiRunner(Stack(Path({str(tiny.path)!r}), "t"), local=True).up()
"""
    env = {**os.environ, "PULUMI_BACKEND_URL": SERVICE}
    killed = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert is_free(tiny)
    assert (locations.run_dir(tiny.stack) / owner.OWNER).exists() == (call in ("stack export", "up"))
    assert list_clusters.find(tiny.path, clouds=False) == ([], []), "nothing is there"
    assert published_settings.settings(StackUp(tiny.stack, "local")) is None, "so it is not half up"
    install(tmp_path, monkeypatch)
    elsewhere = f"file://{tmp_path}/mine"
    runner(tiny, monkeypatch, elsewhere).up()
    assert owner.read(tiny.stack) == elsewhere


def test_a_claim_counts_while_its_process_lives_or_there_is_a_cluster(tiny: Tiny) -> None:
    owner.claim(tiny.stack, SERVICE)
    run = locations.run_dir(tiny.stack)
    assert owner.read(tiny.stack) == SERVICE, "this process lives"
    for text in ("4194304 1\n", "x\n", "", f"{os.getpid()} 1\n"):
        (run / owner.CLAIMANT).write_text(text)
        assert is_free(tiny), "nothing is there, and nobody makes anything"
        with sentences.raises("runner.other-owner"):
            (run / "cloud").mkdir()
            owner.check(tiny.stack, "file:///elsewhere")
        (run / "cloud").rmdir()
    owner.claim(tiny.stack, "file:///elsewhere")
    assert owner.read(tiny.stack) == "file:///elsewhere"
    owner.release(tiny.stack)
    assert is_forgotten(tiny)


@pytest.mark.parametrize("fails", [{"stack select": UNREACHABLE}, {"stack output": "incorrect passphrase"}])
@pytest.mark.parametrize("verb", ["outputs", "preview", "destroy", "check_destroy"])
def test_a_cli_that_fails_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, verb: str, fails: Mapping[str, str]
) -> None:
    install(tmp_path, monkeypatch, fails=fails)
    engine = runner(tiny, monkeypatch)
    if verb == "outputs" or "stack select" in fails:
        with sentences.raises("runner.pulumi-failed", *fails.values()) as raised:
            getattr(engine, verb)()
        assert "Traceback" not in str(raised.value)


def test_a_configuration_that_only_the_program_refuses_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    text = "the configuration of stack t: 1 mistake.\n\nslurm-stacks:cluster [value.secret]"
    event = {"diagnosticEvent": {"message": f"{text}\n", "severity": "error", "color": "never"}}
    install(tmp_path, monkeypatch, [event], status=255)
    with pytest.raises(UserError, match="1 mistake") as caught:
        runner(tiny, monkeypatch).up()
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("text", ["config: [", "- a", "\tx", "config: {a: b}\n"])
def test_a_stack_file_that_nobody_can_read_keeps_no_stack_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, text: str
) -> None:
    calls = install(tmp_path, monkeypatch)
    copies: list[str] = []
    monkeypatch.setattr(PulumiRunner, "_forget", lambda _self: copies.append(_copy(tiny).read_text()))
    tiny.stack.file.write_text(text)
    runner(tiny, monkeypatch).destroy()
    assert len(called(calls, "destroy")) == 1
    assert copies == [text if "a: b" in text else ""]


def _copy(tiny: Tiny) -> Path:
    return locations.state_dir(tiny.stack) / "engine" / tiny.stack.file.name


# --- the salt of the stack --------------------------------------------------------------------------------


def test_a_salt_of_an_earlier_stack_is_not_used_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    calls = install(tmp_path, monkeypatch, made=False)
    engine = locations.state_dir(tiny.stack) / "engine"
    engine.mkdir(parents=True)
    (engine / tiny.stack.file.name).write_text("encryptionsalt: v1:of-another-passphrase\n")
    runner(tiny, monkeypatch).up()
    ((words, _),) = called(calls, "up")
    assert Path(words[words.index("--config-file") + 1]).read_text().strip() == "encryptionsalt: v1:new"
    runner(tiny, monkeypatch).destroy()
    assert not engine.exists(), "the next stack of this name has another one"


# --- what is protected ------------------------------------------------------------------------------------


def test_what_is_protected_is_found_before_anything_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    kept = {**COMMAND, "protect": True}
    calls = install(tmp_path, monkeypatch, resources=[ROOT_ENTRY, kept])
    engine = runner(tiny, monkeypatch)
    with sentences.raises("runner.protected", f"pulumi state unprotect {COMMAND['urn']} --stack t") as raised:
        engine.check_destroy()
    assert raised.value.exit_code == EXIT_REFUSED
    # The run directory is gone, so an `up` begins with a destroy.
    with sentences.raises("runner.protected"):
        engine.up()
    assert called(calls, "destroy", "up") == []
    install(tmp_path, monkeypatch, resources=[ROOT_ENTRY, COMMAND])
    engine.check_destroy()


# --- plugins that nobody needs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packages", "there", "resources", "expected"),
    [
        (("command",), True, [], True),
        (("command",), False, [], False),
        (("command",), True, [PROVIDER], False),  # the state needs an older one
        (("command", "gcp"), True, [], True),
    ],
)
def test_no_plugin_is_downloaded_where_all_that_the_stack_uses_are_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny: Tiny,
    packages: tuple[str, ...],
    there: bool,
    resources: list[dict[str, Any]],
    expected: bool,
) -> None:
    monkeypatch.delenv(plugins.NO_DOWNLOADS, raising=False)
    summary = {"maybeCorrupt": False, "durationSeconds": 1, "resourceChanges": {}, "PolicyPacks": {}}
    calls = install(tmp_path, monkeypatch, [{"summaryEvent": summary}], resources=resources)
    for plugin in plugins.of_program(packages) if there else ():
        (tmp_path / f"pulumi-home/plugins/resource-{plugin.name}-v{plugin.version}").mkdir(parents=True)
    monkeypatch.setenv("PULUMI_BACKEND_URL", SERVICE)
    engine = PulumiRunner(tiny.stack, local=False, packages=packages)
    engine.preview()
    engine.up()
    assert spared(calls, "preview") == spared(calls, "up") == [expected]
    wanted = [list(plugin) for plugin in plugins.of_program(packages)]
    assert [words[3:] for words, _ in called(calls, "plugin")] == ([] if there else wanted * 2)
    monkeypatch.setenv(plugins.NO_DOWNLOADS, "false")
    engine.up()
    assert spared(calls, "up")[-1] is False, "the user's own word counts"


# --- a stack with another name ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["folder", "service"])
def test_a_renamed_stack_makes_no_second_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, backend: str
) -> None:
    """`pulumi stack rename` renames the state and the stack file, and a cluster goes by its stack's name."""
    states = tmp_path / "mine" / ".pulumi" / "stacks" / "tiny"
    states.mkdir(parents=True)
    url = f"file://{tmp_path}/mine" if backend == "folder" else SERVICE
    install(tmp_path, monkeypatch)
    (states / "t.json.gz").touch()
    runner(tiny, monkeypatch, url).up()
    (locations.run_dir(tiny.stack) / "cloud").mkdir()
    other = Tiny(tiny.path, tiny.run_root, "new")
    other.stack.file.touch()
    owner.check_claim(other.stack, url)  # two stacks side by side
    (states / "t.json.gz").rename(states / "new.json.gz")
    tiny.stack.file.unlink()
    with sentences.raises("runner.renamed", "`pulumi stack rename t --stack new`") as raised:
        runner(other, monkeypatch, url).up()
    assert raised.value.exit_code == EXIT_REFUSED
    assert not locations.run_dir(other.stack).exists()
    owner.check_claim(other.stack, "file:///elsewhere")  # another backend, so another state
    owner.check_claim(Stack(tmp_path / "elsewhere", "new"), url)
    (states / "new.json.gz").rename(states / "t.json.gz")
    tiny.stack.file.touch()
    owner.check_claim(other.stack, url)


# --- the home folder of the CLI ---------------------------------------------------------------------------


def test_the_cli_is_at_home_where_the_user_database_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    monkeypatch.setattr(locations, "_home_in_database", lambda: home)
    for variable in ("PULUMI_HOME", "PULUMI_BACKEND_URL", "PULUMI_CREDENTIALS_PATH", "PULUMI_ACCESS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(other))
    for folder, url in ((home, "file:///home"), (other, "file:///other"), (tmp_path / "set", "file:///set")):
        file = folder / (".pulumi" if folder.name != "set" else "") / "credentials.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"current": url}))
    assert owner.logged_in(tiny.path) == "file:///home"
    assert owner.backend_folder("file://~/states") == home / "states"
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "set"))
    assert owner.logged_in(tiny.path) == "file:///set"

    def no_line() -> Path:
        raise KeyError

    monkeypatch.delenv("PULUMI_HOME")
    monkeypatch.setattr(locations, "_home_in_database", no_line)
    assert owner.logged_in(tiny.path) == "file:///other", "as Go's os/user"


def test_the_run_directory_keeps_only_its_own_files(tiny: Tiny) -> None:
    owner.claim(tiny.stack, SERVICE)
    run = folders.check_run_dir(tiny.stack)
    assert {entry.name for entry in run.iterdir()} == {owner.OWNER, owner.CLAIMANT}
    assert {oct(entry.stat().st_mode & 0o777) for entry in run.iterdir()} == {"0o644"}
