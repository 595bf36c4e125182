"""Pure parsers of the output of Slurm, from 22.05 to 26.05.

Users choose texts such as a job's name, and Slurm takes any byte but NUL in them. So what is read of a job is
separated by marks that nobody can know. `node.slurm.fields` lists all fields, and who chooses each.

All times are seconds since 1970, because `Control` runs the commands with SLURM_TIME_FORMAT=%s.

Slurm's traps (docs/internals/slurm_traps.md): json-differs, any-byte, wait-status.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from node.slurm.fields import HOLDING, JOB, MOST_DIGITS, NODE, PARTITION, RESERVATION, Fields
from node.slurm.hostlist import MOST_FOREIGN, Expander, fold
from node.slurm.phases import phase
from node.slurm.reservations import Reservation
from node.slurm.states import JobState, NodeState, base_and_flags

_NO_FIELDS: Fields = {}
LeaveOut = Callable[[str], None]
"""What is called with a sentence for each record that is left out."""


def ignore(_: str) -> None:
    """Do nothing with a record that is left out."""


# Slurm's stamp is the last bracket, because the reason itself may have brackets.
_REASON = re.compile(r"\sReason=(.*) \[([^\s@\[\]]*)@(\d+|Unknown)\]|\sReason=(.*)$", re.DOTALL)


class NodeParser:
    """A parser of the output of `scontrol show nodes --oneliner`, which parses only lines that have changed.

    It keeps the lines of its last answer, each with its node: of thousands of nodes a few change from one
    answer to the next. One thread at a time may use it.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, NodeState]] = {}
        self._nodes: Mapping[str, NodeState] = {}

    def __call__(self, lines: Iterable[str]) -> Mapping[str, NodeState]:
        """Return the nodes by name; the same object as the last time, if no node has changed.

        A line that is no node's is left out: a reason, a comment or a node's own words may have line breaks,
        and must not stop whoever asks. Only Slurm's administrators and root of a machine write these texts.

        Args:
            lines: The lines, which may end with a line feed.

        Raises:
            ValueError: No line describes a node, although there are some: this is another program's output.
                Or it is not certain what the nodes are: one occurs twice, or a field that a text cannot hold
                does.
        """
        nodes: dict[str, NodeState] = {}
        known: dict[str, tuple[str, NodeState]] = {}
        other, same = "", True
        for line in lines:
            # A line that is known already is kept as the object that it was, so that none is kept twice.
            entry = self._known.get(line)
            if entry is None:
                if (node := _node(line.removesuffix("\n"))) is None:
                    other = other or line.strip()
                    continue
                entry, same = (line, node), False
            if (name := entry[1].name) in nodes:
                _refuse_second(nodes, name, "node")
            nodes[name] = entry[1]
            known[entry[0]] = entry
        if other and not nodes and not other.startswith("No nodes in the system"):
            raise ValueError(f"no node's line from scontrol: {other[:200]!r}")
        if not (same and len(known) == len(self._known)):
            self._known, self._nodes = known, nodes
        return self._nodes


def parse_nodes(text: str) -> Mapping[str, NodeState]:
    """Parse a text as `NodeParser` does."""
    # Not splitlines(), which takes ten other characters of a text for line breaks.
    return NodeParser()(text.split("\n"))


def _refuse_second(found: Container[str], name: str, what: str) -> None:
    """Refuse an answer in which an object or a field occurs twice.

    Raises:
        ValueError: There is one of the name already.
    """
    if name in found:
        raise ValueError(
            f"scontrol: {what} {name!r} occurs twice, so nothing of the answer counts. An administrator's "
            "text holds what looks like one: `scontrol show nodes`, `partitions`, `reservations` show where"
        )


# Free text: the operating system's name as the node tells it, the name of a user who has the node for their
# jobs alone, and what people and programs say of a node.
_OWN_WORDS, _MEMORY, _OWNER = " OS=", " RealMemory=", " Owner="
_BEHIND = ("State", "Weight", "Partitions", "BootTime", "SlurmdStartTime", "LastBusyTime")
_HEAD = {key: kind for key, kind in NODE.items() if key not in _BEHIND}
"""The fields that come before them."""
_PARTITIONS = re.compile(r".* Partitions=(.*?) +BootTime=", re.DOTALL)
"""Only administrators name them, perhaps with spaces. The last ones count: an owner's name comes before."""
_USED = re.compile(r":(\d+)(?:\(|,|$)")
_TEXTS = (" Comment=", " Extra=", " Reason=")


def _words(part: str, known: Fields) -> dict[str, str]:
    """Return the values of the keys that are known; of one that occurs several times the last."""
    # There may be 5,000 lines, and splitting takes a tenth of the time of a regular expression.
    value_of = dict(item.split("=", 1) for item in part.split(" ") if "=" in item)
    return {key: value_of[key] for key in known if key in value_of}


def _object(part: str, known: Fields) -> dict[str, str]:
    """Return the fields of a part of a line in which texts have no spaces.

    Raises:
        ValueError: A field occurs twice, so a text has spaces.
    """
    begun = f" {part}"
    for key in known:
        if begun.count(f" {key}=") > 1:
            _refuse_second(known, key, "field")
    return _words(part, known)


def _checked(fields: dict[str, str], known: Fields) -> dict[str, str]:
    for key, value in fields.items():
        known[key].check(value)
    return fields


def _node(line: str) -> NodeState | None:
    """Return the node of a line; `None` if the line does not describe one.

    Raises:
        ValueError: A field occurs twice, or is not of its kind.
    """
    if not line.startswith("NodeName="):
        return None
    head, middle, tail = _parts(line)
    # Behind a text, which may hold anything, a field counts only if no earlier part has it; and of several
    # the last one counts, because the text comes first.
    fields = _words(tail, NODE) | _words(middle, NODE)
    fields |= _object(head, _HEAD if _MEMORY in line else NODE)
    if not {"State", "NodeName"} <= fields.keys():
        return None
    _checked(fields, NODE)
    name = fields["NodeName"]
    base, flags = base_and_flags(fields["State"])
    reason, user, when = _reason(line)
    match = _PARTITIONS.match(tail)
    address, hostname = fields.get("NodeAddr", ""), fields.get("NodeHostName", "")
    return NodeState(
        name,
        base,
        flags,
        reason,
        reason_user=user,
        reason_time=when,
        boot_time=_time(fields.get("BootTime")),
        slurmd_start_time=_time(fields.get("SlurmdStartTime")),
        next_state=_text(fields.get("NextState")),
        last_busy_time=_time(fields.get("LastBusyTime")),
        cpus_alloc=_count(fields.get("CPUAlloc")),
        cpus=_count(fields.get("CPUTot")),
        partitions=_names(match[1] if match else fields.get("Partitions", "")),
        # A node that is off has its name for both.
        address=name if address == name else address,
        hostname=name if hostname == name else hostname,
        gres=_text(_one(fields.get("Gres", ""))),
        gres_used=sum(map(int, _USED.findall(fields.get("GresUsed", "")))),
        version=_text(_one(fields.get("Version", ""))),
        features=_text(_one(fields.get("AvailableFeatures", ""))) or "",
        weight=_one(fields.get("Weight", "")),
        cpu_bind=_one(fields.get("CpuBind", "")),
    )


@lru_cache(maxsize=1024)
def _one(text: str) -> str:
    """Return the same object for all equal texts of late: thousands of nodes have a few different ones."""
    return text


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _parts(line: str) -> Iterator[str]:
    """Yield what is before, between and after the texts of a node's line, each without the last texts.

    A node that has never registered has no words of its own, but always a memory.
    """
    head, own_words, rest = line.partition(_OWN_WORDS)
    if not own_words or _MEMORY in head:
        head, _, rest = line.partition(_MEMORY)
    middle, _, tail = rest.partition(_OWNER)
    for part in (head, middle, tail):
        yield part[: min((at for text in _TEXTS if (at := part.find(text)) >= 0), default=len(part))]


def _reason(line: str) -> tuple[str | None, str | None, float | None]:
    match = _REASON.search(line)
    if match is None:
        return None, None, None
    if match[4] is not None:
        return _text(match[4]), None, None
    return _text(match[1]), match[2], _time(match[3])


_NAME = re.compile(r" [A-Za-z]+=.*", re.DOTALL)
"""What comes after a name at the beginning of a line."""


def _objects(text: str, known: Fields) -> Iterator[dict[str, str]]:
    """Yield the fields of each line that describes a reservation or a partition.

    Raises:
        ValueError: A field occurs twice, or is not of its kind.
    """
    name = next(iter(known))
    for line in text.split("\n"):
        if line.startswith(f"{name}="):
            # A comment, which comes last, and the name are the only texts that may have spaces.
            fields = _object(line.partition(" Comment=")[0], known)
            yield _checked({**fields, name: _NAME.sub("", line.removeprefix(f"{name}="))}, known)


def parse_reservations(text: str) -> list[Reservation]:
    """Parse the output of `scontrol show reservations --oneliner`. Other lines are left out.

    Only administrators make reservations and write their texts.

    Raises:
        ValueError: It is not certain what they are: one, or a field, occurs twice; or too many nodes.
    """
    reservations: dict[str, Reservation] = {}
    expander = Expander()
    for fields in _objects(text, RESERVATION):
        name = fields["ReservationName"]
        start, end = _time(fields.get("StartTime")), _time(fields.get("EndTime"))
        if start is None or end is None:
            continue
        nodes = _text(fields.get("Nodes"))
        whose = filter(None, (_text(fields.get(key)) for key in ("Users", "Groups", "Accounts")))
        flags = frozenset(fields.get("Flags", "").split(",")) - {""}
        _refuse_second(reservations, name, "reservation")
        names = expander(nodes) if nodes else ()
        reservations[name] = Reservation(name, start, end, names, flags, ",".join(whose))
    return list(reservations.values())


def parse_partition_states(text: str) -> dict[str, str]:
    """Parse the output of `scontrol show partitions --oneliner`, and return UP, DOWN, … by name.

    Raises:
        ValueError: It is not certain what they are: one, or a field, occurs twice.
    """
    states: dict[str, str] = {}
    for fields in _objects(text, PARTITION):
        if "State" in fields:
            _refuse_second(states, name := fields["PartitionName"], "partition")
            states[name] = fields["State"]
    return states


def new_mark() -> str:
    """Return a mark by which one reading of squeue differs from the next: who writes a text cannot know it.

    It begins with a letter, because a digit would be a field's width.
    """
    return f"m{secrets.token_hex(16)}"


def squeue_format(fields: Iterable[str], mark: str) -> str:
    """Return the value of `squeue --Format` for each job's id and these fields. Nothing is cut.

    Args:
        mark: What separates the fields. squeue gets it in its environment, because all users see the
            arguments of a command.
    """
    *others, last = ("jobid", *fields)
    return ",".join([*(f"{name}:{mark}f" for name in others), f"{last}:{mark}r"])


class Records:
    """The records of an answer of squeue with `squeue_format`, each with the job's id.

    A record without the fields, or with one that is not of its kind, is left out: one job must not hide all
    others. But an answer in which a job occurs twice is refused, for nobody knows which record is real.

    Args:
        answer: What squeue printed. It may be long, so only one record at a time is decoded.
        fields: As for `squeue_format`. With `arraytaskid` the tasks of an array that have not started are
            records of one id.
        mark: As for `squeue_format`.
        leave_out: Is told of each record that is left out.

    Attributes:
        tasks: Job -> the array's tasks that have its id.
    """

    def __init__(self, answer: bytes, fields: Fields, mark: str, leave_out: LeaveOut = ignore) -> None:
        self._answer = answer
        self._fields = fields
        self._ends = f"{mark}f".encode(), f"{mark}r".encode()
        self._task = 1 + list(fields).index("arraytaskid") if "arraytaskid" in fields else None
        self._leave_out = leave_out
        self.tasks: dict[int, dict[bytes, None]] = {}

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the first record of each id.

        Raises:
            ValueError: A job occurs twice.
        """
        for record in self._split():
            number, values = record[0], record[1:]
            if not _is_index(number) or len(values) != len(self._fields):
                self._leave_out(f"squeue: what is no job's record is left out: {_start(b' '.join(record))}")
                continue
            task = record[self._task] if self._task is not None else b""
            tasks = self.tasks.setdefault(int(number), {})
            if tasks and (task in tasks or not all(map(_is_index, (task, next(iter(tasks)))))):
                raise ValueError(f"squeue: job {int(number)} occurs twice, so none of its records counts")
            tasks[task] = None
            if len(tasks) == 1 and (texts := self._checked(int(number), values)) is not None:
                yield int(number), texts

    def _split(self) -> Iterator[list[bytes]]:
        between, end = self._ends
        start = 0
        while (stop := self._answer.find(end, start)) >= 0:
            # squeue ends every record with an additional line break.
            yield self._answer[start:stop].lstrip(b"\n").split(between)
            start = stop + len(end)
        if rest := self._answer[start:].strip():
            yield [rest]

    def _checked(self, number: int, values: Sequence[bytes]) -> dict[str, str] | None:
        texts = dict(zip(self._fields, (value.decode(errors="replace") for value in values), strict=True))
        try:
            return {name: kind.check(texts[name]) for name, kind in self._fields.items()}
        except ValueError as error:
            self._leave_out(f"squeue: job {number} is left out: {error}")
            return None


def _is_index(text: bytes) -> bool:
    return _is_number(text.decode(errors="replace"))


def _start(record: bytes) -> str:
    return repr(record[:200].decode(errors="replace"))


def parse_texts(
    answer: bytes, fields: Fields, mark: str, leave_out: LeaveOut = ignore
) -> dict[int, dict[str, str]]:
    """Parse an answer of squeue with `squeue_format`, and return each job's fields by its id.

    The tasks of an array that have not started share an id.

    Raises:
        ValueError: A job occurs twice.
    """
    return dict(Records(answer, fields, mark, leave_out))


def parse_jobs(
    answer: bytes, mark: str, more: Fields = _NO_FIELDS, leave_out: LeaveOut = ignore
) -> dict[int, JobState]:
    """Parse the output of `squeue --noheader --array` with `squeue_format`, and return the jobs by id.

    The tasks of an array that have not started share the array's id and become one job.

    Args:
        answer: What squeue printed for the fields of `JOB` and these.
        mark: As for `squeue_format`.
        more: `JOB_TEXTS` or `JOB_DETAILS`, or both; the jobs lack what was not asked for.
        leave_out: Is told of each record that is left out.

    Raises:
        ValueError: A job occurs twice, or no record is a job's, although there are some.
    """
    expander = Expander()
    jobs: dict[int, JobState] = {}
    records = Records(answer, {**JOB, **more}, mark, leave_out)
    for number, values in records:
        try:
            jobs[number] = _job(number, values, expander)
        except ValueError as error:
            leave_out(f"squeue: job {number} is left out: {error}")
    if not jobs and answer.strip():
        raise ValueError(f"no job's record from squeue: {_start(answer)}")
    for number, tasks in records.tasks.items():
        if len(tasks) > 1 and number in jobs:
            indices = fold(f"t{int(index)}" for index in tasks)
            jobs[number] = replace(jobs[number], array_task=indices[2:-1])
    return jobs


def parse_working(answer: bytes, mark: str, leave_out: LeaveOut = ignore) -> set[int]:
    """Parse the same output for the fields of `HOLDING`.

    Returns:
        The ids of the jobs that hold nodes and do not end (`JobState.has_work`).

    Raises:
        ValueError: As for `parse_jobs`.
    """
    jobs = parse_texts(answer, HOLDING, mark, leave_out)
    if not jobs and answer.strip():
        raise ValueError(f"no job's record from squeue: {_start(answer)}")
    return {
        number
        for number, field in jobs.items()
        if phase(field["state"], nodes=_text(field["nodelist"]) is not None).has_work
    }


def _job(number: int, field: dict[str, str], expander: Expander) -> JobState:
    task = _text(field["arraytaskid"])
    nodes = _text(field["nodelist"])
    exit_code, signal = _ending(field["exit_code"])
    job = JobState(
        id=number,
        name="",
        state=field["state"],
        # For `ReqNodeNotAvail, UnavailableNodes:…` the part after the comma goes into the explanation.
        reason=field["reason"].partition(",")[0],
        explanation=_explanation(field["reasonlist"], field["reason"].partition(",")[0]),
        partition=field["partition"],
        user=field["username"],
        nodes=expander(nodes) if nodes else (),
        # A range of numbers (`2-4`) requests at least the first number.
        wanted_nodes=int(field["numnodes"].partition("-")[0] or 0),
        batch_host=_text(field["batchhost"]),
        requeue=field["requeue"] in ("1", "yes", "YES"),
        restarts=int(field["restartcnt"]),
        priority=int(field["prioritylong"]),
        submit_time=_time(field["submittime"]),
        eligible_time=_time(field["eligibletime"]),
        start_time=_time(field["starttime"]),
        end_time=_time(field["endtime"]),
        array_job=int(field["arrayjobid"]) if task else None,
        array_task=task,
        het_job=int(field["hetjobid"]) if _text(field["hetjobid"]) not in (None, "0") else None,
        exit_code=exit_code,
        signal=signal,
        comment=None,
        admin_comment=None,
    )
    return with_details(with_texts(job, field), field)


def with_texts(job: JobState, texts: Mapping[str, str]) -> JobState:
    """Return the job with its texts (`JOB_TEXTS`)."""
    comment, admin_comment = _text(texts.get("comment")), _text(texts.get("admin_comment"))
    return replace(job, name=texts.get("name", ""), comment=comment, admin_comment=admin_comment)


def with_details(job: JobState, details: Mapping[str, str]) -> JobState:
    """Return the job with its details (`JOB_DETAILS`)."""
    return replace(
        job,
        reservation=_text(details.get("reservation")),
        run_seconds=_duration(details.get("timeused", "")) or 0.0,
        time_limit=_duration(details.get("timelimit", "")),
    )


def required_nodes(texts: Mapping[int, Mapping[str, str]]) -> dict[int, tuple[str, ...]]:
    """Return the nodes that jobs ask for by name (`REQUIRED_NODES`), by id.

    A job whose list cannot be used, or whose list makes all of them too long, is left out.
    """
    expander = Expander(MOST_FOREIGN)
    nodes_of = {}
    for number, fields in texts.items():
        text = _text(fields["reqnodes"]) or ""
        with suppress(ValueError):
            if text:
                nodes_of[number] = expander(text)
    return nodes_of


def _explanation(text: str, reason: str) -> str | None:
    """Return the explanation in squeue's last column: a running job's nodes, `(why)` of any other."""
    if not text.startswith("(") or not text.endswith(")") or text[1:-1] in (reason, "null"):
        return None
    return text[1:-1]


def _ending(text: str) -> tuple[int, int]:
    """Return the exit status and signal of `<status>:<signal>`. 22.05 prints the wait status instead."""
    status, colon, number = text.partition(":")
    return (int(status), int(number)) if colon else (int(status) >> 8, int(status) & 0x7F)


def _text(value: str | None) -> str | None:
    return None if value in (None, "", "(null)", "N/A", "None", "n/a", "Unknown") else value


def _time(value: str | None) -> float | None:
    return float(value) if value is not None and _is_number(value) and value != "0" else None


def _duration(value: str) -> float | None:
    """Return the seconds of `[days-][[hours:]minutes:]seconds`. `None` for any word, such as UNLIMITED."""
    days, dash, rest = value.rpartition("-")
    parts = rest.split(":")
    if len(parts) > 3 or not all(map(_is_number, [*parts, *([days] if dash else [])])):
        return None
    seconds = 86400 * int(days) if dash else 0
    for part, unit in zip(reversed(parts), (1, 60, 3600), strict=False):
        seconds += unit * int(part)
    return float(seconds)


def _count(value: str | None) -> int:
    return int(value) if value is not None and _is_number(value) else 0


def _is_number(text: str) -> bool:
    # No more digits than any number of Slurm's has. isdigit() alone knows other alphabets' digits.
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
