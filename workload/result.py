"""The result records: their keys and their checks.

There are three kinds: of the built-in training, of a user's program, and of a job of AWS Batch. Whoever reads
a record may not be whoever wrote it, so the check holds every field to its type, its range and its size, and
a job's id to digits: it becomes a part of file names.

A user's program may write two files about itself, its values and lines of progress. They are checked, too.
Its record holds these and what is known of every program (time, exit status, cost). It has no keys for
accuracy and loss; a program may write them as values. Standard library only.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workload.files import parse_json, write_json

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
OPTIONAL_KEYS: Mapping[str, tuple[type, ...]] = {"pool": (str,)}
"""Keys of a record of either kind that it has only where they say something: the pool of the run's nodes."""
JOB_ID = re.compile(r"[1-9][0-9]{0,9}")
"""Slurm's number of a job."""
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
_CHOICES = {
    "apiVersion": (API_VERSION,),
    "profile": ("published", "sync", "local-sgd"),
    "data": ("mnist", "digits-synthetic"),
}
PROGRAM_API_VERSION = "slurm-stacks/program-result/v1"
PROGRAM_KEYS: Mapping[str, tuple[type, ...]] = {
    "apiVersion": (str,),
    "stack": OPTIONAL_TEXT,
    "job_id": OPTIONAL_TEXT,
    "partition": OPTIONAL_TEXT,
    "machine": OPTIONAL_TEXT,
    "nodes": (int,),
    "workers": (int,),
    "gpus_per_node": (int,),
    "cores": (int, type(None)),
    "cores_shared": (bool, type(None)),
    "script": (str,),
    "arguments": (list,),
    "exit_status": (int,),
    "seconds_total": NUMBER,
    "start_latency_seconds": OPTIONAL_NUMBER,
    "restarts": (int,),
    "digest": OPTIONAL_TEXT,
    "environment": (str,),
    "versions": (dict,),
    "cost_usd": OPTIONAL_NUMBER,
    "values": (dict,),
    "history": (list,),
    "notes": (list,),
}
"""Every key of a record, and the types its value may have. None means not known."""
PROGRAM_SECONDS = "seconds_train"
"""The name of the value with the training's time. If a program writes it, the report compares that time."""
MOST_VALUES = 100
MOST_LINES = 1000
"""The most lines of progress that a record keeps. It keeps the last ones."""
MOST_BYTES = 1 << 20
"""The most bytes that are read of each file of a program."""
SCALARS = (str, int, float, bool, type(None))
BATCH_API_VERSION = "slurm-stacks/batch-result/v1"
BATCH_KEYS: Mapping[str, tuple[type, ...]] = {
    "apiVersion": (str,),
    "scheduler": (str,),
    "stack": (str, type(None)),
    "job_id": (str,),
    "attempt": (int,),
    "nodes": (int,),
    "gpus": (int,),
    "gpus_per_node": (int,),
    "launch": (str,),
    "image": (str, type(None)),
    "program": (list,),
    "exit_status": (int,),
    "seconds_total": (int, float),
    "seconds_waited": (int, float),
    "versions": (dict,),
    "history": (list,),
    "notes": (list,),
}
"""The keys that every record has, and the types of their values. The program's known values are added."""


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


_RANGES: Sequence[tuple[float, float, str, Sequence[str]]] = (
    (1, math.inf, "less than 1", ("nodes", "workers", "epochs", "global_batch", "average_every", "cores")),
    (
        0,
        math.inf,
        "negative",
        (
            "gpus_per_node",
            "restarts",
            "seconds_total",
            "seconds_train",
            "images_per_second",
            "cost_usd",
            "step_seconds",
            "exchange_seconds",
        ),
    ),
    (0, 1, "not between 0 and 1", ("accuracy", "test_accuracy", "cores_others")),
)
"""The least and the greatest value, what one outside is, and the keys with such values."""


def mistakes(record: Any) -> list[str]:
    """Return the mistakes of a record, each with its path; empty for a valid record."""
    wrong = check_object(record, KEYS, "result", OPTIONAL_KEYS)
    if wrong:
        return wrong
    wrong += job_id_mistakes(record)
    for key, choices in _CHOICES.items():
        if record[key] not in choices:
            wrong.append(f"result.{key}: {short(record[key])} is none of {', '.join(choices)}")
    for least, greatest, is_outside, keys in _RANGES:
        for key in keys:
            if record[key] is not None and not least <= record[key] <= greatest:
                wrong.append(f"result.{key}: {record[key]} is {is_outside}")
    wrong += _phase_time_mistakes(record["phases"])
    wrong += _device_mistakes(record["devices"])
    wrong += version_mistakes(record["versions"])
    for name in record["phases"]:
        wrong += text_mistakes(name, "result.phases")
    wrong += _history_mistakes(record["history"], MOST_MISTAKES - len(wrong))
    if len(record["history"]) != record["epochs"]:
        wrong.append(f"result.history: {len(record['history'])} entries for {record['epochs']} epochs")
    # Every number of seconds is rounded to a thousandth.
    rounded = 0.001 * (record["epochs"] + 1)
    if not wrong and abs(record["seconds_train"] - epoch_seconds(record)) > rounded:
        wrong.append(f"result.seconds_train: {record['seconds_train']} is not the sum of the epochs' seconds")
    return wrong


def _phase_time_mistakes(phases: Mapping[str, Any]) -> list[str]:
    return [
        f"result.phases.{key_of(name)}: {short(seconds)} is no number of seconds"
        for name, seconds in phases.items()
        if isinstance(seconds, bool) or not isinstance(seconds, NUMBER) or not 0 <= seconds < math.inf
    ]


def _device_mistakes(devices: list[Any]) -> list[str]:
    if not devices or not all(isinstance(name, str) for name in devices):
        return ["result.devices: the names of at least one device are expected"]
    return list_mistakes(devices, "result.devices")


def _history_mistakes(history: Sequence[Any], most: int) -> list[str]:
    """Return the mistakes of the epochs, up to the first that makes them more than `most`."""
    wrong: list[str] = []
    for index, entry in enumerate(history):
        path = f"result.history[{index}]"
        of_entry = check_object(entry, HISTORY_KEYS, path)
        if not of_entry and entry["epoch"] != index + 1:
            of_entry = [f"{path}.epoch: {entry['epoch']} is not {index + 1}"]
        wrong += of_entry
        if len(wrong) > most:
            break
    return wrong


def check_object(
    value: Any,
    keys: Mapping[str, tuple[type, ...]],
    path: str,
    optional: Mapping[str, tuple[type, ...]] = MappingProxyType({}),
) -> list[str]:
    """Return the mistakes in an object's keys and their values' types, each with its path.

    Args:
        keys: Key -> the types that its value may have.
        path: The object's path, for messages.
        optional: The same for keys that may be missing.
    """
    if not isinstance(value, dict):
        return [f"{path}: an object is expected"]
    wrong = [f"{path}.{key}: missing" for key in keys if key not in value]
    keys = {**keys, **optional}
    wrong += [f"{path}.{key_of(key)}: unknown" for key in list(value)[: len(keys) + 1] if key not in keys]
    for key, types in keys.items():
        if key not in value:
            continue
        item = value[key]
        if not isinstance(item, types) or (isinstance(item, bool) and bool not in types):
            names = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            wrong.append(f"{path}.{key}: {short(item)} is no {names}")
        elif isinstance(item, NUMBER):
            wrong += number_mistakes(item, f"{path}.{key}")
        elif isinstance(item, str):
            wrong += text_mistakes(item, f"{path}.{key}")
        elif isinstance(item, (list, dict)) and len(item) > MOST_ENTRIES:
            wrong.append(f"{path}.{key}: {len(item)} entries are more than {MOST_ENTRIES}")
    return wrong


def short(value: Any) -> str:
    """Return a value as a short text for a message, however long or deep the value is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def key_of(name: str) -> str:
    """Return a key that anybody may have chosen, as a short word for a message."""
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
    wrong: list[str] = []
    for index, value in enumerate(values):
        wrong += text_mistakes(value, f"{path}[{index}]")
        if len(wrong) > MOST_MISTAKES:
            break
    return wrong


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


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record atomically.

    Raises:
        ValueError: The record is not valid.
    """
    if wrong := mistakes(dict(record)):
        raise ValueError("; ".join(wrong))
    write_json(path, {key: record[key] for key in KEYS})


def epoch_seconds(record: Mapping[str, Any]) -> float:
    """Return what the epochs took together, in seconds: the definition of `seconds_train`."""
    return float(sum(entry["seconds"] for entry in record["history"]))


def is_of_job(path: Path, job_id: str | None) -> bool:
    """Whether the file is the complete result of this job."""
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return job_id is not None and not mistakes(record) and record["job_id"] == job_id


def program_mistakes(record: Any) -> list[str]:
    """Return the mistakes of a record, each with its path; empty for a valid record."""
    wrong = check_object(record, PROGRAM_KEYS, "result", OPTIONAL_KEYS)
    if wrong:
        return wrong
    wrong += job_id_mistakes(record)
    if record["apiVersion"] != PROGRAM_API_VERSION:
        wrong.append(f"result.apiVersion: {short(record['apiVersion'])} is not {PROGRAM_API_VERSION}")
    wrong += [
        f"result.{key}: {record[key]} is less than 1" for key in ("nodes", "workers") if record[key] < 1
    ]
    for key in ("gpus_per_node", "restarts", "seconds_total", "cost_usd", "start_latency_seconds"):
        if record[key] is not None and record[key] < 0:
            wrong.append(f"result.{key}: {record[key]} is negative")
    for key in ("arguments", "notes"):
        # A program's arguments may have line breaks; whoever shows them shows an escape instead.
        if not all(isinstance(text, str) for text in record[key]):
            wrong.append(f"result.{key}: texts are expected")
        elif sum(map(len, record[key])) > MOST_BYTES:
            wrong.append(f"result.{key}: more than {MOST_BYTES} characters")
    wrong += version_mistakes(record["versions"])
    wrong += [f"result.values{mistake}" for mistake in value_mistakes(record["values"])]
    if len(record["history"]) > MOST_LINES:
        wrong.append(f"result.history: more than {MOST_LINES} entries")
    for index, entry in enumerate(record["history"][:MOST_LINES]):
        wrong += [f"result.history[{index}]{mistake}" for mistake in value_mistakes(entry)]
        if len(wrong) > MOST_MISTAKES:
            break
    return wrong


def value_mistakes(values: Any) -> list[str]:
    """Return the mistakes of an object that a program wrote: short names with numbers, texts or booleans."""
    if not isinstance(values, dict):
        return [": an object is expected, {…}"]
    if len(values) > MOST_VALUES:
        return [f": {len(values)} values are more than {MOST_VALUES}"]
    wrong = []
    for key, value in values.items():
        if not isinstance(value, SCALARS):
            wrong.append(f".{key_of(key)}: a number, a text, true, false or null is expected")
        elif isinstance(value, float) and not math.isfinite(value):
            wrong.append(f".{key_of(key)}: {value!r} is no finite number")
        elif isinstance(value, int) and abs(value) > LARGEST:
            wrong.append(f".{key_of(key)}: {short(value)} is beyond {LARGEST}")
        elif len(key) > LONGEST_TEXT or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            wrong.append(f".{key_of(key)}: more than {LONGEST_TEXT} characters")
    return wrong


def read_values(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the values that a program wrote, and notes on unusable ones. A missing file has none."""
    try:
        with file.open("rb") as source:
            text = source.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{file.name} cannot be read: {error.strerror}"]
    if len(text) > MOST_BYTES:
        return {}, [f"{file.name} is larger than {MOST_BYTES} bytes and is left out"]
    try:
        values = parse_json(text)
    except ValueError as error:
        return {}, [f"{file.name} is no JSON that can be used, and is left out: {error}"]
    if wrong := value_mistakes(values):
        return {}, [f"{file.name} is left out: {'; '.join(f'values{mistake}' for mistake in wrong[:5])}"]
    return values, []


def read_lines(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the last lines of progress, oldest first, and a note on lines that are left out."""
    try:
        with file.open("rb") as source:
            size = source.seek(0, 2)
            start = max(0, size - MOST_BYTES)
            source.seek(start)
            # A program that was killed may have written half of its last line; of the first, half may be cut.
            *lines, last = source.read().split(b"\n")
    except OSError:
        return [], []
    lines = [line for line in [*lines[1 if start else 0 :], last] if line.strip()]
    entries, wrong = [], 0
    for line in lines[-MOST_LINES:]:
        try:
            values = parse_json(line)
        except ValueError:
            wrong += 1
            continue
        if value_mistakes(values):
            wrong += 1
        else:
            entries.append(values)
    return entries, [
        f"left out of {file.name}, because they are no objects of values: {wrong}"
    ] if wrong else []


def batch_mistakes(record: Any) -> list[str]:
    """Return the mistakes of a record, each with its path; empty for a valid record."""
    if not isinstance(record, dict):
        return ["result: an object is expected"]
    known = {name: value for name, value in record.items() if name in BATCH_KEYS}
    wrong = check_object(known, BATCH_KEYS, "result")
    rest = {name: value for name, value in record.items() if name not in BATCH_KEYS}
    wrong += [f"result{mistake}" for mistake in value_mistakes(rest)]
    if not wrong and record["apiVersion"] != BATCH_API_VERSION:
        wrong.append(f"result.apiVersion: {record['apiVersion']!r} is not {BATCH_API_VERSION}")
    return wrong
