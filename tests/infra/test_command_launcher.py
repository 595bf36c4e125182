"""The interpreter of resources' commands: it finds the code wherever it is, and starts a module of it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from infra.program import launcher
from tests.support.checkout import ROOT

ECHO = """
import json, os, sys
told = {"argv": sys.argv[1:], "cwd": os.getcwd(), "code": __file__, "path": os.environ.get("PYTHONPATH")}
print(json.dumps(told))
"""


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has none of the places."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}


def code(folder: Path) -> Path:
    """Make a folder with an environment and an entry point that shows how it was started."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "operations").mkdir()
    (folder / "infra" / "program").mkdir(parents=True)
    for package in ("operations", "infra", "infra/program"):
        (folder / package / "__init__.py").write_text("")
    for file in ("operations/__main__.py", "infra/program/mode.py"):
        (folder / file).write_text((ROOT / file).read_text())
    (folder / "operations" / "echo.py").write_text(ECHO)
    return folder


def run(line: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    cwd.mkdir(exist_ok=True)
    words = [*launcher.INTERPRETER, line]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)


def found(line: str, cwd: Path, env: dict[str, str]) -> dict[str, object]:
    done = run(line, cwd, env)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_the_code_is_found_in_each_place_and_in_their_order(tmp_path: Path, empty: dict[str, str]) -> None:
    program = tmp_path / "it's a program"
    # The CLI keeps plugins in the home folder of the user database, whatever $HOME says.
    home, programs = tmp_path / "the home's", tmp_path / "bin"
    programs.mkdir()
    line = f"me:x:{os.getuid()}:0::{home}:/bin/sh"
    (programs / "getent").write_text(
        f"#!/bin/sh\ntest $1-$2 = passwd-{os.getuid()} && echo {shlex.quote(line)}\n"
    )
    (programs / "getent").chmod(0o755)
    empty = {**empty, "PATH": f"{programs}:{empty['PATH']}"}
    name = ".pulumi/plugins/resource-github.com_acme_slurm-stacks.git-v0.1.0"
    code(Path(empty["HOME"]) / name)
    plugin = f"{home}/{name}"
    places = {
        "plugin": code(Path(plugin)),
        "remembered": code(tmp_path / "a $HOME of code"),
        "checkout": code(program),
        "named": code(tmp_path / 'the "named" one'),
    }

    def where(env: dict[str, str]) -> Path:
        told = found("operations.echo x", program, env)
        assert told["cwd"] == str(program), "the user's files are there"
        assert told["path"] is None, "and what the command starts inherits no path"
        return Path(str(told["code"])).resolve().parents[1]

    named = {**empty, launcher.VARIABLE: str(places["named"])}
    assert where(named) == places["named"]
    assert where(empty) == places["checkout"]
    (program / "operations" / "__main__.py").unlink()
    state = Path(empty["HOME"]) / ".local/state/slurm-stacks"
    state.mkdir(parents=True)
    (state / launcher.CODE).symlink_to(places["remembered"])
    assert where(empty) == places["remembered"]
    (state / launcher.CODE).unlink()
    assert where(empty) == places["plugin"]
    moved = home.rename(tmp_path / "moved")
    elsewhere = {**empty, "PULUMI_HOME": f"{moved}/.pulumi"}
    assert where(elsewhere) == moved / name


def test_without_the_code_it_says_what_to_do(tmp_path: Path, empty: dict[str, str]) -> None:
    done = run("operations.aws wait", tmp_path / "program", empty)
    assert done.returncode == 3
    assert "slurm-stacks is not on this machine: run pulumi preview" in done.stderr
    assert launcher.VARIABLE in done.stderr


def test_words_arrive_as_the_line_quotes_them(tmp_path: Path, empty: dict[str, str]) -> None:
    words = ["it's", 'a "b"', "$HOME", "`x`", "a\\b", "%h", ""]
    line = f"operations.echo {shlex.join(words)}"
    place = code(tmp_path / "program")
    assert found(line, place, empty)["argv"] == words
    # The same in one command, as OpenSSH runs a ProxyCommand.
    done = subprocess.run(
        ["sh", "-c", f"exec {launcher.anywhere(line)}"],
        cwd=place, env=empty, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout)["argv"] == words
    assert "%" not in "".join(launcher.INTERPRETER), "OpenSSH would expand it"


def test_the_exit_status_and_the_input_are_the_commands_own(tmp_path: Path, empty: dict[str, str]) -> None:
    place = code(tmp_path / "program")
    (place / "operations" / "fails.py").write_text("import sys\nprint(sys.stdin.read())\nsys.exit(7)\n")
    done = subprocess.run(
        [*launcher.INTERPRETER, "operations.fails"],
        cwd=place, env=empty, capture_output=True, text=True, check=False, input="given", timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "given\n")


def test_no_line_is_so_long_that_the_engine_would_stop_reading(tmp_path: Path, empty: dict[str, str]) -> None:
    """pulumi-command 1.2.1 reads lines by Go's bufio.Scanner, whose tokens have at most 64 KiB."""
    place = code(tmp_path / "program")
    long = """
import sys
for stream in (sys.stdout, sys.stderr):
    print("short", file=stream)
    stream.write("\U0001f600" * 9000)
    stream.write("x" * 50_000)
    stream.write("y" * 50_000 + "\\nlast")
    stream.flush()
"""
    (place / "operations" / "long.py").write_text(long)
    done = run("operations.long", place, {**empty, "PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr):
        first, *broken, last = text.split("\n")
        assert (first, last) == ("short", "last")
        assert "".join(broken) == "\U0001f600" * 9000 + "x" * 50_000 + "y" * 50_000
        assert [len(line.encode()) < 64 * 1024 for line in broken] == [True] * 3


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}, {}], ids=str)
def test_all_output_is_utf_8_whatever_the_locale_is(
    tmp_path: Path, empty: dict[str, str], locale: dict[str, str]
) -> None:
    """The engine ends a command with other bytes: "string field contains invalid UTF-8" (gRPC)."""
    place = code(tmp_path / "program")
    text = "import sys\nfor stream in (sys.stdout, sys.stderr):\n    print('\\u00fc \\udcff', file=stream)\n"
    (place / "operations" / "odd.py").write_text(text)
    done = run("operations.odd", place, {**empty, **locale})
    assert (done.stdout, done.stderr) == ("\u00fc \\udcff\n", "\u00fc \\udcff\n")


def test_the_code_that_ran_last_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    link = tmp_path / "state" / "slurm-stacks" / launcher.CODE
    for place in (tmp_path / "one", tmp_path / "one", tmp_path / "two"):
        launcher.remember(place)
        assert link.readlink() == place
    assert [entry.name for entry in link.parent.iterdir()] == [launcher.CODE], "no draft is left"
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/no-such-folder")
    launcher.remember(tmp_path / "three")


def test_the_entry_points_of_this_project_start(empty: dict[str, str]) -> None:
    done = run("operations.ssh --help", ROOT, empty)
    assert done.returncode == 0, done.stderr
    assert "submit" in done.stdout
