"""The doctor: the findings for every stack, their output, and that a broken check does not stop others."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import json
import os
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import findings as finding
from cli import main as cli
from cli import slurm_release
from cli.commands import doctor
from cli.commands.doctor import general
from cli.commands.doctor.general import windows
from cli.engine.state import Made, State
from cli.findings import Check, Finding, Severity, examine, fine, stops, warns
from cli.providers import provider as providers
from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations, owner
from infra.program.stack import Stack
from node.slurm.environment import defaults
from operations.access import StackUp
from tests.support import sentences, shipped
from tests.support.checkout import ROOT, SMALL, until
from tests.support.fake_host import seen


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of stack files only, with a state folder and a run root of its own."""
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    (folder / "Pulumi.local.yaml").write_text(SMALL)
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    # The checkout has no program that could be planned.
    monkeypatch.setattr(general, "planned", lambda *_arguments: [])
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder


def without_pulumi(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder))


def with_pulumi(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "pulumi").write_text("#!/bin/sh\nexit 1\n")
    (folder / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


# --- checks side by side ---------------------------------------------------------------------------------


def test_a_check_that_fails_or_hangs_keeps_no_other_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    never, before = threading.Event(), set(threading.enumerate())
    asked: list[float] = []

    def clock() -> float:
        """A clock whose time is up as soon as only the hanging check still runs, however slow the host."""
        if asked:
            until(lambda: len(set(threading.enumerate()) - before) == 1, 60, "the other checks", 0.01)
        asked.append(0.0)
        return 0.0 if len(asked) == 1 else 60.0

    monkeypatch.setattr(finding, "time", SimpleNamespace(monotonic=clock))

    def breaks() -> Iterable[Finding]:
        raise ZeroDivisionError("half the machine is broken")

    def refuses() -> Iterable[Finding]:
        raise UserError("/x is not yours. Have it removed.", code="folder.foreign")

    def hangs() -> Iterable[Finding]:
        never.wait(600)
        yield fine("hangs", "at last")

    checks = [
        Check("first", lambda: [fine("first.a", "well"), warns("first.b", "hm", "do")]),
        Check("breaks", breaks),
        Check("refuses", refuses),
        Check("hangs", hangs),
        Check("silent", lambda: []),
        Check("last", lambda: [stops("last.a", "no", "do")]),
    ]
    found = examine(checks, seconds=60.0)
    never.set()
    assert [f.check for f in found] == ["first.a", "first.b", "breaks", "refuses", "hangs", "last.a"]
    told = {f.check: f for f in found}
    sentences.finding(told["breaks"], "breaks", Severity.WARNS)
    assert told["breaks"].severity is Severity.WARNS
    assert told["refuses"] == Finding(
        "refuses", Severity.STOPS, "/x is not yours.", "Have it removed.", "folder.foreign"
    )
    assert told["hangs"].severity is Severity.WARNS
    sentences.finding(told["hangs"], "hangs", Severity.WARNS)


def test_messages_are_parted_into_what_is_found_and_the_cure() -> None:
    said = finding.from_message("a.b", Severity.STOPS, "The disk is full (/x). Make room there. Then go on.")
    sentences.finding(said, "a.b", Severity.STOPS)
    said = finding.from_message("a.b", Severity.STOPS, "no such provider; available: local")
    sentences.finding(said, "a.b", Severity.STOPS)
    whole = finding.from_message("a.b", Severity.STOPS, "no cure is known")
    sentences.finding(whole, "a.b", Severity.STOPS)
    assert whole.cure


# --- what it says of every stack -------------------------------------------------------------------------


def test_what_a_plan_refuses_is_a_finding(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = stops("plan", "the program refuses it", "change it")
    monkeypatch.setattr(general, "planned", lambda _stack: [refused])
    assert refused in doctor.findings_of(Stack(project, "local"))


def test_a_stack_file_with_mistakes_is_a_finding_with_all_of_them(project: Path) -> None:
    file = project / "Pulumi.local.yaml"
    file.write_text(
        "config:\n  slurm-stacks:cluster:\n    provider: local\n    nmae: x\n"
        "    partitions: [{name: debug, instance_type: local.small, nodes: {min: 5, max: 2}}]\n"
    )
    found, up, training = general.stack_file(Stack(project, "local"))
    assert (found.check, found.severity) == ("stack.file", Severity.STOPS)
    sentences.finding(found, "stack.file", Severity.STOPS, "Pulumi.local.yaml")
    assert (up, training) == (StackUp(Stack(project, "local"), "local"), None)
    for text in ("", "config: [", "- 1\n", "config: {slurm-stacks:cluster: 5}\n", "\x00"):
        file.write_text(text)
        found, up, _ = general.stack_file(Stack(project, "local"))
        assert (found.severity, up) == (Severity.STOPS, None), text
    found, _, _ = general.stack_file(Stack(project, "no-such"))
    sentences.finding(found, "stack.file", Severity.STOPS, "Pulumi.no-such.yaml")


def test_a_sound_stack_file_is_said_in_short(project: Path) -> None:
    found, up, training = general.stack_file(Stack(project, "local"))
    assert found.severity is Severity.FINE
    sentences.finding(found, "stack.file", Severity.FINE)
    assert up is not None
    assert (training, up.design.provider) == (None, "local")
    (project / "Pulumi.local.yaml").write_text(shipped.stack_files()["Pulumi.local.yaml"])
    found, _, training = general.stack_file(Stack(project, "local"))
    assert training is not None
    sentences.finding(found, "stack.file", Severity.FINE)


def test_a_stack_on_aws_batch_has_the_checks_of_its_provider() -> None:
    found = {finding.check for finding in doctor.findings_of(Stack(ROOT, "aws-batch"))}
    assert "docker" in found, "its image is built here"
    assert not found & {"ssh", "cluster.state"}, "it has no login machine"


def test_python_and_its_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(general.python(project)) == {"python.environment": "stops"}
    for name in ("python", "uv"):
        (project / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        (project / ".venv" / "bin" / name).touch()
    assert seen(general.python(project)) == {"python.environment": "fine"}
    version = namedtuple("version", "major minor micro")
    for minor, expected in ((10, True), (11, False), (13, False), (14, True)):
        monkeypatch.setattr(sys, "version_info", version(3, minor, 0))
        assert ("python.version" in seen(general.python(project))) is expected


def test_a_shell_with_options_of_slurms_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Slurm sets for a job does not matter: no command is started with it."""
    for name in defaults(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert list(general.environment()) == []
    monkeypatch.setenv("SQUEUE_USERS", "me")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    (found,) = general.environment()
    assert (found.check, found.severity) == ("environment.slurm", Severity.WARNS)
    sentences.finding(found, "environment.slurm", Severity.WARNS)
    assert found.cure is not None


def test_the_runner_of_a_new_local_stack(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pulumi(monkeypatch, tmp_path)
    (found,) = general.chosen_runner(Stack(project, "local"), "local")
    assert found.severity is Severity.FINE
    sentences.finding(found, "runner.owner", Severity.FINE)
    with_pulumi(monkeypatch, tmp_path)
    (found,) = general.chosen_runner(Stack(project, "local"), "local")
    assert found == fine("runner.owner", f"the Pulumi CLI, {tmp_path / 'pulumi'}")


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_what_needs_the_cli(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    without_pulumi(monkeypatch, tmp_path)
    (found,) = general.chosen_runner(Stack(project, "s"), provider)
    assert (found.check, found.severity) == ("runner.cli", Severity.STOPS)
    sentences.finding(found, "runner.cli", Severity.STOPS)
    with_pulumi(monkeypatch, tmp_path)
    assert seen(general.chosen_runner(Stack(project, "s"), provider)) == {"runner.cli": "fine"}


def test_a_cluster_of_another_owner(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pulumi(monkeypatch, tmp_path)
    owner.claim(Stack(project, "local"), owner.EMBEDDED)
    assert seen(general.chosen_runner(Stack(project, "local"), "local")) == {"runner.owner": "fine"}
    owner.release(Stack(project, "local"))

    foreign = "https://api.pulumi.com"
    owner.claim(Stack(project, "local"), foreign)
    (found,) = general.chosen_runner(Stack(project, "local"), "local")
    assert found.severity is Severity.STOPS
    sentences.finding(found, "runner.owner", Severity.STOPS, foreign)
    with_pulumi(monkeypatch, tmp_path)
    monkeypatch.setenv("PULUMI_BACKEND_URL", foreign)
    (found,) = general.chosen_runner(Stack(project, "local"), "local")
    assert found.severity is Severity.FINE
    sentences.finding(found, "runner.owner", Severity.FINE)
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///elsewhere")
    assert seen(general.chosen_runner(Stack(project, "local"), "local")) == {"runner.owner": "stops"}


def test_after_a_restart_the_state_says_whose_the_stack_is(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_pulumi(monkeypatch, tmp_path)
    folders.make_state_dir(stack := Stack(project, "local"))
    State(stack).put("urn:pulumi:local::p::command:local:Command::a", Made({}))
    (found,) = general.chosen_runner(Stack(project, "local"), "local")
    sentences.finding(found, "runner.owner", Severity.FINE)


def test_the_state_folder(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(general.state(Stack(project, "local"))) == {"state.folder": "fine"}
    monkeypatch.setattr(os_errors, "free_mib", lambda _: 0)
    assert seen(general.state(Stack(project, "local"))) == {"state.space": "stops"}
    monkeypatch.setattr(os_errors, "free_mib", lambda _: locations.STATE_MIB)
    assert seen(general.state(Stack(project, "local"))) == {"state.folder": "fine"}
    monkeypatch.undo()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert seen(general.state(Stack(project, "local"))) == {"state.folder": "stops"}
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert seen(general.state(Stack(project, "local"))) == {"state.folder": "fine", "state.variable": "warns"}


def test_a_command_at_work_on_the_same_stack(project: Path) -> None:
    path = folders.make_state_dir(Stack(project, "local")) / "lock"
    path.write_text("4711 up\n")
    assert seen(general.state(Stack(project, "local"))) == {"state.folder": "fine"}, (
        "a lock that nobody holds"
    )
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = {f.check: f for f in general.state(Stack(project, "local"))}
        assert found["state.lock"].severity is Severity.STOPS
        sentences.finding(found["state.lock"], "state.lock", Severity.STOPS, "`up` (pid 4711)")
        path.write_text("")
        sentences.finding(
            {f.check: f for f in general.state(Stack(project, "local"))}["state.lock"],
            "state.lock",
            Severity.STOPS,
        )


# --- how it looks ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class OnlyDiagnosis:
    """A provider that only answers the doctor's question what stops it."""

    checks: list[Check]

    def diagnose(self, *_: Any) -> list[Check]:
        return self.checks

    def changes(self, *_: Any) -> None:
        """Return nothing: there is no cluster that could change."""


def diagnosed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checks: list[Check], *options: str
) -> tuple[Any, str]:
    """Return exit status and output of `./cluster doctor` where only `checks` may find something."""
    monkeypatch.setattr(providers, "load", lambda *_: OnlyDiagnosis(checks))
    monkeypatch.setattr(general, "python", lambda _: [fine("python.environment", "Python 3.13")])
    monkeypatch.setattr(slurm_release, "planned", lambda _: ("Slurm 24.11.5", []))
    monkeypatch.setattr(sys, "argv", ["cluster", "doctor", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert err == ""
    return ended.value.code, out


BAD = [Check("disk", lambda: [fine("disk.a", "[a]"), stops("disk.b", "full\nof [x]", "empty [it]")])]


def test_json_is_the_contract(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = diagnosed(monkeypatch, capsys, BAD, "--json")
    answer = json.loads(out)
    assert (code, set(answer), answer["stack"], answer["ok"]) == (
        1,
        {"stack", "findings", "ok"},
        "local",
        False,
    )
    for row in answer["findings"]:
        assert set(row) == {"check", "severity", "found", "cure", "code"}
        assert row["severity"] in ("stops", "warns", "fine")
        assert (row["cure"] is None) == (row["severity"] == "fine")
    assert answer["findings"][-1] == {
        "check": "disk.b", "severity": "stops", "found": "full\nof [x]", "cure": "empty [it]", "code": None,
    }  # fmt: skip
    code, out = diagnosed(monkeypatch, capsys, [], "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)


def test_what_is_fine_is_a_line_a_group_and_what_is_not_stands_out(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = [Check("net", lambda: [fine("net.a", "one"), fine("net.b", "two")])]
    code, out = diagnosed(monkeypatch, capsys, calm)
    assert code == 0
    lines = out.splitlines()
    assert lines[-1] == "nothing stops `./cluster up --stack local`"
    assert [line for line in lines if line.startswith("fine") and line.split()[1] == "net"] == [
        "fine  net     one; two"
    ]
    assert all(line == line.rstrip() for line in lines)
    warned = [*calm, Check("clock", lambda: [warns("clock.time", "old", "set it")])]
    code, out = diagnosed(monkeypatch, capsys, warned)
    assert (code, out.splitlines()[-1]) == (0, "nothing stops `./cluster up --stack local`, 1 warning")
    code, out = diagnosed(monkeypatch, capsys, [*BAD, *BAD])
    assert code == 1
    assert out.splitlines()[-1] == "2 reasons why `./cluster up --stack local` would stop"
    for there in ("stops  disk.b", "full", "of [x]", "do: empty [it]", "fine   disk "):
        assert there in out


def test_a_provider_that_does_not_exist_yet_is_a_finding(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(name: str, _scheduler: str) -> Any:
        raise UserError(f"provider {name!r} is not available. Use local.", EXIT_REFUSED, code="test.cause")

    monkeypatch.setattr(providers, "load", refuse)
    told = {f.check: f for f in doctor.findings_of(Stack(project, "local"))}
    assert told["provider"].severity is Severity.STOPS
    sentences.finding(told["provider"], "provider", Severity.STOPS)
    assert "state.folder" in told, "the rest is looked at all the same"


def test_a_broken_stack_file_keeps_nothing_from_being_looked_at(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Asked(OnlyDiagnosis):
        def diagnose(self, *given: Any) -> list[Check]:
            asked.append(given)
            return []

    monkeypatch.setattr(providers, "load", lambda *_: Asked([]))
    (project / "Pulumi.local.yaml").write_text(
        "config:\n  slurm-stacks:cluster:\n    provider: local\n    nmae: x\n"
    )
    told = seen(doctor.findings_of(Stack(project, "local")))
    assert told["stack.file"] == "stops"
    assert told["state.folder"] == "fine"
    assert asked == [(Stack(project, "local"), None, None)]
    (project / "Pulumi.local.yaml").write_text("")
    told = seen(doctor.findings_of(Stack(project, "local")))
    assert told["provider"] == "warns"
    assert len(asked) == 1


def test_what_nobody_thought_of_is_told_beside_the_rest(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprise(*_: Any) -> Any:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(providers, "load", lambda *_: OnlyDiagnosis(surprise()))
    told = {f.check: f for f in doctor.findings_of(Stack(project, "local"))}
    sentences.finding(told["provider"], "provider", Severity.WARNS)
    assert "state.folder" in told
    monkeypatch.setattr(general, "stack_file", surprise)
    told = {f.check: f for f in doctor.findings_of(Stack(project, "local"))}
    sentences.finding(told["stack.file"], "stack.file", Severity.WARNS)
    assert "state.folder" in told


def test_the_doctor_changes_nothing(project: Path, tmp_path: Path) -> None:
    (project / "cluster").touch()
    (project / "uv.lock").touch()
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    doctor.findings_of(Stack(project, "local"))
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_on_this_machine_every_check_comes_to_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real provider's checks run on the real machine. None breaks, and each finding has a cure."""
    # The time limit is long, because the machine may be busy.
    monkeypatch.setattr(doctor, "examine", functools.partial(examine, seconds=200.0))
    found = doctor.findings_of(Stack(ROOT, "local"))
    seen(found)
    assert [f for f in found if "could not be checked" in f.found and "Error" in f.found] == []
    assert {"stack.file", "network.loopback", "memory.free"} <= {f.check for f in found}


# As WSL prints them: microsoft/WSL#4555, and `mount` in WSL 2 and 1.
WSL1, WSL2, LINUX = "4.4.0-19041-Microsoft", "5.15.90.1-microsoft-standard-WSL2", "6.8.0-45-generic"
MOUNTS = """\
/dev/sdc / ext4 rw,relatime,discard 0 0
C:\\134 /mnt/c 9p rw,noatime,aname=drvfs;path=C:\\;uid=1000 0 0
D:\\134 /mnt/my\\040disk drvfs rw 0 0
"""


@pytest.mark.parametrize(
    ("release", "folder", "found"),
    [
        (LINUX, "/mnt/c/code", []),
        (WSL2, "/home/ana/slurm-stacks", []),
        (WSL2, "/mnt/c/Users/ana/slurm-stacks", [("windows.disk", Severity.WARNS)]),
        (WSL2, "/mnt/my disk/code", [("windows.disk", Severity.WARNS)]),
        (WSL2, "/mnt/cellar", []),
        (WSL1, "/home/ana/slurm-stacks", [("windows.wsl", Severity.STOPS)]),
    ],
)
def test_what_windows_adds_is_found(release: str, folder: str, found: list[tuple[str, Severity]]) -> None:
    said = list(windows(Path(folder), release, MOUNTS))
    assert [(one.check, one.severity) for one in said] == found
    assert all("docs/local.md" in str(one.cure) for one in said)
    assert (ROOT / "docs" / "local.md").exists()


def test_this_machine_is_asked_where_nothing_is_given() -> None:
    assert list(windows(ROOT, WSL2)) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout of git")
@pytest.mark.parametrize("file", ["cluster", "examples/counting.sh", "Pulumi.local.yaml", "node/loader.py"])
def test_git_for_windows_keeps_the_ends_of_lines(file: str) -> None:
    """A `cluster` with Windows' line ends is no script for any shell."""
    asked = ["git", "-C", str(ROOT), "check-attr", "eol", "--", file]
    output = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert output.strip().endswith("eol: lf")
