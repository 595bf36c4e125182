"""Plans of every AWS stack file, as `./cluster plan --json` prints them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner, Result

from cli import main as cli
from tests.support import shipped
from tests.support.aws_rules import Plan
from tests.support.checkout import ROOT
from tests.support.stack_values import filled_in

DRAFTS = ROOT / "tests" / "infra" / "stacks"
FILES = {
    path.name[7:-5]: path
    for path in (*sorted(DRAFTS.glob("Pulumi.aws-*.yaml")), *shipped.files("Pulumi.aws-"))
}
"""Stack -> its file. If both folders have one, it is the shipped one."""
ANYWHERE = "aws-cpu that says 0.0.0.0/0 twice"
LONGEST = "aws-gpu with the longest names"
BAKED = "aws-gpu"
INSTALLING = "aws-gpu whose machines install at their boot"
BY_EVENTS = "aws-batch with a budget, manifests and a file system for each job"
POOLED = "aws-cpu with spot machines first"
"""No subject of all tests: AWS's list of actions lacks RunInstances for the requests of spot machines."""
SUBJECTS = [*FILES, ANYWHERE, LONGEST, INSTALLING, BY_EVENTS]
HOOKS = sorted((ROOT / "examples" / "hooks").iterdir())
_made: dict[str, Plan] = {}


def text_of(subject: str) -> str:
    stack = subject.partition(" ")[0]
    # The rule of a network to log in from is named after it, so this one stays the shipped file's.
    shipped_text = FILES[stack].read_text()
    text = shipped_text if subject == POOLED else filled_in(shipped_text)
    if subject == ANYWHERE:
        text, times = re.subn(
            r"ssh_cidrs: \[[^]]*\]", "ssh_cidrs: [0.0.0.0/0], allow_ssh_from_anywhere: true", text
        )
        assert times == 1
    if subject == INSTALLING:
        text, times = re.subn(r"(?m)^    (image|slurm): .*\n", "", text)
        assert times == 2
    if subject == BY_EVENTS:
        more = "      file_system: job\n      start_on_manifest: true\n"
        text = text.replace("      nodes: 20\n", f"      nodes: 20\n{more}")
        text = text.replace("    batch:\n", "    budget: {max_usd: 1000, running_jobs: cancel}\n    batch:\n")
        assert more in text
    if subject == POOLED:
        pools = "[{name: spot, spot: true}, {name: ondemand, instance_type: m5.large, max: 4}]"
        text = text.replace("      - name: c4\n", f"        pools: {pools}\n      - name: c4\n")
        assert pools in text
    if subject == LONGEST:
        # These make a cluster's name of 40 characters, and a machine's name of 63.
        text = re.sub(r"(?m)^    name: aws-gpu$", f"    name: {'c' * 40}", text)
        text = re.sub(r"name: compute\b", f"name: {'p' * 20}", text)
        text = re.sub(r"partition: compute\b", f"partition: {'p' * 20}", text)
        assert text.count("p" * 20) >= 2
    return text


def command(subject: str, folder: Path) -> Result:
    """Run `./cluster plan --json` in a project with that stack file."""
    stack = subject.partition(" ")[0]
    for name in ("Pulumi.yaml", "__main__.py", *(str(path.relative_to(ROOT)) for path in HOOKS)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / f"Pulumi.{stack}.yaml").write_text(text_of(subject))
    runner = CliRunner(env={"SLURM_STACKS_PROJECT": str(folder)})
    return runner.invoke(cli.app, ["plan", "--stack", stack, "--json"])


def planned(subject: str, folder: Path) -> Plan:
    """Return what `./cluster plan --json` prints. It runs once for all tests."""
    if subject not in _made:
        done = command(subject, folder)
        assert done.exception is None, done.exception
        answer = json.loads(done.stdout)
        _made[subject] = Plan(answer["resources"], anywhere=subject == ANYWHERE)
    return _made[subject]
