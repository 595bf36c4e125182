"""The result record of a job: the values that the program wrote, and what the main node knows."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workload import program_record, result
from workload.batch.main_node import Outcome
from workload.batch.settings import Settings
from workload.program import PROGRESS_LINES, RESULT, VALUES

API_VERSION = "slurm-stacks/batch-result/v1"
LINE = "RESULT "
"""The beginning of the log line with the record as JSON, without its history."""

KEYS: Mapping[str, tuple[type, ...]] = {
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
"""The keys that every record has, and the types of their values. The program's own values are added."""


def clear(settings: Settings) -> None:
    """Remove the results of an earlier attempt, but not its checkpoints."""
    for name in (VALUES, RESULT, *((PROGRESS_LINES,) if settings.attempt == 1 else ())):
        (settings.run_folder / name).unlink(missing_ok=True)


def make(
    settings: Settings, command: Sequence[str], env: Mapping[str, str], outcome: Outcome
) -> dict[str, Any]:
    """Return the record of a job whose program has succeeded."""
    folder = settings.run_folder
    values, notes = program_record.read_values(folder / VALUES)
    history, more = program_record.read_lines(folder / PROGRESS_LINES)
    taken = sorted(values.keys() & KEYS.keys())
    if taken:
        notes.append(f"{VALUES}: left out, because the record has values of these names: {', '.join(taken)}")
    return {
        **{name: value for name, value in values.items() if name not in taken},
        "apiVersion": API_VERSION,
        "scheduler": "batch",
        "stack": env.get("SLURM_STACKS_STACK"),
        "job_id": settings.job,
        "attempt": settings.attempt,
        "nodes": settings.nodes,
        "gpus": sum(outcome.gpus),
        "gpus_per_node": max(outcome.gpus),
        "launch": settings.launch,
        "image": settings.image or None,
        "program": list(command),
        "exit_status": 0,
        "seconds_total": round(outcome.seconds_total, 3),
        "seconds_waited": round(outcome.seconds_waited, 3),
        "versions": {"python": platform.python_version()},
        "history": history,
        "notes": [*notes, *more],
    }


def mistakes(record: Any) -> list[str]:
    """Return the mistakes of a record, each with its path; empty for a valid record."""
    if not isinstance(record, dict):
        return ["result: an object is expected"]
    own = {name: value for name, value in record.items() if name in KEYS}
    found = result.check_object(own, KEYS, "result")
    rest = {name: value for name, value in record.items() if name not in KEYS}
    found += [f"result{wrong}" for wrong in program_record.value_mistakes(rest)]
    if not found and record["apiVersion"] != API_VERSION:
        found.append(f"result.apiVersion: {record['apiVersion']!r} is not {API_VERSION}")
    return found


def write(settings: Settings, record: Mapping[str, Any]) -> list[Path]:
    """Write the record to the job's folder and, as the latest one, to JOB_DIR, and print its line.

    Raises:
        ValueError: The record is not valid, which is a defect of this package.
        OSError: JOB_DIR cannot be written any more.
    """
    if wrong := mistakes(dict(record)):
        raise ValueError("; ".join(wrong))
    files = [settings.run_folder / RESULT, settings.folder / RESULT]
    for file in files:
        result.write_json(file, record)
    short = {name: value for name, value in record.items() if name != "history"}
    # One write keeps the line whole, whatever else is printed at the same time.
    print(f"{LINE}{json.dumps(short, allow_nan=False)}", flush=True)
    return files
