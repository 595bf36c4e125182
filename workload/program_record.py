"""The result record of a user's program, and the check of the two files that the program may write.

Standard library only. The record holds what is known of every program (time, exit status, cost) and what the
program has written about itself. It has no keys for accuracy and loss; a program may write them as values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workload import result

API_VERSION = "slurm-stacks/program-result/v1"

KEYS: Mapping[str, tuple[type, ...]] = {
    "apiVersion": (str,),
    "stack": result.OPTIONAL_TEXT,
    "job_id": result.OPTIONAL_TEXT,
    "partition": result.OPTIONAL_TEXT,
    "machine": result.OPTIONAL_TEXT,
    "nodes": (int,),
    "workers": (int,),
    "gpus_per_node": (int,),
    "cores": (int, type(None)),
    "cores_shared": (bool, type(None)),
    "script": (str,),
    "arguments": (list,),
    "exit_status": (int,),
    "seconds_total": result.NUMBER,
    "start_latency_seconds": result.OPTIONAL_NUMBER,
    "restarts": (int,),
    "digest": result.OPTIONAL_TEXT,
    "environment": (str,),
    "versions": (dict,),
    "cost_usd": result.OPTIONAL_NUMBER,
    "values": (dict,),
    "history": (list,),
    "notes": (list,),
}
"""Every key of a record, and the types its value may have. None means not known."""

SECONDS = "seconds_train"
"""The name of the value with the training's time. If a program writes it, the report compares that time."""
MOST_VALUES = 100
LONGEST_TEXT = result.LONGEST_TEXT
MOST_LINES = 1000
"""The most lines of progress that a record keeps. It keeps the last ones."""
MOST_BYTES = 1 << 20
"""The most bytes that are read of each file of a program."""
SCALARS = (str, int, float, bool, type(None))


def mistakes(record: Any) -> list[str]:
    """Return the mistakes of a record, each with its path; empty for a valid record."""
    found = result.check_object(record, KEYS, "result")
    if found:
        return found
    found += result.job_id_mistakes(record)
    if record["apiVersion"] != API_VERSION:
        found.append(f"result.apiVersion: {result.short(record['apiVersion'])} is not {API_VERSION}")
    found += [
        f"result.{key}: {record[key]} is less than 1" for key in ("nodes", "workers") if record[key] < 1
    ]
    for key in ("gpus_per_node", "restarts", "seconds_total", "cost_usd", "start_latency_seconds"):
        if record[key] is not None and record[key] < 0:
            found.append(f"result.{key}: {record[key]} is negative")
    for key in ("arguments", "notes"):
        # A program's arguments may have line breaks; whoever shows them shows an escape instead.
        if not all(isinstance(text, str) for text in record[key]):
            found.append(f"result.{key}: texts are expected")
        elif sum(map(len, record[key])) > MOST_BYTES:
            found.append(f"result.{key}: more than {MOST_BYTES} characters")
    found += result.version_mistakes(record["versions"])
    found += [f"result.values{wrong}" for wrong in value_mistakes(record["values"])]
    if len(record["history"]) > MOST_LINES:
        found.append(f"result.history: more than {MOST_LINES} entries")
    for index, entry in enumerate(record["history"][:MOST_LINES]):
        found += [f"result.history[{index}]{wrong}" for wrong in value_mistakes(entry)]
        if len(found) > result.MOST_MISTAKES:
            break
    return found


def value_mistakes(values: Any) -> list[str]:
    """Return the mistakes of an object that a program wrote: short names with numbers, texts or booleans."""
    if not isinstance(values, dict):
        return [": an object is expected, {…}"]
    if len(values) > MOST_VALUES:
        return [f": {len(values)} values are more than {MOST_VALUES}"]
    found = []
    for key, value in values.items():
        if not isinstance(value, SCALARS):
            found.append(f".{result.key_of(key)}: a number, a text, true, false or null is expected")
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(f".{result.key_of(key)}: {value!r} is no finite number")
        elif isinstance(value, int) and abs(value) > result.LARGEST:
            found.append(f".{result.key_of(key)}: {result.short(value)} is beyond {result.LARGEST}")
        elif len(key) > LONGEST_TEXT or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            found.append(f".{result.key_of(key)}: more than {LONGEST_TEXT} characters")
    return found


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
        values = result.parse(text)
    except ValueError as error:
        return {}, [f"{file.name} is no JSON that can be used, and is left out: {error}"]
    if wrong := value_mistakes(values):
        return {}, [f"{file.name} is left out: {'; '.join(f'values{one}' for one in wrong[:5])}"]
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
    found, wrong = [], 0
    for line in lines[-MOST_LINES:]:
        try:
            values = result.parse(line)
        except ValueError:
            wrong += 1
            continue
        if value_mistakes(values):
            wrong += 1
        else:
            found.append(values)
    return found, [
        f"left out of {file.name}, because they are no objects of values: {wrong}"
    ] if wrong else []
