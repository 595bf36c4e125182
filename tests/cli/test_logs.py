"""`./cluster logs` on the engineer's machine, with the login machine's tool and without it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import main as cli
from cli.commands import logs
from cli.providers import login_machine
from cli.providers import provider as providers
from cli.providers.interface import HasLoginMachine
from cli.providers.local.provider import LocalProvider
from infra.config import parse
from infra.design import design
from infra.instance_types.catalog import catalog
from infra.program import locations
from infra.program.stack import Stack
from node.system.codec import to_json
from operations.access import StackUp
from operations.local import agent
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.stack_values import values

Tool = Callable[..., None]


@pytest.fixture
def up(tmp_path: Path) -> StackUp:
    return up_from(tmp_path)


def up_from(project: Path, name: str = "test") -> StackUp:
    return StackUp.of(Stack(project, name), parse(values("local"), name))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The run directory of a cluster whose controller has not booted."""
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(agent, "controller_is_dead", lambda _: False)
    made = RunDirectory.make(Stack(tmp_path, "test"))
    (made.path / "log" / "boot-controller.log").write_text("waiting for munged\n")
    return made


@pytest.fixture
def tool(run: RunDirectory) -> Tool:
    def write(script: str, interpreter: str = "/bin/sh") -> None:
        run.tool.parent.mkdir(parents=True, exist_ok=True)
        run.tool.write_text(f"#!{interpreter}\n{script}\n")
        run.tool.chmod(0o755)

    return write


def show(up: StackUp, what: str | None = None, **options: Any) -> int:
    return LocalProvider().logs(up, what, **{"lines": 40, "follow": False, **options})


def test_the_login_machines_tool_answers(
    tmp_path: Path, up: StackUp, tool: Tool, capfd: pytest.CaptureFixture[str]
) -> None:
    tool('echo "$*"; echo "$SLURM_CONF$SLURM_STACKS_PROJECT" >&2; exit 7')
    assert show(up) == 7
    assert show(up, "debug-1", lines=3, follow=True) == 7
    out, err = capfd.readouterr()
    assert out == "logs controller --lines=40\nlogs debug-1 --lines=3 --follow\n"
    assert err.splitlines()[0].endswith("/etc/slurm.conf")


def test_a_name_that_there_is_not_is_the_tools_to_say(
    tmp_path: Path, up: StackUp, tool: Tool, capfd: pytest.CaptureFixture[str]
) -> None:
    tool("echo no node or job is called nonsense >&2; exit 1")
    assert show(up, "nonsense") == 1
    assert capfd.readouterr() == ("", "no node or job is called nonsense\n")


@pytest.mark.parametrize(
    "broken",
    [
        ("echo 'usage: slurm-stacks [-h] …' >&2; exit 2", "/bin/sh"),
        ("echo 'Traceback (most recent call last):' >&2; exit 1", "/bin/sh"),
        ("true", "/no/such/python3"),
    ],
    ids=["an older tool", "a broken tool", "a lost interpreter"],
)
def test_files_are_read_here_where_the_tool_fails(
    tmp_path: Path,
    up: StackUp,
    tool: Tool,
    broken: tuple[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    tool(*broken)
    assert show(up) == 0
    out, err = capfd.readouterr()
    assert "waiting for munged" in out
    assert "tool for logs does not work" in err
    assert "Traceback" not in err + out


def test_an_up_that_failed_half_way_is_shown_as_far_as_it_came(
    tmp_path: Path, up: StackUp, run: RunDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    assert show(up) == 0
    out, err = capfd.readouterr()
    assert "waiting for munged" in out
    assert "(not there: the controller's boot has not come that far)" in out
    assert "These are the last lines of its log files:" in err
    assert show(up, "debug-9") == 1
    assert "Nodes: debug-[0-3]" in capfd.readouterr().err


def test_a_dead_controllers_files_are_shown(
    tmp_path: Path,
    up: StackUp,
    tool: Tool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tool("echo never asked")
    monkeypatch.setattr(agent, "controller_is_dead", lambda _: True)
    assert show(up) == 0
    out, err = capfd.readouterr()
    assert "waiting for munged" in out
    assert "never asked" not in out
    assert "the controller of stack test does not run" in err


def test_a_cluster_that_is_not_up_is_one_message(tmp_path: Path, up: StackUp, run: RunDirectory) -> None:
    with sentences.raises("cluster.not-up", "`./cluster up --stack other`"):
        show(up_from(tmp_path, "other"))


def test_a_provider_whose_files_are_elsewhere(
    tmp_path: Path, up: StackUp, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(HasLoginMachine):
        access = ssh = layout = LocalProvider.access  # type: ignore[assignment]

    tool("exit 2")
    with sentences.raises("logs.tool-broken", "`./cluster up --stack test`"):
        logs.show(Elsewhere(), up, None, lines=40, follow=False)


def test_settings_are_those_that_run_else_those_published_else_the_stack_files(
    tmp_path: Path, up: StackUp, run: RunDirectory
) -> None:
    provider = LocalProvider()
    drawn = design(parse(values("local"), "test"), catalog())

    def known() -> str:
        found = provider.settings_here(up)
        assert found is not None
        assert found.site.root == str(run.path)
        assert found.site.shared == str(run.shared)
        return found.design.name

    assert known() == "here"
    published = run.settings(dataclasses.replace(drawn, name="published"))
    (run.bucket / "settings").mkdir()
    (run.bucket / "settings" / "x.json").write_text(json.dumps(to_json(published)))
    (run.bucket / "current.json").write_text(json.dumps({"settings": {"key": "settings/x.json"}}))
    assert known() == "published"
    (run.path / "code").mkdir()
    running = run.settings(dataclasses.replace(drawn, name="running"))
    (run.path / "code" / "settings.json").write_text(json.dumps(to_json(running)))
    assert known() == "running"
    for file in (run.path / "code" / "settings.json", run.bucket / "current.json"):
        file.write_text("{")
    assert known() == "here"
    assert provider.settings_here(up_from(tmp_path, "other")) is None


FOLLOW = """
import sys
sys.path.insert(0, {root!r})
from cli import main as cli
from operations.local import agent
from infra.program import locations
from pathlib import Path
from types import SimpleNamespace
locations.run_root = lambda: Path({runs!r})
agent.controller_is_dead = lambda _: False
sys.argv = ["cluster", "logs", "--follow", "--stack", "test"]
cli.main()
"""


def test_ctrl_c_ends_following_without_a_word(tmp_path: Path, run: RunDirectory, tool: Tool) -> None:
    """A terminal interrupts both this process and the tool that it waits for."""
    stack = "config:\n  slurm-stacks:cluster:\n    provider: local\n    partitions:\n"
    stack += "      - {name: debug, instance_type: local.small, nodes: {max: 4}}\n"
    (tmp_path / "Pulumi.test.yaml").write_text(stack)
    tool("echo following; exec sleep 300")
    child = subprocess.Popen(
        [sys.executable, "-c", FOLLOW.format(root=str(ROOT), runs=str(tmp_path / "runs"))],
        env={**os.environ, "SLURM_STACKS_PROJECT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "following\n"
        os.killpg(child.pid, signal.SIGINT)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out, err) == (130, "", "")
    finally:
        child.kill()
        child.wait()


def test_the_command_passes_its_words_on(
    tmp_path: Path, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(cli, "load_up", lambda stack, outputs: stack.name)

    def show(*given: Any, **options: Any) -> int:
        seen.append((given, options))
        return 3

    monkeypatch.setattr(providers, "of", lambda _up: SimpleNamespace(logs=show))
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(tmp_path))
    for words in ([], ["debug-1", "-n", "5"], ["12", "-f", "--stack", "other"]):
        monkeypatch.setattr(sys, "argv", ["cluster", "logs", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 3
    assert seen == [
        (("local", None), {"lines": 40, "follow": False}),
        (("local", "debug-1"), {"lines": 5, "follow": False}),
        (("other", "12"), {"lines": 40, "follow": True}),
    ]


# --- status says where to look ---------------------------------------------------------------------------


def test_a_silent_cluster_is_told_with_where_to_look(tmp_path: Path, up: StackUp, tool: Tool) -> None:
    tool("echo slurmctld does not answer >&2; exit 1")
    with sentences.raises("cluster.no-status", "`./cluster logs --stack test`"):
        LocalProvider().status(up)


def test_a_status_that_never_comes_is_not_waited_for(
    tmp_path: Path, up: StackUp, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_machine, "STATUS_SECONDS", 0.2)
    tool("exec sleep 30")
    with sentences.raises("cluster.no-status", "0.2", "/cluster"):
        LocalProvider().status(up)


def test_a_cluster_that_is_half_up_is_not_called_down(tmp_path: Path, up: StackUp, run: RunDirectory) -> None:
    with sentences.raises("cluster.half-up", "`./cluster up --stack test`"):
        LocalProvider().status(up)
    with sentences.raises("cluster.not-up"):
        LocalProvider().status(up_from(tmp_path, "other"))
