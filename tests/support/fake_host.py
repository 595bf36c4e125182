"""A fake machine for the doctor's checks, and what they find on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cli.findings import Finding, Severity
from cli.providers.local.diagnosis.host import Host

ANSWERS = {
    "/usr/sbin/slurmctld": (0, "slurm-wlm 22.05.8"),
    "/usr/sbin/slurmd": (0, "slurm-wlm 22.05.8"),
    "/usr/sbin/munged": (0, "munge-0.5.15 (2022-06-22)"),
}


def host(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    answers: Mapping[str, tuple[int, str]] | None = None,
    found: Mapping[str, str] | None = None,
    **facts: Any,
) -> Host:
    """Return a machine with these files and no others.

    Args:
        answers: program -> exit status and output; any other cannot be run.
        found: program -> where PATH has it.
    """
    for path, text in (files or {}).items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    known = ANSWERS if answers is None else answers
    chosen = {"uid": 1000, **facts}
    return Host(
        root=root,
        run=lambda argv: known.get(argv[0], (127, "no such program")),
        which=lambda name, path=None: (found or {}).get(name),
        **chosen,
    )


def seen(findings: Iterable[Finding]) -> dict[str, str]:
    """Return check -> severity; of several severities the worst one."""
    order = [Severity.FINE, Severity.WARNS, Severity.STOPS]
    worst: dict[str, Severity] = {}
    for finding in findings:
        before = worst.get(finding.check, Severity.FINE)
        worst[finding.check] = max(before, finding.severity, key=order.index)
        if finding.severity is Severity.FINE:
            assert finding.cure is None, f"{finding.check}: a cure for what is fine"
        else:
            assert finding.cure, f"{finding.check}: no cure"
    return {check: severity.value for check, severity in worst.items()}
