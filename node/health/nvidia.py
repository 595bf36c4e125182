"""Checks of NVIDIA's GPUs, by nvidia-smi, by DCGM where it is installed, and by the kernel's log.

Sources: the query fields are those of `nvidia-smi --help-query-gpu`; the Xid codes and what each demands
are in NVIDIA's Xid catalog (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from node.health.tools import Tool
from node.system import plurals
from node.system.subprocesses import Ran

SMI_SECONDS = 20.0
"""The time limit of nvidia-smi. It takes some seconds for eight GPUs without persistence mode. Slurm ends a
health check after 60 s, in which nvidia-smi may run twice."""
DCGM_SECONDS = 120.0
LOG_SECONDS = 5.0

HARMLESS = (0, 1, 5)
"""DCGM's severities (dcgm_errors.h) of what does not make a GPU useless: none, to be watched (MONITOR), and a
matter of configuration (CONFIG), such as a persistence mode that is off."""

INDEX, BUS = "index", "pci.bus_id"
ECC = "ecc.errors.uncorrected.volatile.total"
ROWS = {
    "remapped_rows.failure": "a broken memory row could not be remapped",
    "remapped_rows.pending": "a remapped memory row waits for a reset of the GPU",
    "retired_pages.pending": "a retired memory page waits for a reset of the GPU",
}
"""A field that says Yes or No -> what Yes means. The last one is of GPUs older than Ampere."""
HOT = "clocks_event_reasons.hw_thermal_slowdown"
QUERIED = ("gpus", "ecc", "memory_rows", "thermal")
"""The checks that this query is for."""
FIELDS = (INDEX, BUS, ECC, *ROWS, HOT)
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field')
_BROKEN = re.compile(r"requires? reset|unknown error|gpu is lost|\berr!", re.IGNORECASE)
"""What nvidia-smi prints in the place of a value that a broken GPU does not give."""

SWITCHED = ("a100", "h100", "h200", "b200", "b300", "gb200")
"""GPUs that are joined by NVSwitches where a machine has eight of them, so that each link is in use. On other
machines some links lead nowhere, for example to GPUs that belong to another tenant."""
SWITCHED_COUNT = 8

FATAL_XIDS = {
    46: "the GPU stopped processing",
    48: "an uncorrectable memory error",
    54: "its power cable is not connected",
    62: "its micro-controller halted",
    64: "a broken memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    109: "a context switch timed out",
    110: "a security fault",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    136: "the training of an NVLink failed",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialized",
    151: "a key rotation failed",
    156: "a part of it is retired and waits for a reset",
    158: "a fatal timeout",
}
"""Codes whose immediate action in NVIDIA's catalog is a reset of the GPU (RESET_GPU), a restart of the
machine (RESTART_BM, RESTART_VM) or work on it, and 48 and 74, of which it says that a reset or a restart is
needed to clear them. Others concern one program (RESTART_APP), or need no action. 155 is left out, because
links that were taken down on purpose report it, too."""
RECOVERY = 154
"""The code that sums up what others demand. Its text names the action, which is None once all is well."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(.*)")
_TO = re.compile(r"\bto 0x[0-9a-fA-F]+ \(([^)]+)\)")


def gpus(tool: Tool, count: int, skip: frozenset[str]) -> Iterator[str]:
    """Yield what is wrong with the GPUs, by one query of nvidia-smi.

    Args:
        tool: Runs nvidia-smi.
        count: The number of GPUs by the design.
        skip: The checks that are left out.
    """
    if skip.issuperset(QUERIED):
        return
    rows, problem = _query(tool)
    if problem:
        yield problem
        return
    if "gpus" not in skip and len(rows) != count:
        yield f"nvidia-smi shows {len(rows)} of {plurals.count(count, 'GPU')}"
    for row in rows:
        name = f"GPU {row.get(INDEX, '?')} ({row.get(BUS, '?')})"
        if "gpus" not in skip and (message := next(filter(_BROKEN.search, row.values()), None)):
            yield f"{name}: nvidia-smi says {message}"
        errors = row.get(ECC, "")
        if "ecc" not in skip and errors.isdigit() and int(errors):
            yield f"{name}: {plurals.count(int(errors), 'uncorrected memory error')} (ECC)"
        for field, meaning in ROWS.items():
            if "memory_rows" not in skip and row.get(field) == "Yes":
                yield f"{name}: {meaning} ({field})"
        if "thermal" not in skip and row.get(HOT) == "Active":
            yield f"{name}: it is too hot and runs at half its clock or less (hw_thermal_slowdown)"


def _query(tool: Tool) -> tuple[list[dict[str, str]], str]:
    """Return a row for each GPU, or why there is none. A field that this driver does not know is left out."""
    fields = list(FIELDS)
    while True:
        try:
            ran = tool(
                "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", seconds=SMI_SECONDS
            )
        except FileNotFoundError:
            return [], "nvidia-smi is not installed"
        unknown = _REFUSED.search(ran.output + ran.errors)
        if unknown is None or unknown[1] not in fields:
            break
        fields.remove(unknown[1])
    if problem := _failed("nvidia-smi", ran, SMI_SECONDS):
        return [], problem
    lines = [line for line in ran.output.splitlines() if line.count(",") == len(fields) - 1]
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=True)) for line in lines], ""


def nvlink(tool: Tool, accelerator: str, count: int) -> Iterator[str]:
    """Yield the GPUs with inactive NVLinks, on machines where all links are in use."""
    if not accelerator.startswith(SWITCHED) or count < SWITCHED_COUNT:
        return
    ran = tool("nvidia-smi", "nvlink", "--status", seconds=SMI_SECONDS)
    if problem := _failed("nvidia-smi nvlink", ran, SMI_SECONDS):
        yield problem
        return
    for block in re.split(r"^(?=GPU \d+:)", ran.output, flags=re.MULTILINE):
        links = re.findall(r"^\s+Link \d+: (.+)$", block, flags=re.MULTILINE)
        off = sum("inactive" in link for link in links)
        if off and (number := re.match(r"GPU (\d+):", block)):
            yield f"GPU {number[1]}: {off} of {plurals.count(len(links), 'NVLink')} inactive"


def dcgm(tool: Tool) -> Iterator[str]:
    """Yield the tests of DCGM's level 1 that failed; nothing where DCGM is not installed or does not run."""
    try:
        ran = tool("dcgmi", "diag", "-r", "1", "-j", seconds=DCGM_SECONDS)
    except FileNotFoundError:
        return
    if ran.status is None:
        yield f"dcgmi diag -r 1 was not done after {DCGM_SECONDS:g} s"
        return
    try:
        answer = json.loads(ran.output[ran.output.index("{") :])
    except ValueError:
        return  # without its host engine dcgmi says so in words, and that is no fault of the GPUs
    for name, why in _failed_tests(answer, ""):
        yield f"DCGM's test {name} failed{f': {why}' if why else ''}"


def _failed_tests(part: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the failed tests and why. In DCGM 2 to 4, results are in lists below a named test."""
    if isinstance(part, list):
        for entry in part:
            yield from _failed_tests(entry, name)
    elif isinstance(part, dict):
        name = str(part.get("name", name))
        warnings = part.get("warnings") or []
        warnings = warnings if isinstance(warnings, list) else [warnings]
        if str(part.get("status", "")).lower() == "fail" and any(map(_counts, warnings or [""])):
            warning = next(filter(_counts, warnings), "")
            text = warning.get("warning", "") if isinstance(warning, dict) else warning
            yield name, " ".join(str(text).split())
        for key, value in part.items():
            if key not in ("warnings", "info", "test_summary"):
                yield from _failed_tests(value, name)


def _counts(warning: Any) -> bool:
    """Return whether a warning speaks against a GPU, and not against how a machine is set up."""
    if isinstance(warning, dict) and "error_severity" in warning:
        return warning["error_severity"] not in HARMLESS
    return "persistence mode" not in str(warning).lower()


def xids(tool: Tool) -> Iterator[str]:
    """Yield the errors in the kernel's log after which a GPU is of no use before a reset, each once."""
    try:
        ran = tool("dmesg", seconds=LOG_SECONDS)
    except FileNotFoundError:
        return
    if ran.status != 0:
        return  # an ordinary user may not read the log, and a log that cannot be read shows no error
    seen = dict.fromkeys(xid for line in ran.output.splitlines() if (xid := _xid(line)))
    yield from seen


def _xid(line: str) -> str | None:
    match = _XID.search(line)
    if match is None:
        return None
    where, code = match[1], int(match[2])
    if code == RECOVERY:
        action = _TO.search(match[3])
        return f"Xid {code} on {where}: {action[1]}" if action and action[1] != "None" else None
    return f"Xid {code} on {where}: {FATAL_XIDS[code]}" if code in FATAL_XIDS else None


def _failed(what: str, ran: Ran, seconds: float) -> str:
    if ran.status is None:
        return f"{what} did not answer within {seconds:g} s"
    return f"{what} failed with status {ran.status}: {ran.last_line()}" if ran.status else ""
