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

from node.slurm import fields
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
    "cli/changes/jobs.py": "lines for a controller: ClusterControl.ask gives them environment.shell_line",
    "cli/changes/closing.py": "the same",
    "cli/changes/accounts.py": "the same",
    "node/bootstrap/vm/login_enrolment.py": "PAM's program: environment.words",
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


ANSWERS = {
    # Place -> what it asks, and how what it reads is told apart. Fields are in node/slurm/fields.py.
    "node/slurm/control.py": {
        "squeue": "marks: JOB, JOB_TEXTS, JOB_DETAILS, HOLDING, REQUIRED_NODES, DEPENDENCY, OUTPUT",
        "sinfo": "words of one node's state, which count if scontrol shows the same",
        "scontrol show": "NODE, PARTITION, RESERVATION; what occurs twice refuses the answer",
        "scontrol ping": "the exit status",
    },
    "node/billing/job_runs.py": {"sacct": "marks: RECORDED"},
    "cli/changes/jobs.py": {
        "squeue": "marks: LISTED; wait_line reads ids, states and nodes",
        "scontrol show": "names and options of partitions, which only administrators write",
    },
    "cli/changes/accounts.py": {
        "scontrol show": "AccountingStorageEnforce, which slurm.conf has",
        "sacctmgr list": "accounts, users and QOS, which only administrators name",
    },
    "cli/changes/closing.py": {
        "scontrol show": "State= of a partition, which only administrators write",
        "scontrol ping": "` UP`, of a host that the stack file names",
    },
    "node/backup/restore.py": {"scontrol show": "NEXT_JOB_ID, FirstJobId: numbers of slurmctld's"},
    "node/accounting/enrolment.py": {
        "squeue": "%u alone, a line each: users that the controller knows",
        "sacct": "User alone, the same",
    },
    "node/bootstrap/accounting.py": {"sacctmgr show": "names of clusters, which slurmdbd checks"},
    "node/bootstrap/daemons.py": {"scontrol ping": "` is UP`, of a host that the stack file names"},
    "node/logs/find.py": {"squeue": "--version: the release"},
    "node/cluster_status.py": {"scontrol ping": "the exit status"},
    "node/benchmark.py": {"sbatch": "the new job's number"},
    "workload/job_head.j2": {"squeue": "EligibleTime of the job itself: digits or nothing"},
}
"""All places that read what one of Slurm's programs prints."""
ASKED = re.compile(
    rf"(?<![\w./-])(?:/usr/s?bin/)?({ANY})\b"
    # The verb may come after options.
    r"(?:\s+-\S+)*(?:\s+(show|ping|list|update|requeue|release|notify|shutdown|reconfigure|add)\b)?"
)
SILENT = {"scancel", "srun"}
VERBS = {"scontrol", "sacctmgr"}


def asks(text: str, file: str = "x.py") -> set[str]:
    """Return the programs, and their verbs, whose output a file may read."""
    if file in WORDS or not file.endswith((".py", ".j2")):
        return set()
    lines = _commands(text, file) if file.endswith(".py") else [m[0] for m in _LINE.finditer(text)]
    found = {(match[1], match[2]) for line in lines for match in ASKED.finditer(line)}
    return {
        f"{program} {verb}" if program in VERBS else program
        for program, verb in found
        if program not in SILENT and (program not in VERBS or verb in ("show", "ping", "list"))
    }


_LINE = re.compile(r"^\s*(?!#).*$", re.MULTILINE)


def _commands(text: str, file: str) -> Iterator[str]:
    """Yield the commands of a Python file, each as a line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call | ast.Tuple | ast.List):
            words = node.args if isinstance(node, ast.Call) else node.elts
            values = [w.value for w in words if isinstance(w, ast.Constant) and isinstance(w.value, str)]
            if values and words[0] is not None and EXACT.fullmatch(values[0]) and _is_first(words, values[0]):
                yield " ".join(values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and file in STARTERS:
            if COMMAND.search(node.value) or "{slurm} " in node.value:
                yield node.value
        elif isinstance(node, ast.JoinedStr) and file in STARTERS:
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)


def _is_first(words: list[ast.expr], value: str) -> bool:
    return isinstance(words[0], ast.Constant) and words[0].value == value


def test_all_that_ask_slurm_are_known() -> None:
    """Whoever reads a new answer says there how its fields are told apart from what users choose."""
    paths = [*sources(), ROOT / "__main__.py", *(ROOT / "workload").glob("*.j2")]
    found = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    seen = {file: known for file, text in found.items() if (known := asks(text, file))}
    assert seen == {file: set(known) for file, known in ANSWERS.items()}


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("control.run('sinfo', '--Node', fields)", {"sinfo"}),
        ("context.slurm('sacctmgr', '--parsable2', 'show', 'user')", {"sacctmgr show"}),
        ("command = ['/usr/bin/sacct', '--jobs', job]", {"sacct"}),
        ("control.run('scontrol', '--oneliner', 'show', 'job', job)", {"scontrol show"}),
        ("control.run('scontrol', 'update', 'x')", set()),
        ("control.cancel('scancel')", set()),
    ],
)
def test_what_asks_is_seen(text: str, asked: set[str]) -> None:
    assert asks(text, "node/x.py") == asked


READ: dict[str, list[fields.Fields]] = {
    "node/slurm/answers.py": [
        fields.JOB, fields.JOB_TEXTS, fields.JOB_DETAILS, fields.REQUIRED_NODES, fields.NODE,
        fields.PARTITION, fields.RESERVATION,
    ],
    "node/logs/job_output.py": [fields.OUTPUT],
    "node/slurm/control.py": [fields.DEPENDENCY],
    "node/billing/job_runs.py": [fields.RECORDED],
    "cli/changes/jobs.py": [fields.LISTED],
    "cli/changes/accounts.py": [fields.ACCOUNTED],
}  # fmt: skip
"""File -> the tables whose fields it reads."""
MAPPINGS = {"field", "fields", "texts", "details"}
"""How these files name the fields of a record."""


def keys_read(text: str) -> set[str]:
    """Return the keys that a file reads of records."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            name, key = node.value.id, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            name, key = ast.unparse(node.func.value), node.args[0]
        else:
            continue
        if name in MAPPINGS and isinstance(key, ast.Constant) and isinstance(key.value, str):
            found.add(key.value)
    return found


@pytest.mark.parametrize("file", READ)
def test_no_field_is_read_that_has_no_kind_and_none_is_asked_for_nothing(file: str) -> None:
    text = (ROOT / file).read_text()
    known = {name for table in READ[file] for name in table}
    unread = {name for name in known if f'"{name}"' not in text}
    assert keys_read(text) - known == set(), "add it to node/slurm/fields.py, with who chooses it"
    # The task tells records of one id apart.
    assert unread - {"arraytaskid"} == set(), "nobody needs it: leave it out of node/slurm/fields.py"


def test_a_field_without_a_kind_is_seen() -> None:
    assert keys_read("x = field['account'] or fields.get('wckey')\ny = other['z']") == {"account", "wckey"}
    assert all(
        isinstance(kind, fields.Kind) for tables in READ.values() for t in tables for kind in t.values()
    )


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
