"""Pure parsers of the output of Slurm, from 22.05 to 26.05.

Users choose texts such as a job's name, and Slurm takes any byte but NUL in them. So no text shares a reading
with what decides, or its separators cannot be known.

All times are seconds since 1970, because `Control` runs the commands with SLURM_TIME_FORMAT=%s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from node.slurm.hostlist import expand, fold
from node.slurm.reservations import Reservation
from node.slurm.states import JobState, NodeState

MOST_DIGITS = 20
# Slurm's stamp is the last bracket, because the reason itself may have brackets.
_REASON = re.compile(r"\sReason=(.*) \[([^\s@\[\]]*)@(\d+|Unknown)\]|\sReason=(.*)$", re.DOTALL)


def parse_nodes(text: str) -> dict[str, NodeState]:
    """Parse the output of `scontrol show nodes --oneliner`, and return the nodes by name.

    A line that is no node's is left out: a reason, a comment or a node's own words may have line breaks, and
    must not stop whoever asks. Only Slurm's administrators and root of a machine write these texts.

    Raises:
        ValueError: No line describes a node, although there are some: this is another program's output.
    """
    if text.startswith("No nodes in the system"):
        return {}
    found: dict[str, NodeState] = {}
    # Not splitlines(), which takes ten other characters of a text for line breaks.
    lines = [line for line in text.split("\n") if line.strip()]
    for line in lines:
        if (node := _node(line)) is not None:
            found.setdefault(node.name, node)
    if lines and not found:
        raise ValueError(f"no node's line from scontrol: {lines[0][:200]!r}")
    return found


# Free text: the operating system's name as the node tells it, and what people and programs say of a node.
_OWN_WORDS = " OS="
_USED = re.compile(r":(\d+)(?:\(|,|$)")
_TEXTS = (" Comment=", " Extra=", " Reason=")


def _node(line: str) -> NodeState | None:
    """Return the node of a line; `None` if the line does not describe one."""
    if not line.startswith("NodeName="):
        return None
    # Each half ends where a text begins, so that no text can pass for a field of its half; and no field of
    # the second half, in which a node's own words are, counts if the first has it.
    head, _, rest = line.partition(_OWN_WORDS)
    fields: dict[str, str] = {}
    for part in (rest, head):
        end = min((at for text in _TEXTS if (at := part.find(text)) >= 0), default=len(part))
        # There may be 5,000 lines, and splitting takes a tenth of the time of a regular expression.
        fields |= dict(item.split("=", 1) for item in part[:end].split(" ") if "=" in item)
    if not {"State", "NodeName"} <= fields.keys():
        return None
    base, *flags = fields["State"].split("+")
    name = fields["NodeName"]
    reason, user, when = _reason(line)
    return NodeState(
        name=name,
        # 22.05 marks a silent node with a star here. Newer releases have only the flag.
        base=base.rstrip("*"),
        flags=frozenset(flags) | ({"NOT_RESPONDING"} if base.endswith("*") else set()),
        reason=reason,
        reason_user=user,
        reason_time=when,
        boot_time=_time(fields.get("BootTime")),
        slurmd_start_time=_time(fields.get("SlurmdStartTime")),
        next_state=_text(fields.get("NextState")),
        last_busy_time=_time(fields.get("LastBusyTime")),
        cpus_alloc=_count(fields.get("CPUAlloc")),
        cpus=_count(fields.get("CPUTot")),
        partitions=tuple(filter(None, fields.get("Partitions", "").split(","))),
        address=fields.get("NodeAddr", ""),
        hostname=fields.get("NodeHostName", ""),
        gres=_text(fields.get("Gres")),
        gres_used=sum(map(int, _USED.findall(fields.get("GresUsed", "")))),
        version=_text(fields.get("Version")),
    )


def _reason(line: str) -> tuple[str | None, str | None, float | None]:
    match = _REASON.search(line)
    if match is None:
        return None, None, None
    if match[4] is not None:
        return _text(match[4]), None, None
    return _text(match[1]), match[2], _time(match[3])


def parse_reservations(text: str) -> list[Reservation]:
    """Parse the output of `scontrol show reservations --oneliner`. Other lines are left out.

    Only administrators make reservations and write their texts.
    """
    found = []
    for line in text.split("\n"):
        # The comment is the only text that may have spaces, and it comes last.
        head = line.partition(" Comment=")[0]
        fields = dict(item.split("=", 1) for item in head.split(" ") if "=" in item)
        start, end = _time(fields.get("StartTime")), _time(fields.get("EndTime"))
        if not line.startswith("ReservationName=") or start is None or end is None:
            continue
        nodes = _text(fields.get("Nodes"))
        whose = filter(None, (_text(fields.get(key)) for key in ("Users", "Groups", "Accounts")))
        found.append(
            Reservation(
                name=fields["ReservationName"],
                start=start,
                end=end,
                nodes=tuple(expand(nodes)) if nodes else (),
                flags=frozenset(fields.get("Flags", "").split(",")) - {""},
                users=",".join(whose),
            )
        )
    return found


def parse_partition_states(text: str) -> dict[str, str]:
    """Parse the output of `scontrol show partitions --oneliner`, and return UP, DOWN, … by name."""
    found = {}
    for line in text.split("\n"):
        fields = dict(item.split("=", 1) for item in line.split(" ") if "=" in item)
        if {"PartitionName", "State"} <= fields.keys():
            found[fields["PartitionName"]] = fields["State"]
    return found


# None of these fields holds a text that a user can choose, so what they say decides. Slurm takes any byte but
# NUL in a name or a comment, so texts have a reading and separators of their own (`text_format`).
_FIELD, _RECORD = "\x1f", "\x1e"
_JOB_FIELDS = (
    "jobid",
    "arrayjobid",
    "arraytaskid",
    "hetjobid",
    "state",
    "reason",
    "partition",
    "username",
    "nodelist",
    "numnodes",
    "batchhost",
    "requeue",
    "restartcnt",
    "prioritylong",
    "submittime",
    "eligibletime",
    "starttime",
    "endtime",
    "tres-per-node",
    "tres-alloc",
    "dependency",
    "exit_code",
    "reasonlist",
)
SQUEUE_FORMAT = f":{_FIELD},".join(_JOB_FIELDS) + f":{_RECORD}"
"""The value of `squeue --Format`. It has no widths, so nothing is cut, and it has our own separators."""
JOB_TEXTS = ("name", "comment", "admin_comment")
"""The fields of jobs that hold what somebody has written."""
JOB_DETAILS = ("reservation", "timeused", "timelimit", "reqnodes")
"""The fields of jobs that only people ask for: `with_details`."""
OUTPUT_FIELDS = (
    "arrayjobid", "arraytaskid", "userid", "username", "batchflag", "batchhost", "name", "stdout", "stderr",
)  # fmt: skip
"""The fields of jobs that tell where a batch job writes, and as whom."""


def text_format(fields: Sequence[str], mark: str) -> str:
    """Return the value of `squeue --Format` for fields with any text, after each job's id.

    Args:
        mark: What separates the fields, beginning with a letter. Who writes the texts must not be able to
            know it. So it is drawn for one reading, and squeue gets it in its environment, because all users
            see the arguments of a command.
    """
    return ",".join([*(f"{name}:{mark}f" for name in ("jobid", *fields[:-1])), f"{fields[-1]}:{mark}r"])


def parse_texts(text: str, fields: Sequence[str], mark: str) -> dict[int, dict[str, str]]:
    """Parse the output of squeue with `text_format`, and return each job's fields by its id.

    The tasks of an array that have not started share an id. What has another shape is left out.
    """
    found: dict[int, dict[str, str]] = {}
    for record in text.split(f"{mark}r"):
        number, *values = record.lstrip("\n").split(f"{mark}f")
        if _is_number(number) and len(values) == len(fields):
            found.setdefault(int(number), dict(zip(fields, values, strict=True)))
    return found


def parse_jobs(text: str) -> dict[int, JobState]:
    """Parse the output of `squeue --noheader --array --Format SQUEUE_FORMAT`, and return the jobs by id.

    The tasks of an array that have not started share the array's id and become one job. A record that is none
    is left out, because one job must not hide all others. The jobs have no name and no comments.

    Raises:
        ValueError: No record has the fields of the format, although there are some.
    """
    found: dict[int, JobState] = {}
    tasks: dict[int, list[str]] = {}
    for job in _jobs(text):
        found.setdefault(job.id, job)
        if job.array_task is not None:
            tasks.setdefault(job.id, []).append(job.array_task)
    several = {number: indices for number, indices in tasks.items() if len(indices) > 1}
    return found | {
        number: replace(found[number], array_task=fold(f"t{index}" for index in indices)[2:-1])
        for number, indices in several.items()
    }


def _jobs(text: str) -> Iterator[JobState]:
    read, broken = False, None
    for record in text.split(_RECORD):
        # squeue ends every record with an additional line break.
        values = record.lstrip("\n").split(_FIELD)
        if values == [""]:
            continue
        try:
            yield _job(dict(zip(_JOB_FIELDS, values, strict=True)))
        except ValueError:
            broken = broken or record
            continue
        read = True
    if broken is not None and not read:
        raise ValueError(f"no job's record from squeue: {broken[:200]!r}")


def _job(field: dict[str, str]) -> JobState:
    task = _text(field["arraytaskid"])
    nodes = _text(field["nodelist"])
    exit_code, signal = _ending(field["exit_code"])
    return JobState(
        id=int(field["jobid"]),
        name="",
        state=field["state"],
        # For `ReqNodeNotAvail, UnavailableNodes:…` the part after the comma goes into the explanation.
        reason=field["reason"].partition(",")[0],
        explanation=_explanation(field["reasonlist"], field["reason"].partition(",")[0]),
        partition=field["partition"],
        user=field["username"],
        nodes=tuple(expand(nodes)) if nodes else (),
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
        gres=_text(field["tres-per-node"]),
        tres=_text(field["tres-alloc"]),
        dependency=_text(field["dependency"]),
        exit_code=exit_code,
        signal=signal,
        comment=None,
        admin_comment=None,
    )


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
        required_nodes=tuple(expand(nodes)) if (nodes := _text(details.get("reqnodes"))) else (),
    )


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
