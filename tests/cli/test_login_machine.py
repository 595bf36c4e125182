"""Calls on the login machine: the replaced process and the tool's answers, without tracebacks."""

from __future__ import annotations

import abc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.providers import interface, login_machine, provider
from cli.providers.interface import (
    BillsJobs,
    ChecksItsEnd,
    ExplainsFailures,
    HasController,
    HasFilesHere,
    HasLoginMachine,
    HasOwnReport,
    InstallsHere,
    KeepsStorage,
    KnowsMachines,
    MakesEnvironments,
    PlansChanges,
    Provider,
    SharesCores,
)
from cli.providers.local.provider import LocalProvider
from infra.config import parse
from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations
from infra.program.stack import Stack
from operations.access import StackUp
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import ROOT, until
from tests.support.hostile import HOSTILE, IDENTITY
from tests.support.stack_values import values

BECOME = """
import os, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from cli.providers import login_machine
from cli.providers.local.provider import LocalProvider
from operations.access import StackUp; from infra import config, errors
from infra.program import locations
from infra.program.stack import Stack
locations.run_root = lambda: Path({runs!r})
loaded = config.parse({values!r}, "test")
try:
    up = StackUp.of(Stack(Path({project!r}), "test"), loaded)
    login_machine.replace_process(LocalProvider(), up, sys.argv[1:])
except errors.UserError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def up(tmp_path: Path) -> StackUp:
    return StackUp.of(Stack(tmp_path, "test"), parse(values("local"), "test"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run directory like that of a cluster that is up. Its tool is the test's script."""
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = RunDirectory.make(Stack(tmp_path, "test"))
    made.tool.parent.mkdir(parents=True)
    head = {"state": "pending", "tags": {"role": "controller"}, "process": None}
    (made.cloud / "machines.json").write_text(json.dumps({"machines": [head]}))
    return made


@pytest.fixture
def tool(run: RunDirectory) -> Callable[[str], None]:
    def write(script: str) -> None:
        run.tool.write_text(f"#!/bin/sh\n{script}\n")
        run.tool.chmod(0o755)

    return write


@pytest.fixture
def become(
    tmp_path: Path, run: RunDirectory, tool: Callable[[str], None]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `replace_process` in a separate process."""
    tool("echo our own tool $*")
    code = BECOME.format(
        root=str(ROOT), runs=str(tmp_path / "runs"), values=values("local"), project=str(tmp_path)
    )

    def go(*argv: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *argv],
            env={**os.environ, "SLURM_STACKS_PROJECT": "x", **environment},
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return go


def test_the_command_takes_this_processs_place(
    become: Callable[..., subprocess.CompletedProcess[str]], run: RunDirectory
) -> None:
    script = 'cat; echo "$SLURM_CONF|$SLURM_STACKS_PROJECT|$1"; echo err >&2; exit 7'
    done = become("sh", "-c", script, "sh", "two words", text="given ")
    assert done.stdout == f"given {run.path}/etc/slurm.conf||two words\n"
    assert (done.stderr, done.returncode) == ("err\n", 7)
    assert become("slurm-stacks", "status").stdout == "our own tool status\n"


def test_pulumis_secrets_stay_here(become: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """sbatch would pass the variables on to the job."""
    done = become("env", PULUMI_CONFIG_PASSPHRASE="hush", PULUMI_ACCESS_TOKEN="hush", HUSHED="kept")
    assert "HUSHED=kept" in done.stdout
    assert "hush" not in done.stdout


def test_a_shell_inside_a_job_is_not_inside_it_on_the_login_machine(
    become: Callable[..., subprocess.CompletedProcess[str]], run: RunDirectory
) -> None:
    """Whose job it is makes no difference: srun would become a step of the job with this number."""
    for conf in ("/another/slurm.conf", f"{run.path}/etc/slurm.conf"):
        done = become("env", **{**HOSTILE, "SLURM_CONF": conf, "CUDA_VISIBLE_DEVICES": "3"})
        seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        assert seen["SLURM_CONF"] == f"{run.path}/etc/slurm.conf"
        assert not seen.keys() & {*IDENTITY, "CUDA_VISIBLE_DEVICES"}
        # What a user has set for commands that the user types.
        assert (seen["SQUEUE_FORMAT"], seen["SBATCH_ACCOUNT"]) == ("%j", "other")


def test_no_command_is_the_users_shell(
    become: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\necho my shell $#\n")
    shell.chmod(0o755)
    assert become(SHELL=str(shell)).stdout == "my shell 0\n"


def test_what_cannot_be_run_is_said_as_a_shell_says_it(
    become: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo no interpreter named\n")
    cases = {"no-such-command": 127, str(tmp_path / "no" / "such"): 127, f"{plain}/below": 127, "": 127}
    assert {name: become(name).returncode for name in cases} == cases
    unusable = become(str(plain))
    assert (unusable.returncode, unusable.stderr) == (
        126,
        f"{plain}: cannot be executed: Permission denied\n",
    )
    plain.chmod(0o755)
    without_interpreter = become(str(plain))
    assert without_interpreter.returncode == 126
    assert "Traceback" not in without_interpreter.stderr


def test_a_cluster_that_is_not_up_is_refused(
    tmp_path: Path, up: StackUp, run: RunDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    with sentences.raises("cluster.not-up", "`./cluster up --stack test`") as caught:
        login_machine.replace_process(LocalProvider(), up, [], "welcome")
    assert caught.value.exit_code == 1
    assert capfd.readouterr() == ("", ""), "nobody is greeted who does not get in"
    with sentences.raises("cluster.not-up"):
        login_machine.tool(LocalProvider(), up, "status")


def test_the_tools_answer_is_passed_on(tmp_path: Path, up: StackUp, tool: Callable[[str], None]) -> None:
    tool('echo "$*"; cat')
    assert (
        login_machine.tool(LocalProvider(), up, "submit", "--run", "a/b", text="script")
        == "submit --run a/b\nscript"
    )
    status: dict[str, Any] = {"jobs": [], "nodes": []}
    tool(f"""echo '{json.dumps(status)}'""")
    assert login_machine.cluster_status(LocalProvider(), up) == status


def test_the_tools_failure_is_its_own_words(
    tmp_path: Path, up: StackUp, tool: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("echo sbatch: error: invalid partition >&2; exit 1")
    with sentences.raises("tool.failed"):
        login_machine.tool(LocalProvider(), up, "submit")
    tool("exit 3")
    with sentences.raises("tool.failed"):
        login_machine.tool(LocalProvider(), up, "submit", "--run", "x")
    monkeypatch.setattr(login_machine, "TOOL_SECONDS", 0.2)
    tool("exec sleep 30")
    with sentences.raises("cluster.no-answer", "0.2"):
        login_machine.tool(LocalProvider(), up, "status")


def test_a_refusal_of_the_provider_stays_one(
    tmp_path: Path, up: StackUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without credentials the cluster was not asked, so its logs have nothing about it."""

    def refuse(*_: object, **__: object) -> None:
        raise UserError("there are no credentials here. Log in.", EXIT_REFUSED, code="aws.no-credentials")

    monkeypatch.setattr(LocalProvider, "access", refuse)
    with pytest.raises(UserError) as caught:
        login_machine.cluster_status(LocalProvider(), up)
    assert (str(caught.value), caught.value.exit_code) == (
        "there are no credentials here. Log in.",
        EXIT_REFUSED,
    )


def test_a_clusters_own_failure_leads_to_its_logs(
    tmp_path: Path, up: StackUp, tool: Callable[[str], None]
) -> None:
    tool("echo slurmctld does not answer >&2; exit 3")
    with pytest.raises(UserError) as caught:
        login_machine.cluster_status(LocalProvider(), up)
    assert caught.value.exit_code == 1, "the tool's status is not the provider's"
    assert str(caught.value).splitlines() == [
        "slurmctld does not answer",
        "`./cluster logs --stack test` shows what it said last.",
    ]


def test_a_cloud_that_knows_better_why_nobody_answers_is_believed(
    tmp_path: Path, up: StackUp, tool: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login machine says only that slurmctld does not answer."""
    gone = UserError("the controller is gone. `./cluster up` makes another one", code="controller.gone")

    class Cloud(LocalProvider, KnowsMachines):
        """A local login machine in a cloud."""

        def silence(self, asked: StackUp) -> UserError | None:
            return gone if asked == up else None

        def lost(self, *_: object) -> None: ...

    tool("echo slurmctld does not answer >&2; exit 3")
    with pytest.raises(UserError) as caught:
        login_machine.cluster_status(Cloud(), up)
    assert caught.value is gone
    tool("""echo '{"jobs": []}'""")
    assert login_machine.cluster_status(Cloud(), up) == {"jobs": []}, "it is asked only then"


# --- providers -------------------------------------------------------------------------------------------


def test_providers_of_this_version() -> None:
    assert isinstance(provider.load("local"), LocalProvider)
    with sentences.raises("provider.unknown") as caught:
        provider.load("azure")
    assert caught.value.exit_code == EXIT_REFUSED


PROVIDERS = {
    "local": provider.load("local"),
    "aws": provider.load("aws"),
    "gcp": provider.load("gcp"),
    "batch": provider.load("aws", "batch"),
}
CAPABILITIES = {
    HasLoginMachine: {"local", "aws", "gcp"},
    HasController: {"local", "aws", "gcp"},
    BillsJobs: {"local", "aws", "gcp"},
    HasFilesHere: {"local"},
    MakesEnvironments: {"local"},
    InstallsHere: {"local"},
    SharesCores: {"local"},
    PlansChanges: {"local"},
    KnowsMachines: {"aws", "gcp"},
    KeepsStorage: {"aws", "gcp", "batch"},
    ExplainsFailures: {"aws", "batch"},
    HasOwnReport: {"batch"},
    ChecksItsEnd: {"batch"},
}
NEEDED = (HasLoginMachine, HasController, MakesEnvironments, BillsJobs)
"""What a command cannot go without."""


def test_a_provider_can_what_its_class_says() -> None:
    named = {
        item for item in vars(interface).values() if isinstance(item, type) and abc.ABC in item.__bases__
    }
    assert named == {*CAPABILITIES, Provider}
    for capability, having in CAPABILITIES.items():
        found = {name for name, each in PROVIDERS.items() if isinstance(each, capability)}
        assert found == having, capability


@pytest.mark.parametrize("name", PROVIDERS)
def test_what_a_provider_lacks_is_refused_in_its_own_words(name: str, up: StackUp) -> None:
    asked: set[str] = set()
    for path in [ROOT / "cli" / "providers" / "provider.py", *(ROOT / "cli" / "commands").rglob("*.py")]:
        asked.update(re.findall(r"\bneed\([^)]*\)?, (\w+), up", path.read_text()))
    assert asked == {capability.__name__ for capability in NEEDED}
    for capability in NEEDED:
        if name in CAPABILITIES[capability]:
            assert interface.need(PROVIDERS[name], capability, up, "x") is PROVIDERS[name]
        else:
            with pytest.raises(UserError) as caught:
                interface.need(PROVIDERS[name], capability, up, "x")
            assert caught.value.exit_code == EXIT_REFUSED
            assert caught.value.code


def test_the_way_in_keeps_the_callers_path_and_adds_slurms(
    up: StackUp, run: RunDirectory, tool: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("")
    monkeypatch.setenv("PATH", "/mine:/usr/bin")
    command = LocalProvider().access(up, ["squeue", "--me"], tty=False)
    assert command.argv == ["squeue", "--me"]
    path = command.env["PATH"].split(":")
    assert path[0] == str(run.tool.parent), "the cluster's own tool first"
    assert path[1:3] == ["/mine", "/usr/bin"]
    assert "/usr/sbin" in path
    monkeypatch.delenv("SHELL", raising=False)
    assert LocalProvider().access(up, [], tty=True).argv == ["/bin/sh"]


def test_leftovers_are_named(tmp_path: Path, run: RunDirectory) -> None:
    child = subprocess.Popen(
        ["sleep", "300"], env={"SLURM_STACKS_RUN": str(run.path)}, stdin=subprocess.DEVNULL
    )
    try:
        # A process has no readable environment for a moment while it becomes another program.
        until(lambda: Path(f"/proc/{child.pid}/environ").read_bytes(), 60, "the process's environment")
        left = LocalProvider().leftovers(StackUp(Stack(tmp_path, "test"), "local"), dict)
        assert left == [f"process {child.pid}: sleep 300", f"folder {run.path}"]
    finally:
        child.kill()
        child.wait()
    assert LocalProvider().leftovers(StackUp(Stack(tmp_path, "other"), "local"), dict) == []
