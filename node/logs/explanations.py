"""Explains lines in a job's output that say too little: what they mean, and what to do."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from node.logs.sources import LogFile, Note

MOST_LINES = 400
"""The last lines of an output that are looked through."""
PAGE = 'docs/own_training.md, "Scripts from elsewhere"'
_RECURSION = re.compile(r"RecursionError: maximum recursion depth exceeded")
MEANINGS = (
    (
        re.compile(r": (source|\[\[|declare|shopt|pushd|popd): not found$"),
        "dash, which is /bin/sh on Debian and Ubuntu, has no {0}, and the script went on without what it "
        f"should have done: let it begin with #!/bin/bash ({PAGE})",
    ),
    (
        re.compile(r"conda: (?:command )?not found$|CondaError: Run 'conda init'"),
        "a job's shell does not know conda, because ~/.bashrc ends early where nobody types: write "
        f". ~/miniforge3/etc/profile.d/conda.sh before conda activate ({PAGE})",
    ),
    (
        # TensorFlow's words, those of its gRPC, and the kernel's as C, Python and torch print them.
        re.compile(r"Could not start gRPC server|Address already in use|EADDRINUSE"),
        "another process has the port, and workers that wait for this one wait for ever: cancel the job. "
        "Where a local stack's machines are processes, all nodes share one network, so two workers of a job "
        "that want the same port collide; elsewhere two jobs on a node do. Give each rank a port of its own "
        "(22222 + its number), take TF_CONFIG or MASTER_PORT as the benchmark sets it, or use "
        f"Pulumi.local-machines.yaml, where each node has its own network ({PAGE})",
    ),
    (
        re.compile(r"\.PerReplica'.{0,9} to a Tensor"),
        "Keras 3 cannot fit under MultiWorkerMirroredStrategy, and tf.keras is Keras 3: write export "
        "TF_USE_LEGACY_KERAS=1 before the program starts, and install tf_keras, which our training "
        f"environment has ({PAGE})",
    ),
    (
        _RECURSION,
        "TensorFlow imports keras, and has found a file of yours of that name: give keras.py another name, "
        f"or use our training environment, where tf.keras is another package ({PAGE})",
    ),
)
"""A line -> what it means; {0} is its first group."""
BESIDE = {_RECURSION: re.compile(r"\blazy_loader\.py")}
"""A pattern of these -> what another line must have, where the line alone may mean anything."""
OF_SLURMD = (
    (
        re.compile(r"Could not open (stdout|stderr|stdin) file "),
        "the folder of --output, --error or --input is not on the node, or its user may not write there. "
        "Slurm 22.05 makes no folder, and later releases make it on the node, where it ends with the node: "
        "make it before the job starts, on the shared disk",
    ),
    (
        re.compile(r"couldn't chdir to "),
        "the folder that the job was submitted from, or --chdir, is not on the node, which has a /tmp of its "
        "own, so the job ran there: submit from the shared folder, or name a folder there",
    ),
    (
        re.compile(r"execve\(\): bad interpreter\("),
        "the first line of the job's script names a program that is not on the node",
    ),
    (
        re.compile(r"execve\(\): (?!bad interpreter)"),
        "the program is not on the node, or may not be executed",
    ),
    (
        re.compile(r"(?:\]|JobId=\d+(?: SLUID=\S+)?) prolog failed status="),
        "the prolog of jobs failed on the node, which is then replaced: `logs NODE` has what it printed",
    ),
    (
        re.compile(r"(uid|user) \S+ not found|[Uu]nable to (find|look up) (user|uid)|Invalid user id"),
        "the job's user is not known on the node",
    ),
)
"""A line of slurmd's on a job -> what it means."""


class Explained:
    """What the lines of a job's outputs mean that say too little, also those that come while it runs."""

    heading = "what the output means"

    def __init__(self, outputs: Iterable[LogFile]) -> None:
        self._outputs = tuple(outputs)
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._known = list(MEANINGS)

    def last(self, _count: int) -> list[str]:
        return self._new(line for log in self._outputs for line in log.last(MOST_LINES))

    def more(self) -> list[str]:
        return self._new(line for log in self._outputs for line in log.more())

    def _new(self, lines: Iterable[str]) -> list[str]:
        """Return the explanations that these lines add."""
        if not (added := [line.rstrip() for line in lines]):
            return []
        self._lines.extend(added)
        explained = {pair: meanings(self._lines, [pair]) for pair in self._known}
        self._known = [pair for pair in self._known if not explained[pair]]
        return [text for texts in explained.values() for text in texts]


def started_wrongly(log: LogFile) -> Iterator[Note]:
    """Return a note on what a slurmd's lines on a job mean, if any of them needs one."""
    if explanations := meanings(log.last(MOST_LINES), OF_SLURMD):
        yield Note("what this means", explanations)


def meanings(lines: Iterable[str], known: Sequence[tuple[re.Pattern[str], str]] = MEANINGS) -> list[str]:
    """Return an explanation for each kind of line that needs one, behind the first such line."""
    explanations: list[str] = []
    lines = list(lines)
    for pattern, meaning in known:
        beside = BESIDE.get(pattern)
        if beside is not None and not any(map(beside.search, lines)):
            continue
        matches = ((line, match) for line in lines if (match := pattern.search(line)) is not None)
        explanations += [f"{line.strip()}: {meaning.format(*match.groups())}" for line, match in matches][:1]
    return explanations
