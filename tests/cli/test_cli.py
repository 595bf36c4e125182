"""The command line: exit codes, usage, and the arguments that it passes on, without tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli import engine as runner
from cli import main as cli
from cli.commands import operate, run_tests
from cli.providers import login_machine
from cli.providers.local.provider import LocalProvider
from infra.config import StackConfig
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.program.stack import Stack
from tests.support import sentences
from tests.support.checkout import ROOT, SMALL, Checkout

COMMANDS = ("init", "up", "down", "plan", "status", "exec", "ssh", "outputs", "chaos", "test")


@dataclass
class Ended:
    code: int
    out: str
    err: str


Cluster = Callable[..., Ended]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that has only stack files."""
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    for stack in ("local", "other"):
        (tmp_path / f"Pulumi.{stack}.yaml").write_text(SMALL)
    return tmp_path


@pytest.fixture
def cluster(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cluster:
    """Runs `./cluster` in this process."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["cluster", *arguments])
        try:
            cli.main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        else:
            code = 0
        text = capsys.readouterr()
        assert "Traceback" not in text.err
        return Ended(code, text.out, text.err)

    return run


# --- usage -----------------------------------------------------------------------------------------------


def test_help_names_every_command(cluster: Cluster) -> None:
    done = cluster("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert f"  {command}  " in done.out
        its = cluster(command, "--help")
        assert (its.code, its.err) == (0, "")
        assert its.out.startswith(f"Usage: ./cluster {command}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ""),
        (("nonsense",), "No such command 'nonsense'"),
        (("up", "--stak", "x"), "--stak"),
        (("up", "extra"), "extra"),
        (("plan", "--jsn"), "--jsn"),
        (("exec",), ""),
        (("exec", "--"), "Missing argument"),
        (("exec", "--stack", "other"), "Missing argument"),
    ],
    ids=lambda a: " ".join(a) if isinstance(a, tuple) else "",
)
def test_wrong_usage_is_exit_2(cluster: Cluster, arguments: tuple[str, ...], said: str) -> None:
    done = cluster(*arguments)
    assert done.code == 2
    assert said in done.err
    assert "Usage: ./cluster" in done.out + done.err


@pytest.mark.parametrize("command", ["up", "down", "plan", "status", "ssh", "exec", "outputs"])
def test_a_stack_that_does_not_exist_is_exit_2(cluster: Cluster, command: str) -> None:
    done = cluster(command, "--stack", "no-such", *(["--", "true"] if command == "exec" else []))
    assert (done.code, done.out) == (2, "")
    sentences.printed(done.err, "file.missing", "Pulumi.no-such.yaml", "local")


@pytest.mark.parametrize("command", ["up", "plan", "status"])
def test_mistakes_in_a_stack_file_are_exit_2_and_said_all_at_once(
    cluster: Cluster, project: Path, command: str
) -> None:
    (project / "Pulumi.local.yaml").write_text(
        "config:\n  slurm-stacks:cluster:\n    provider: local\n    nmae: x\n"
        "    partitions: [{name: debug, instance_type: local.small, nodes: {min: 5, max: 2}}]\n"
    )
    done = cluster(command)
    assert (done.code, done.out) == (2, "")
    assert "nmae" in done.err
    assert "partitions[0].nodes" in done.err


def test_a_file_that_is_no_yaml_is_exit_2(cluster: Cluster, project: Path) -> None:
    (project / "Pulumi.local.yaml").write_text("config: [\n")
    assert cluster("plan").code == 2


def test_a_user_error_is_one_message_with_its_code(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise UserError("somebody else owns it", EXIT_REFUSED, code="runner.other-owner")

    monkeypatch.setattr(operate, "bring_up", refuse)
    text = "somebody else owns it [runner.other-owner]\n"
    assert cluster("up") == Ended(3, "", text)
    done = cluster("up", "--json")
    assert (done.code, done.err) == (3, text)
    error = {"code": "runner.other-owner", "message": "somebody else owns it", "exit_code": 3}
    assert json.loads(done.out) == {"error": error}
    assert cluster("up") == Ended(3, "", text), "what one command line asks, the next one does not"


def test_mistakes_are_json_for_programs(cluster: Cluster, project: Path) -> None:
    text = "config:\n  slurm-stacks:cluster:\n    provider: local\n    nmae: x\n"
    (project / "Pulumi.local.yaml").write_text(text)
    done = cluster("plan", "--json")
    assert done.code == 2
    mistakes = {mistake["path"]: mistake["code"] for mistake in json.loads(done.out)["error"]["mistakes"]}
    assert mistakes["slurm-stacks:cluster.nmae"] == "key.unknown"
    assert mistakes["slurm-stacks:cluster.partitions"] == "partition.none"


def test_ctrl_c_is_said_and_is_130(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(login_machine, "cluster_status", interrupted)
    done = cluster("status")
    assert done.code == 130


# --- what is passed on -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ("--", "sbatch", "--stack", "x", "--help", "-s", "y"),
            ["sbatch", "--stack", "x", "--help", "-s", "y"],
        ),
        (("--", "sh", "-c", "a b", "--", "c"), ["sh", "-c", "a b", "--", "c"]),
        (("squeue", "--me", "-l"), ["squeue", "--me", "-l"]),
    ],
    ids=["our options", "a second --", "without --"],
)
def test_exec_passes_its_command_as_it_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], command: list[str]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        login_machine,
        "replace_process",
        lambda _machine, up, argv: seen.append((up.stack.name, list(argv))),
    )
    assert cluster("exec", *arguments).code == 0
    assert cluster("exec", "--stack", "other", *arguments).code == 0
    assert seen == [("local", command), ("other", command)]


def test_ssh_is_a_shell(cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(login_machine, "replace_process", lambda *arguments: seen.append(arguments))
    done = cluster("ssh", "-s", "other")
    assert (seen[0][1].stack, seen[0][2]) == (Stack(project, "other"), [])
    assert done == Ended(0, "", ""), "nothing is said to a program"


def test_ssh_with_a_command_has_a_shell_read_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are joined as ssh does; words after the command belong to the command."""
    seen: list[Any] = []
    monkeypatch.setattr(
        login_machine, "replace_process", lambda _machine, _up, argv, _greeting="": seen.append(argv)
    )
    assert cluster("ssh", "--stack", "other", "sh", "-s", "x", "--stack").code == 0
    assert cluster("ssh", "cd /x && ls | wc -l").code == 0
    assert seen == [["sh", "-c", "sh -s x --stack"], ["sh", "-c", "cd /x && ls | wc -l"]]


def test_outputs_are_json_for_programs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = [{"cluster": {"name": "é"}, "login_ssh": "x"}, None]

    class Runner:
        def outputs(self) -> Any:
            return found.pop(0)

    asked: list[Any] = []
    monkeypatch.setattr(runner, "select", lambda stack, *rest: asked.append((stack.name, *rest)) or Runner())  # type: ignore[func-returns-value]
    done = cluster("outputs", "--stack", "other")
    assert (done.code, json.loads(done.out), done.err) == (
        0,
        {"cluster": {"name": "é"}, "login_ssh": "x"},
        "",
    )
    assert asked == [("other", "local")]
    done = cluster("outputs")
    assert (done.code, done.out) == (1, "")
    sentences.printed(done.err, "cluster.not-up", "`./cluster up --stack local`")


def test_up_down_and_test_know_their_stack_and_arguments(
    cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def bring_up(
        stack: Stack, config: StackConfig, _console: Any, *, replace: bool, **how: bool
    ) -> dict[str, Any]:
        seen.append(("up", stack.project, config.stack, replace, *how.values()))
        return {"stack": config.stack}

    monkeypatch.setattr(operate, "bring_up", bring_up)
    monkeypatch.setattr(
        operate,
        "take_down",
        lambda up, _, yes: seen.append(("down", up.stack.project, up.stack.name, up.provider, yes)),
    )

    def run(p: Path, rest: Sequence[str], *, everything: bool) -> int:
        seen.append(("test", p, list(rest), everything))
        return 3

    monkeypatch.setattr(run_tests, "run", run)
    assert [cluster("up").code, cluster("up", "--replace").code] == [0, 0]
    assert cluster("down", "--stack", "other").code == 0
    assert cluster("down", "--yes", "--stack", "other").code == 0
    assert json.loads(cluster("up", "-s", "other", "--no-benchmark", "--json").out) == {"stack": "other"}
    assert seen.pop() == ("up", project, "other", False, False, True)
    assert cluster("test").code == 3
    assert cluster("test", "--all").code == 3
    assert cluster("test", "tests/node", "-k", "x", "--lf").code == 3
    assert seen == [
        ("up", project, "local", False, True, False),
        ("up", project, "local", True, True, False),
        ("down", project, "other", "local", False),
        ("down", project, "other", "local", True),
        ("test", project, [], False),
        ("test", project, [], True),
        ("test", project, ["tests/node", "-k", "x", "--lf"], False),
    ]


def test_status_is_the_clusters_own_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "partitions": [], "nodes": [], "jobs": [], "machines": {"running": 0, "pending": 0},
        "cost": {"node_hours": 0.0, "usd": 0.0, "damaged": [], "budget": None},
    }  # fmt: skip
    monkeypatch.setattr(login_machine, "cluster_status", lambda *_arguments: found)
    assert json.loads(cluster("status", "--json").out) == found
    assert "No jobs" in cluster("status").out


def test_a_plan_as_json_and_as_a_tree(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"stack": "local", "resources": [], "outputs": {}, "cost": {}, "warnings": ["w"]}
    monkeypatch.setattr(operate, "make_plan", lambda *_arguments: made)
    assert json.loads(cluster("plan", "--json").out) == made
    assert "warning: w" in cluster("plan").out


def test_down_of_a_broken_stack_file_takes_down_what_is_up(
    cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "Pulumi.local.yaml").write_text("config: {slurm-stacks:cluster: {provider: nowhere}}\n")
    seen: list[Any] = []
    monkeypatch.setattr(operate, "take_down", lambda up, _, yes: seen.append((up.stack, up.provider)))
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: [])
    assert cluster("down").code == 2, "nothing is up: the mistake is what matters"
    assert seen == []
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: ["folder x"])
    done = cluster("down")
    assert done.code == 0
    assert "provider" in done.err
    assert seen == [(Stack(project, "local"), "local")]


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_down_of_a_broken_stack_file_takes_down_a_clouds_cluster_too(
    cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """What is up must always come down; the engine's outputs say which cluster it is."""
    file = project / "Pulumi.local.yaml"
    file.write_text(f"config: {{slurm-stacks:cluster: {{provider: {provider}, partitions: 7}}}}\n")
    seen: list[Any] = []
    monkeypatch.setattr(operate, "take_down", lambda up, _, yes: seen.append((up.stack, up.provider)))
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: [])
    done = cluster("down")
    assert done.code == 0
    assert "partitions" in done.err
    assert "it destroys the cluster of stack local" in done.err
    assert seen == [(Stack(project, "local"), provider)]
    file.write_text("config: [\n")
    assert cluster("down").code == 2, "nobody knows whose it is"


# --- the shim --------------------------------------------------------------------------------------------


def test_the_shim_works_from_anywhere_by_link_and_beside_another_cli(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "a check out")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "cli").mkdir(parents=True)
    (elsewhere / "cli" / "__init__.py").write_text("raise SystemExit('the wrong cli')")
    (elsewhere / "typer.py").write_text("raise SystemExit('the wrong typer')")
    link = elsewhere / "cluster"
    link.symlink_to(checkout.folder / "cluster")
    environment = {**checkout.env, "PYTHONPATH": str(elsewhere), "VIRTUAL_ENV": "/nowhere"}
    arguments = [str(link), "status", "--stack", "test"]
    done = subprocess.run(
        arguments, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    # More lines are about other clusters, whose checkouts are gone. `./cluster` is another program there.
    again = f"`'{checkout.folder}/cluster' up --stack test`"
    sentences.printed(done.stderr.splitlines()[0], "cluster.not-up", varies=[again])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_reason_for_words(tmp_path: Path, unbuffered: str) -> None:
    """Buffered output meets the closed pipe only at the end, and no message may appear then."""
    checkout = Checkout(tmp_path / "a checkout")
    checkout.env["PYTHONUNBUFFERED"] = unbuffered
    command = f"('{checkout.folder}/cluster' plan --stack test --json; echo $? >&2) | true"
    done = subprocess.run(
        ["bash", "-c", command], env=checkout.env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "1\n")


def test_exec_and_status_start_without_pulumi() -> None:
    modules = (
        "cli.main, cli.providers.login_machine, cli.providers.local.provider, cli.slurm_release, infra.config"
    )
    code = f"import sys; import {modules}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    sdks = {"pulumi", "pulumi_command", "grpc", "tensorflow", "pulumi_aws", "pulumi_gcp"}
    heavy = {*sdks, "cli.commands.doctor.general"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize(("cause", "code"), [(KeyboardInterrupt(), EXIT_INTERRUPTED), (ValueError(), None)])
def test_ctrl_c_while_a_class_is_made_is_an_interrupt_and_another_error_is_itself(
    monkeypatch: pytest.MonkeyPatch, cause: BaseException, code: int | None
) -> None:
    """Python 3.11 turns every exception there into a RuntimeError."""

    def commands(**_options: object) -> None:
        raise RuntimeError("Error calling __set_name__") from cause

    monkeypatch.setattr(cli, "commands", lambda: commands)
    with pytest.raises(RuntimeError if code is None else SystemExit) as caught:
        cli.main()
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == code
