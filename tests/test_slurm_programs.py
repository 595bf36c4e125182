"""Slurm's programs are started by few functions, each of which defines their environment.

A program that inherits a shell's variables sees other jobs than there are (SQUEUE_USERS), or moves ours
(SBATCH_PARTITION). So nothing but these functions names one of Slurm's programs where a command begins.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.slurm.environment import PROGRAMS
from tests.support.checkout import ROOT, sources

ANY = "|".join(PROGRAMS)
EXACT = re.compile(rf"(?:/usr/s?bin/)?({ANY})")
COMMAND = re.compile(
    # Where a command begins: at the start, after what joins commands, or after what runs another. `-- sudo`
    # is of a line that a user is told to type.
    r"(?:^|[\n;|&({]|\$\(|(?<!-- )\b(?:sudo(?: -\w+)*|exec|env|timeout \S+)\s"
    r"|[\n;]\s*(?:then|do|if|until|while|!)\s)"
    # A word that follows tells it from a sentence about the program.
    rf"\s*(?:/usr/s?bin/)?({ANY})(?=\s+(?:-|[\"$]|(?:ping|show|update|requeue|release|reconfigure|shutdown)\b))"
)
STARTERS = {
    # Each is the one function of its place, and gives its programs an environment of ours.
    "node/slurm/control.py": "machines: Control",
    "node/benchmark.py": "sbatch of the benchmark: environment.of_submitter",
    "node/elastic/programs.py": "the epilog of slurmctld, in sh: environment.words",
    "cli/changes/jobs.py": "lines for a controller: ClusterControl.ask gives them environment.shell_line",
    "cli/changes/closing.py": "the same",
}
WORDS = {
    # Names that start nothing.
    "node/slurm/environment.py", "operations/local/system_packages.py", "localcloud/machines.py",
    "cli/console/plan.py",
    # Of `-V`, which asks nobody.
    "node/bootstrap/machine_steps.py",
}  # fmt: skip
SHOWN = {
    # Commands that a user is told to type.
    "node/logs/find.py": "srun --nodelist=",
}
BOOT = ("context", "slurm")
"""The function of a machine's boot: `node.bootstrap.context.Context.slurm`."""
CLIENTS = ("self", "control", "self._control", "self.control", "Control(")
"""How a `Control` is written; its `run` is one of the functions."""
TEMPLATES = re.compile(rf"^\s*(?!#)(?:.*[;|&(]\s*)?(?<!ask_slurm )({ANY})\s", re.MULTILINE)


def starts(text: str, file: str = "x.py") -> Iterator[str]:
    """Yield the places of a file at which it names one of Slurm's programs as a command."""
    if file in WORDS | STARTERS.keys():
        return
    tree = ast.parse(text)
    allowed: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # docstrings, of attributes too
            allowed |= {
                id(e.value) for e in body if isinstance(e, ast.Expr) and isinstance(e.value, ast.Constant)
            }
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            client = ast.unparse(node.func.value)
            one = node.func.attr == "run" and any(
                client == c or (c[-1] == "(" and client.startswith(c)) for c in CLIENTS
            )
            if (one and file.startswith("node/")) or (client, node.func.attr) == BOOT:
                allowed.add(id(node.args[0]))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in allowed:
            continue
        named = EXACT.fullmatch(node.value) or COMMAND.search(node.value)
        if named and not (file in SHOWN and node.value.startswith(SHOWN[file])):
            yield f"{file}:{node.lineno}: {node.value[:60]!r}"


def test_only_these_functions_start_slurms_programs() -> None:
    found = [
        place
        for path in [*sources(), ROOT / "__main__.py"]
        for place in starts(path.read_text(), str(path.relative_to(ROOT)))
    ]
    assert found == [], (
        "use Control, Context.slurm or ClusterControl.ask, or say in STARTERS what defines the environment"
    )


def test_every_exception_is_still_one() -> None:
    for file in STARTERS.keys() | WORDS | SHOWN.keys():
        assert re.search(rf"\b({ANY})\b", (ROOT / file).read_text()), file
    for file, text in SHOWN.items():
        assert text in (ROOT / file).read_text(), file


@pytest.mark.parametrize("template", sorted((ROOT / "workload").glob("*.j2")), ids=lambda path: path.name)
def test_batch_scripts_ask_slurm_with_an_environment_of_ours(template: Path) -> None:
    """`srun` is the exception: it is the job's own step, and needs what Slurm has set for the job."""
    assert {match[1] for match in TEMPLATES.finditer(template.read_text())} <= {"srun"}


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.run(['squeue', '--noheader'])",
        "subprocess.run(('/usr/bin/scontrol', 'ping'), env=os.environ)",
        "os.execvp('srun', line)",
        "PROGRAM = '/usr/bin/squeue'",
        "os.system('squeue --noheader')",
        "run(f'sudo -n scancel --quiet {job}')",
        "subprocess.run(f'{prefix}scontrol update PartitionName={name}', shell=True)",
        "line = f'cd x; timeout 5 sinfo --Node | tail'",
        "context.run('scontrol', 'reconfigure')",
        "run('sacctmgr', '--immediate', 'add')",
        "self._control.run_in(os.environ, ['scontrol', 'show'])",
        "asyncio.create_subprocess_exec('sbatch', script)",
    ],
)
def test_a_start_elsewhere_is_seen(text: str) -> None:
    assert list(starts(text, "node/x.py"))


@pytest.mark.parametrize(
    "text",
    [
        "self._control.run('scontrol', 'notify', job)",
        "context.slurm('sacctmgr', 'show')",
        "hint('exec', stack, '-- squeue')",
        "'it is held: scontrol release lets it go'",
        "'''What squeue --noheader prints.'''",
    ],
)
def test_what_starts_nothing_is_left_alone(text: str) -> None:
    assert list(starts(text, "node/x.py")) == []


def test_a_template_that_starts_one_is_seen() -> None:
    for line in ("squeue --me", "x=$(squeue --me)", "true && scontrol show job 1"):
        assert TEMPLATES.search(f"#!/bin/sh\n{line}\n"), line
    assert TEMPLATES.search("x=$(ask_slurm squeue --me)") is None
    assert TEMPLATES.search("# squeue --me\n") is None
