"""`./cluster test`: its commands, their environment, and that every failure is reported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli import checks
from cli.local import system_packages, training
from infra.errors import UserError
from node.slurm.environment import defaults
from tests.support import accounts, left_clusters
from tests.support.checkout import ROOT, until
from tests.support.hostile import HOSTILE

PROJECT = Path("/project")


class Commands:
    """Replaces every command; a command fails if it has one of the failing words."""

    def __init__(self) -> None:
        self.run: list[list[str]] = []
        self.env: dict[str, str] = {}
        self.failing: set[str] = set()
        self.beside: list[list[str]] = []
        """The commands whose output is collected, because others run at the same time."""

    def __call__(self, command: Any, _project: Path, env: dict[str, str], output: Any = None) -> int:
        words = [str(part) for part in command]
        self.run.append(words)
        self.env = env
        if "slipcover" in words and "pytest" in words:
            Path(words[words.index("--out") + 1]).write_text("{}")
        if output is not None:
            output.write(b"output of the suite beside\n")
            self.beside.append(words)
        return 1 if self.failing & set(words) else 0

    def of(self, word: str) -> list[str]:
        """The only command with this word."""
        (found,) = [words for words in self.run if word in words]
        return found


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(checks, "_run", made)
    monkeypatch.setattr(system_packages, "ensure", lambda _say, **_options: None)
    monkeypatch.setattr(system_packages, "ensure_for", lambda _purpose, _say: None)
    monkeypatch.setattr(checks, "_free_memory", lambda: 64 << 30)
    monkeypatch.setattr(training, "build", lambda *_arguments, **_more: Path("/trainer"))
    return made


def modules(commands: Commands) -> list[tuple[str, str]]:
    """The interpreter and the module of each command."""
    return [(command[0], "pytest" if "pytest" in command else command[2]) for command in commands.run]


@pytest.mark.parametrize("everything", [False, True])
def test_each_suite_runs_once_with_its_own_interpreter(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str], everything: bool
) -> None:
    assert checks.run_checks(tmp_path, [], everything=everything) == 0
    wanted = [
        (sys.executable, "ruff"),
        (sys.executable, "ruff"),
        (sys.executable, "mypy"),
        (sys.executable, "pytest"),
        (sys.executable, "pytest"),
        ("/trainer/bin/python", "pytest"),
    ]
    assert sorted(modules(commands)) == sorted([*wanted, (sys.executable, "slipcover")])
    real, others, workload = (
        commands.of("tests/cluster"),
        commands.of("--ignore=tests/engine"),
        commands.of("/trainer/bin/python"),
    )
    # Together the three run every test exactly once.
    ignored = [word.partition("=")[2] for word in others if word.startswith("--ignore=")]
    first = workload.index("pytest") + 1
    assert sorted([*real[3:5], workload[first]]) == sorted(ignored)
    assert all((ROOT / folder).is_dir() for folder in ignored)
    for suite in (real, others, workload):
        assert ("not wide" in suite) == (not everything)
        assert "--durations=15" in suite
    assert ["slipcover" in suite for suite in (real, others, workload)] == [False, True, True]
    merged = commands.run[-1]
    files = [suite[suite.index("--out") + 1] for suite in (others, workload)]
    assert merged[merged.index("--merge") + 1 :] == files
    for suite in (real, others):
        # The tests of a module share a cluster.
        assert suite[-3:-1] == ["--dist", "loadfile"]
    assert re.search(r"\n== all passed in \d+ s\n$", capsys.readouterr().out)


def test_what_runs_beside_the_tests_is_shown_after_them(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks.run_checks(tmp_path, [])
    assert len(commands.beside) == 2
    assert commands.of("tests/cluster") in commands.beside
    assert commands.of("/trainer/bin/python") in commands.beside
    shown = capsys.readouterr().out
    first, second, third = (
        shown.index(f"\n== {name}\n") for name in ("tests", "tests of the workload", "tests of real clusters")
    )
    assert first < second < shown.index("output of the suite beside") < third
    assert shown.count("output of the suite beside") == 2


def test_output_is_shown_while_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Long output, a letter that a read splits, and a command that keeps its position in the file."""
    with (tmp_path / "output").open("w+b", buffering=0) as file:
        shown = checks._Shown(file)
        file.write("ä".encode()[:1])
        shown.until(lambda: True)
        file.write("ä".encode()[1:] + b"b" * 100_000)
        shown.until(lambda: True)
    assert capsys.readouterr().out == "ä" + "b" * 100_000


def test_a_machine_with_little_memory_runs_one_after_another(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_free_memory", lambda: 4 << 30)
    checks.run_checks(tmp_path, [])
    assert commands.beside == []
    names = ["ruff", "ruff", "mypy", "pytest", "pytest", "pytest", "slipcover"]
    assert [module for _, module in modules(commands)] == names


def test_the_free_memory_is_this_machines() -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < checks._free_memory() <= whole


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("format", "ruff format --check"),
        ("mypy", "mypy --strict"),
        ("--ignore=tests/engine", "tests"),
        ("tests/engine", "tests of real clusters"),
        ("/trainer/bin/python", "tests of the workload"),
    ],
)
def test_a_failure_is_named_and_does_not_hide_the_rest(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, named: str
) -> None:
    commands.failing = {word}
    assert checks.run_checks(tmp_path, []) == 1
    assert len(commands.run) == 7
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"== failed in \d+ s: {re.escape(named)}", last)


def test_arguments_are_pytests_and_nothing_else_runs(commands: Commands, tmp_path: Path) -> None:
    assert checks.run_checks(tmp_path, ["tests/node", "-k", "x"]) == 0
    assert commands.run == [[sys.executable, "-m", "pytest", "tests/node", "-k", "x"]]
    commands.failing = {"-k"}
    assert checks.run_checks(tmp_path, ["tests/node", "-k", "x"]) == 1


def test_nothing_of_the_callers_leads_the_tests_elsewhere(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*HOSTILE, "SLURM_STACKS_RUNNER", "PULUMI_CONFIG_PASSPHRASE"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    checks.run_checks(tmp_path, ["x"])
    assert {k for k in commands.env if k.startswith(("SLURM", "PULUMI_CONFIG"))} == {"SLURM_STACKS_PROJECT"}
    assert defaults(commands.env) == []
    assert (commands.env["PYTHONPATH"], commands.env["SLURM_STACKS_PROJECT"]) == (str(tmp_path),) * 2
    assert "PATH" in commands.env


@pytest.mark.parametrize("options", [["-n2"], pytest.param([], marks=pytest.mark.wide)])
def test_the_branches_of_all_suites_are_shown_together(tmp_path: Path, options: list[str]) -> None:
    """Of the function `whole`, each suite runs one branch; of `half`, both run the same."""
    functions = "".join(
        f"def {name}(x):\n    if x:\n        return 1\n    return 2\n" for name in ("whole", "half")
    )
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "functions.py").write_text(functions)
    (tmp_path / "measured" / "unused.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text('[tool.slipcover]\nbranch = true\nsource = ["measured"]\n')
    # Without these variables the pytest inside would act as a worker of our own run.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    files = []
    for value in (True, False):
        suite = tmp_path / f"test_{value}.py"
        suite.write_text(
            "from measured.functions import half, whole\n\n\n"
            f"def test_both():\n    assert whole({value}) == {1 if value else 2} and half(True) == 1\n"
        )
        files.append(tmp_path / f"{value}.json")
        command = [*checks._measured(Path(sys.executable), files[-1]), "-q", suite.name, *options]
        assert checks._run(command, tmp_path, {**env, "PYTHONPATH": str(tmp_path)}) == 0
    merge = checks._merged(files, tmp_path / "all.json")
    shown = subprocess.run(merge, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    # The file, its lines and those not run, its branches and those not taken, both shares, and the line.
    found = [line.split() for line in shown.splitlines() if line.startswith("measured/")]
    assert found[0] == ["measured/functions.py", "8", "1", "4", "1", "75", "83", "8"]
    assert found[1][:3] == ["measured/unused.py", "1", "1"]


def test_without_slurm_the_rest_still_runs(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_say: Any, *, accounting: bool = False) -> None:
        raise UserError(f"only root can install {'slurmdbd' if accounting else 'slurmctld'}")

    monkeypatch.setattr(system_packages, "ensure", refuse)
    assert checks.run_checks(tmp_path, []) == 0
    told = capsys.readouterr().out
    assert "tests of a real cluster are skipped: only root can install slurmctld" in told
    assert "tests of accounting are skipped: only root can install slurmdbd" in told
    assert len(commands.run) == 7


def test_the_real_thing_runs_where_the_project_is(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, sys; sys.exit(len(os.environ['A']) + len(os.listdir()))"]
    assert checks._run(command, tmp_path, {"A": "abc"}) == 3


INTERRUPTED = """
import sys
from pathlib import Path
from cli import checks
child = '''
import pathlib, sys, time
try:
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(300)
except KeyboardInterrupt:
    time.sleep(0.5)
    print(sys.argv[1], "has cleaned up", flush=True)
'''
steps = [(name, [sys.executable, "-c", child, name]) for name in ("one", "two", "three")]
suite = checks._Checks(Path(), {})
with suite.beside(*steps[0]), suite.beside(*steps[1]):
    suite.run(*steps[2])
"""


def test_an_interrupt_reaches_every_suite_and_is_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as suite:
        until(lambda: {"one", "two", "three"} <= {p.name for p in tmp_path.iterdir()}, 60, "all suites")
        suite.send_signal(signal.SIGINT)
        said, _ = suite.communicate(timeout=120)
    assert said.count(f"== {checks.INTERRUPTED}\n") == 1
    assert all(f"{name} has cleaned up" in said for name in ("one", "two", "three"))
    assert suite.returncode == -signal.SIGINT


# --- the suites' own account -----------------------------------------------------------------------------

SUITE = """
import pytest

def test_a():
    pass

@pytest.mark.wide
@pytest.mark.parametrize("x", [1, 2])
def test_b(x):
    pass
"""


@pytest.mark.parametrize("options", [[], ["-n1"]])
def test_what_is_left_out_is_said_with_how_to_run_it(tmp_path: Path, options: list[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = wide: x\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.accounts", "-m", "not wide", "tests", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d s  tests/one: 1 tests ran\n", done.stdout)
    left_out = done.stdout.partition("4 wide tests, each of a promise that others prove; ")[2]
    assert left_out.startswith("`./cluster test --all` runs them too:\n")
    assert re.findall(r"^ +(\d+)  (\S+)$", left_out, re.MULTILINE) == [
        ("2", "tests/one/test_one.py"),
        ("2", "tests/two/test_two.py"),
    ]


def test_tests_of_real_programs_begin_first() -> None:
    names = [
        "tests/infra/test_a.py::a",
        "tests/localcloud/test_l.py::l",
        "tests/cluster/test_c.py::c",
        "tests/docs/test_d.py::d",
    ]
    assert [name[-1] for name in sorted(names, key=accounts.rank)] == ["c", "l", "a", "d"]
    assert [path for path in accounts.FIRST if not (ROOT / path).exists()] == [], "these were renamed"


CRASH = """
import os
from pathlib import Path
from infra.program import folders
from infra.program.stack import Stack
from tests.support import left_clusters

def test_it():
    os.environ["XDG_STATE_HOME"] = str(Path("state").resolve())
    stack = Stack(Path("a checkout").resolve(), "test")
    stack.project.mkdir()
    Path("run").write_text(str(folders.make_run_dir(stack)))
    left_clusters.register(stack.project, stack.name)
    os._exit(1)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_cluster_of_a_worker_that_is_gone_ends_with_the_run(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(CRASH if workers == "1" else CRASH.replace("os._exit(1)", "pass"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "tests.support.left_clusters", "-p", "no:cacheprovider"]
    hidden = {name: value for name, value in os.environ.items() if name != left_clusters.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-n", workers, "--max-worker-restart=0"],
        cwd=tmp_path,
        env={**hidden, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"a cluster of a test was still up and is ended now: {tmp_path / 'a checkout'}" in done.stdout
    assert not Path((tmp_path / "run").read_text()).exists()
    assert done.returncode == int(workers)
