"""The result record of the built-in training: its keys, its check, and how JSON is read and written.

Whoever reads a record may not be whoever wrote it, so the check holds every field to its type, its range and
its size, and a job's id to digits: it becomes a part of file names.

Standard library only. The record of a user's program is `workload.program_record`.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload import files

API_VERSION = "slurm-stacks/result/v1"

NUMBER = (int, float)
OPTIONAL_NUMBER = (int, float, type(None))
OPTIONAL_TEXT = (str, type(None))

KEYS: Mapping[str, tuple[type, ...]] = {
    "apiVersion": (str,),
    "stack": OPTIONAL_TEXT,
    "job_id": OPTIONAL_TEXT,
    "partition": OPTIONAL_TEXT,
    "machine": OPTIONAL_TEXT,
    "nodes": (int,),
    "workers": (int,),
    "gpus_per_node": (int,),
    "devices": (list,),
    "profile": (str,),
    "data": (str,),
    "epochs": (int,),
    "global_batch": (int,),
    "seconds_total": NUMBER,
    "seconds_train": NUMBER,
    "images_per_second": NUMBER,
    "loss": NUMBER,
    "accuracy": NUMBER,
    "test_accuracy": NUMBER,
    "history": (list,),
    "start_latency_seconds": OPTIONAL_NUMBER,
    "restarts": (int,),
    "digest": OPTIONAL_TEXT,
    "versions": (dict,),
    "cost_usd": OPTIONAL_NUMBER,
    "seed": (int,),
    "learning_rate": NUMBER,
    "average_every": (int, type(None)),
    "cores": (int,),
    "cores_shared": (bool,),
    "cores_others": OPTIONAL_NUMBER,
    "step_seconds": OPTIONAL_NUMBER,
    "exchange_seconds": OPTIONAL_NUMBER,
    "phases": (dict,),
}
"""Every key of a record, and the types its value may have. None means not known."""
JOB_ID = re.compile(r"[1-9][0-9]{0,9}")
"""Slurm's number of a job."""
DEEPEST = 20
"""The most levels of JSON that are read. A record has three."""
LARGEST = 2**53
"""The greatest whole number. A greater one loses digits in programs that read JSON, and cannot be a float."""
LONGEST_TEXT = 1000
MOST_ENTRIES = 100_000
"""The most entries of a list or an object. The history has one for each epoch, the devices one for each."""
MOST_MISTAKES = 20
"""The most mistakes of one object that are named."""

HISTORY_KEYS: Mapping[str, tuple[type, ...]] = {
    "epoch": (int,),
    "loss": NUMBER,
    "accuracy": NUMBER,
    "seconds": NUMBER,
}


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of training, over the examples of all workers: an entry of the history.

    Attributes:
        epoch: The number of the epoch, from 1.
    """

    epoch: int
    loss: float
    accuracy: float
    seconds: float


_CHOICES = {
    "apiVersion": (API_VERSION,),
    "profile": ("published", "sync", "local-sgd"),
    "data": ("mnist", "digits-synthetic"),
}


def mistakes(record: Any) -> list[str]:
    """Return the mistakes of a record, each with its path; empty for a valid record."""
    found = check_object(record, KEYS, "result")
    if found:
        return found
    found += job_id_mistakes(record)
    for key, choices in _CHOICES.items():
        if record[key] not in choices:
            found.append(f"result.{key}: {short(record[key])} is none of {', '.join(choices)}")
    for key in ("nodes", "workers", "epochs", "global_batch", "average_every", "cores"):
        if record[key] is not None and record[key] < 1:
            found.append(f"result.{key}: {record[key]} is less than 1")
    for key in (
        "gpus_per_node",
        "restarts",
        "seconds_total",
        "seconds_train",
        "images_per_second",
        "cost_usd",
        "step_seconds",
        "exchange_seconds",
    ):
        if record[key] is not None and record[key] < 0:
            found.append(f"result.{key}: {record[key]} is negative")
    for key in ("accuracy", "test_accuracy", "cores_others"):
        if record[key] is not None and not 0 <= record[key] <= 1:
            found.append(f"result.{key}: {record[key]} is not between 0 and 1")
    for name, seconds in record["phases"].items():
        if isinstance(seconds, bool) or not isinstance(seconds, NUMBER) or not 0 <= seconds < math.inf:
            found.append(f"result.phases.{key_of(name)}: {short(seconds)} is no number of seconds")
    if not record["devices"] or not all(isinstance(name, str) for name in record["devices"]):
        found.append("result.devices: the names of at least one device are expected")
    else:
        found += list_mistakes(record["devices"], "result.devices")
    found += version_mistakes(record["versions"])
    for name in record["phases"]:
        found += text_mistakes(name, "result.phases")
    for index, entry in enumerate(record["history"]):
        path = f"result.history[{index}]"
        wrong = check_object(entry, HISTORY_KEYS, path)
        if not wrong and entry["epoch"] != index + 1:
            wrong = [f"{path}.epoch: {entry['epoch']} is not {index + 1}"]
        found += wrong
        if len(found) > MOST_MISTAKES:
            break
    if len(record["history"]) != record["epochs"]:
        found.append(f"result.history: {len(record['history'])} entries for {record['epochs']} epochs")
    # Every number of seconds is rounded to a thousandth.
    rounded = 0.001 * (record["epochs"] + 1)
    if not found and abs(record["seconds_train"] - epoch_seconds(record)) > rounded:
        found.append(f"result.seconds_train: {record['seconds_train']} is not the sum of the epochs' seconds")
    return found


def check_object(value: Any, keys: Mapping[str, tuple[type, ...]], path: str) -> list[str]:
    """Return the mistakes in an object's keys and their values' types, each with its path.

    Args:
        keys: Key -> the types that its value may have.
        path: The object's path, for messages.
    """
    if not isinstance(value, dict):
        return [f"{path}: an object is expected"]
    found = [f"{path}.{key}: missing" for key in keys if key not in value]
    found += [f"{path}.{key_of(key)}: unknown" for key in list(value)[: len(keys) + 1] if key not in keys]
    for key, types in keys.items():
        if key not in value:
            continue
        item = value[key]
        if not isinstance(item, types) or (isinstance(item, bool) and bool not in types):
            names = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            found.append(f"{path}.{key}: {short(item)} is no {names}")
        elif isinstance(item, NUMBER):
            found += number_mistakes(item, f"{path}.{key}")
        elif isinstance(item, str):
            found += text_mistakes(item, f"{path}.{key}")
        elif isinstance(item, (list, dict)) and len(item) > MOST_ENTRIES:
            found.append(f"{path}.{key}: {len(item)} entries are more than {MOST_ENTRIES}")
    return found


def short(value: Any) -> str:
    """A value as a short text for a message, however long or deep the value is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def key_of(name: str) -> str:
    """A key that anybody may have chosen, as a short word for a message."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[:40])


def number_mistakes(value: float, path: str) -> list[str]:
    """Return what is wrong with a number: JSON has no infinities and no NaN, and no huge ones are meant."""
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path}: {value!r} is no finite number"]
    if abs(value) > LARGEST:
        return [f"{path}: {short(value)} is beyond {LARGEST}"]
    return []


def text_mistakes(value: Any, path: str) -> list[str]:
    """Return what is wrong with a text of one line."""
    if not isinstance(value, str):
        return [f"{path}: {short(value)} is no text"]
    if len(value) > LONGEST_TEXT:
        return [f"{path}: {len(value)} characters are more than {LONGEST_TEXT}"]
    if not value.isprintable():
        return [f"{path}: {short(value)} has characters that cannot be printed"]
    return []


def list_mistakes(values: list[Any], path: str) -> list[str]:
    """Return what is wrong with a list of texts of one line; the first few mistakes."""
    found: list[str] = []
    for index, value in enumerate(values):
        found += text_mistakes(value, f"{path}[{index}]")
        if len(found) > MOST_MISTAKES:
            break
    return found


def job_id_mistakes(record: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a record's job: its id is digits, because files are named after it."""
    job = record["job_id"]
    if job is None or JOB_ID.fullmatch(job):
        return []
    return [f"result.job_id: {short(job)} is no number of a Slurm job (1 to 10 digits, or null)"]


def version_mistakes(versions: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a record's versions: the names of packages, each with its version."""
    if not all(isinstance(value, str) for value in versions.values()):
        return ["result.versions: texts are expected"]
    return list_mistakes([*versions, *versions.values()], "result.versions")


def parse(text: str | bytes) -> Any:
    """Read JSON that anybody may have written.

    Raises:
        ValueError: It is no JSON, or has more than DEEPEST levels.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record atomically.

    Raises:
        ValueError: the record is not valid.
    """
    if found := mistakes(dict(record)):
        raise ValueError("; ".join(found))
    write_json(path, {key: record[key] for key in KEYS})


def epoch_seconds(record: Mapping[str, Any]) -> float:
    """Return what the epochs took together, in seconds: the definition of `seconds_train`."""
    return float(sum(entry["seconds"] for entry in record["history"]))


def is_of_job(path: Path, job_id: str | None) -> bool:
    """Whether the file is the complete result of this job."""
    try:
        record = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return job_id is not None and not mistakes(record) and record["job_id"] == job_id


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON atomically, because other tasks may read the file meanwhile."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with files.replacing(path) as file:
        file.write(f"{text}\n".encode())
