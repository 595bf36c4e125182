"""Plans of every Google Cloud stack file, as `./cluster plan --json` prints them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner, Result

from cli import main as cli
from tests.support import shipped
from tests.support.checkout import ROOT
from tests.support.gcp_rules import Plan

DRAFTS = ROOT / "tests" / "infra" / "stacks"
SHIPPED = {path.name[7:-5]: path for path in shipped.files("Pulumi.gcp-")}
FILES = {
    **SHIPPED,
    **{f"{path.name[7:-5]}, the draft": path for path in sorted(DRAFTS.glob("Pulumi.gcp-*.yaml"))},
}
"""Name in the tests -> stack file."""
SSH = "gcp-cpu, reached by SSH"
ANYWHERE = "gcp-cpu, that says 0.0.0.0/0 twice"
LONGEST = "gcp-cpu, with the longest names"
BAKED = "gcp-gpu"
RICH = "gcp-gpu, with all that else makes a resource"
POOLED = "gcp-cpu, with spot machines first"
SUBJECTS = [*FILES, SSH, ANYWHERE, LONGEST, RICH, POOLED]
EDITS: dict[str, list[tuple[str, str]]] = {
    POOLED: [
        (
            r"nodes: \{min: 0, max: 10\}",
            "nodes: {min: 0, max: 10}\n        pools: [{name: spot, spot: true}, {name: ondemand, "
            "instance_type: n2-standard-2, max: 4}]",
        )
    ],
    SSH: [(r"mode: iap\}", "mode: ssh, ssh_cidrs: [203.0.113.0/24]}")],
    ANYWHERE: [(r"mode: iap\}", "mode: ssh, ssh_cidrs: [0.0.0.0/0], allow_ssh_from_anywhere: true}")],
    # A machine's name has 63 characters: slurm… of 40, p… of 17, two hyphens, and a number of four digits.
    LONGEST: [
        ("name: slurm10", f"name: {'c' * 40}"),
        (r"(name|partition): debug", rf"\1: {'p' * 17}"),
        (r"max: 10\}", "max: 1001}"),
    ],
    RICH: [
        (
            r"mode: iap\}",
            "mode: iap, users: ['group:lab@example.com'], directory: {domain: corp, uris: ['ldaps://a'], "
            "search_base: dc=a, bind_dn: cn=reader, password_secret: projects/own/secrets/reader}}",
        ),
        (
            r"(    provider: gcp\n)",
            r"\1    hooks: [{role: compute, source: 'gs://ours/setup.sh'}]\n"
            r"    storage: {scratch: {kind: filestore, path: /scratch, size_gib: 1024, tier: BASIC_HDD}}\n",
        ),
        (
            r"(    partitions:\n)",
            r"\1      - {name: close, instance_type: n2-standard-4, placement: cluster, nodes: {max: 4}}\n"
            r"      - {name: cheap, instance_type: n1-standard-2, spot: true, nodes: {min: 0, max: 4}}\n",
        ),
    ],
}
_made: dict[str, Plan] = {}


def stack_of(subject: str) -> str:
    return subject.partition(",")[0]


def text_of(subject: str) -> str:
    text = FILES[subject if subject in FILES else stack_of(subject)].read_text()
    for pattern, replacement in EDITS.get(subject, []):
        text, times = re.subn(pattern, replacement, text)
        assert times, pattern
    return text


def command(subject: str, folder: Path) -> Result:
    """Run `./cluster plan --json` in a project with that stack file."""
    stack = stack_of(subject)
    for name in ("Pulumi.yaml", "__main__.py"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / f"Pulumi.{stack}.yaml").write_text(text_of(subject))
    runner = CliRunner(env={"SLURM_STACKS_PROJECT": str(folder)})
    return runner.invoke(cli.app, ["plan", "--stack", stack, "--json"])


def planned(subject: str, folder: Path) -> Plan:
    """Return what `./cluster plan --json` prints. It runs once for all tests."""
    if subject not in _made:
        done = command(subject, folder)
        assert done.exception is None, done.exception
        _made[subject] = Plan(json.loads(done.stdout)["resources"], anywhere=subject == ANYWHERE)
    return _made[subject]
