"""A bad stack file in front of `./cluster`: one message, all mistakes, exit 2, and nothing is made.

`test_config_stack_file.py` and its neighbours test the messages; this file tests the process.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.config import ConfigError, stack_file
from infra.errors import EXIT_USAGE
from tests.support.checkout import SMALL, Checkout
from tests.support.stack_values import CLUSTER
from tests.support.wide import wide

GOOD = """\
config:
  slurm-stacks:cluster:
    provider: local
    partitions:
      - {name: debug, instance_type: local.small, nodes: {max: 10}, default: true}
"""
MANY = 250
THOUSAND = f"config:\n  {CLUSTER}:\n    provider: local\n    partitions:\n" + "".join(
    f"      - {{name: P{i}, instance_type: m{i}, nodes: {{min: x, max: -1}}}}\n" for i in range(MANY)
)
BILLION = "\n".join(
    ["x0: &x0 [lol]", *(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 10))]
) + (f"\nconfig:\n  {CLUSTER}: *x9\n")

# Paths and codes that the message must have. The number in "{n} mistakes" is checked, too.
FILES: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["[file.empty]"]),
    "only config": (b"config:\n", ["1 mistake.", "config [file.no-config]\n"]),
    "not YAML": (b"config:\n\tx: 1\n", ["line 2, column 1: ", "[yaml.tab]"]),
    "binary": (bytes(range(256)), ["[file.not-utf-8]"]),
    "a program": (
        b"config: !!python/object/apply:os.system ['touch pwned']\n",
        ["[yaml.tag]"],
    ),
    "a billion": (BILLION.encode(), ["[file.too-large]"]),
    "a key twice": (
        GOOD.replace("provider", "provider: aws\n    provider", 1).encode(),
        ["1 mistake.", f"{CLUSTER}.provider [key.twice]"],
    ),
    "some of each": (
        (
            GOOD.replace("max: 10", "min: 5, max: 2").replace(
                "default: true", "time_limit: 24:00:00, spott: 1"
            )
            + "    controller: {disk_gib: 50GB}\n    slurm: [4]\n    login: {count: 'yes'}\n"
            + "secretprovider: x\n"
        ).encode(),
        [
            "7 mistakes.",
            "secretprovider [key.unknown]",
            f"{CLUSTER}.controller.disk_gib [value.type]",
            f"{CLUSTER}.slurm [value.type]",
            f"{CLUSTER}.login.count [value.type]",
            f"{CLUSTER}.partitions[0].spott [key.unknown]",
            f"{CLUSTER}.partitions[0].time_limit [time-limit.number]",
            f"{CLUSTER}.partitions[0].nodes [partition.nodes-order]",
        ],
    ),
    "a thousand": (
        THOUSAND.encode(),
        [
            f"{4 * MANY} mistakes.",
            f'{CLUSTER}.partitions[0].instance_type: "m0"; ',
            f'{CLUSTER}.partitions[249].nodes.min: "x"; ',
            f"{CLUSTER}.partitions[249].nodes.max: -1; ",
            "[instance-type.unknown]\n",
            "[value.type]\n",
            "[value.range]\n",
        ],
    ),
    "a script that is not there": (
        (GOOD + "    hooks: [{role: all, source: hooks/none.sh}]\n").encode(),
        [
            "1 mistake.",
            f"{CLUSTER}.hooks[0].source [source.missing]",
        ],
    ),
}


class Place:
    """A checkout, and all places where its commands could write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkout = Checkout(folder / "a checkout", SMALL)
        (folder / "home").mkdir()
        self.checkout.env |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home" / "cache")}

    @property
    def file(self) -> Path:
        return self.checkout.folder / "Pulumi.test.yaml"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `./cluster` with exactly these arguments. It must make nothing."""
        before = self._everything()
        done = subprocess.run(
            # Memory is limited: a file that grows in memory makes this process fail, and not the machine.
            ["prlimit", "--as=4000000000", str(self.checkout.folder / "cluster"), *arguments],
            env=self.checkout.env,
            cwd=self.folder / "home",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert self._everything() == before
        assert not self.checkout.run_directory.exists()
        assert self.checkout.processes() == []
        return done

    def _everything(self) -> dict[Path, tuple[int, int]]:
        """Return all files except Python's bytecode and caches: path -> size, time of change."""
        found = {}
        for path in self.folder.rglob("*"):
            if not {"__pycache__", "cache"} & set(path.relative_to(self.folder).parts):
                status = path.lstat()
                # A folder's time changes when its __pycache__ is made.
                found[path] = (0, 0) if path.is_dir() else (status.st_size, status.st_mtime_ns)
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("bad"))
    yield made
    assert made.checkout.close() == []


# One of each moment that a file is refused: as bytes, as YAML, by its values, by what it names.
# test_config_stack_file.py shows the others' messages by default.
OFTEN = ("empty", "a billion", "some of each", "a script that is not there")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(*file, id=name, marks=[] if name in OFTEN else [pytest.mark.wide])
        for name, file in FILES.items()
    ],
)
def test_up_makes_nothing_of_a_bad_file_and_says_why_once(
    place: Place, content: bytes, words: list[str]
) -> None:
    place.file.write_bytes(content)
    done = place.run("up", "--stack", "test")
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr.startswith("Pulumi.test.yaml")
    for word in words:
        assert word in done.stderr
    # Each mistake has a line that begins with its path, and no two are the same.
    said = [
        line for line in done.stderr.splitlines() if line.startswith((CLUSTER, "secretprovider", "config"))
    ]
    if match := re.search(r": (\d+) mistakes?\.", done.stderr):
        assert len(set(said)) == len(said) == int(match[1])


def test_doctor_counts_it_among_what_stops_up(place: Place) -> None:
    place.file.write_text(BILLION.replace("*x9", "{<<: *x9}").replace("[lol]", "{a: 1}"))
    done = place.run("doctor", "--stack", "test")
    assert done.returncode == 1
    assert "file.too-large" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["plan", "status", "exec", *wide("down", "ssh", "logs", "outputs")])
def test_every_command_says_the_same(place: Place, command: str) -> None:
    place.file.write_text(GOOD.replace("max: 10", "max: ten"))
    done = place.run(command, "--stack=test", *(["--", "true"] if command == "exec" else []))
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    path, given, *rest = done.stderr.splitlines()[2:]
    assert path == f"{CLUSTER}.partitions[0].nodes.max [value.type]"
    assert given == '    given    "ten"'
    assert [line.split()[0] for line in rest] == ["allowed", "do"]


def test_a_file_of_windows_is_as_good_as_any(place: Place) -> None:
    place.file.write_bytes(("\ufeff" + GOOD.replace("\n", "\r\n")).encode())
    done = place.run("plan", "--stack", "test")
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_folder_and_a_pipe_are_no_stack_files(place: Place) -> None:
    folder, pipe = (place.checkout.folder / f"Pulumi.{name}.yaml" for name in ("folder", "pipe"))
    folder.mkdir()
    os.mkfifo(pipe)
    try:
        for name in ("folder", "pipe"):
            done = place.run("up", "--stack", name)
            (line,) = done.stderr.splitlines()
            assert (done.returncode, line.partition(" ")[0]) == (2, f"Pulumi.{name}.yaml")
            assert line.endswith(" [file.no-file]")
    finally:
        folder.rmdir()
        pipe.unlink()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--stack", "tset"], "[file.missing]\n"),
        (["down", "--stack=--all"], "[file.missing]\n"),
        (["logs", "-s", "x" * 5000], "[stack.name]\n"),
        # `test_names_that_no_stack_has` has these names.
        *wide(
            (["up", "--stack", "../../x"], "[stack.name]\n"),
            (["down", "--stack", ""], "[stack.name]\n"),
            (["doctor", "-s", "a b"], "[stack.name]\n"),
            (["plan", "-s", "Pulumi.test.yaml"], "[stack.name-of-file]\n"),
        ),
    ],
    ids=range(7),
)
def test_stacks_that_are_not_there(place: Place, arguments: list[str], words: str) -> None:
    place.file.write_text(GOOD)
    done = place.run(*arguments)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "stack.name"),
        ("../../etc/x", "stack.name"),
        ("a/b", "stack.name"),
        ("a b", "stack.name"),
        ("a\nb\x1b[31m", "stack.name"),
        ("ü", "stack.name"),
        ("x" * 101, "stack.name"),
        ("Pulumi.blue.yaml", "stack.name-of-file"),
        ("Pulumi.blue", "stack.name-of-file"),
    ],
)
def test_names_that_no_stack_has(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "Pulumi.blue.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match="blue") as caught:
        stack_file.check_stack_name(name, tmp_path)
    assert caught.value.code == code
    assert caught.value.exit_code == EXIT_USAGE
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["blue", "Blue_2", "a.b-c", "-x", "x" * 100])
def test_names_that_a_stack_may_have(tmp_path: Path, name: str) -> None:
    assert stack_file.check_stack_name(name, tmp_path) == name
