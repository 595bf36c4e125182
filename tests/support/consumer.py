"""The example consumer on a real cluster: one scenario, and the commands of its page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.checkout import ROOT, Checkout, until

EXAMPLE = ROOT / "examples" / "consumer"
PAGE = ROOT / "docs" / "consuming.md"
NOT_UP = "not up"


def copy(folder: Path, checkout: Checkout) -> Path:
    """Copy the example as docs/consuming.md does, for the cluster of a checkout."""
    subprocess.run(["cp", "-rL", str(EXAMPLE), str(folder)], check=True)
    stack_file = folder / "Pulumi.dev.yaml"
    text = stack_file.read_text()
    stack_file.write_text(text.replace("slurm-stacks/local", f"slurm-stacks/{checkout.stack}"))
    assert stack_file.read_text() != text
    return folder


@dataclass
class Story:
    """A consumer from its first job to another cluster.

    Attributes:
        up: brings the consumer up; returns its outputs and how many resources were created, replaced or
            updated.
        refused: tries an `up` of the consumer that must fail; returns the message.
        destroy: destroys the consumer.
    """

    checkout: Checkout
    folder: Path
    up: Callable[[], tuple[dict[str, Any], int]]
    refused: Callable[[], str]
    destroy: Callable[[], None]
    cluster_up: Callable[[], None]
    cluster_down: Callable[[], None]

    def tell(self) -> None:
        """Run the scenario, from the first `up` to the end of a cluster, and with another cluster."""
        script = self.folder / "job.sh"
        script.write_text(script.read_text() + "env\n")
        made, changes = self.up()
        assert (made["partition"], changes) == ("debug", 3)
        printed = self.output(made, "SLURM_JOB_ID=")
        assert printed.count("hello from debug-") == 2
        assert "hush" not in printed, "Pulumi's secrets must not reach jobs"
        until(lambda: self.state(made) == "COMPLETED", 60, "the end of the first job")
        assert self.up() == (made, 0)

        script.write_text("#!/bin/sh\nsleep 600\n")
        waiting, changes = self.up()
        assert changes == 1
        assert self.state(made) == "COMPLETED", "what is over is left as it is"
        assert self.state(waiting) in ("PENDING", "CONFIGURING", "RUNNING")
        script.write_text("#!/bin/sh\nsleep 601\n")
        other, _ = self.up()
        self.cancelled(waiting)
        self.destroy()
        self.cancelled(other)

        script.write_text("#!/bin/sh\necho $SLURM_JOB_ID here\n")
        made, _ = self.up()
        self.output(made, "here")
        self.cluster_down()
        assert NOT_UP in self.refused()
        self.cluster_up()
        again, changes = self.up()
        assert (again["output"] != made["output"], changes) == (True, 1)
        self.output(again, f"{again['job_id']} here")
        self.cluster_down()
        # The consumer's job ended with the cluster, and does not block the destroy.
        self.destroy()

    def output(self, made: dict[str, Any], *expected: str) -> str:
        """Return the job's output as soon as it has everything expected."""
        file = Path(made["output"])

        def there() -> str:
            text = file.read_text() if file.exists() else ""
            return text if all(word in text for word in expected) else ""

        return str(until(there, 60, f"{', '.join(expected)} in {file}"))

    def state(self, made: dict[str, Any]) -> str:
        # scontrol is used, because squeue forgets jobs that are over.
        text = self.checkout.execute("scontrol", "--oneliner", "show", "job", made["job_id"])
        return str(re.search(r"JobState=(\w+)", text)[1])  # type: ignore[index]

    def cancelled(self, made: dict[str, Any]) -> None:
        until(lambda: self.state(made) == "CANCELLED", 60, f"the end of job {made['job_id']}")


def page_commands(**words: str) -> list[str]:
    """Return the page's commands for any cluster, with the words in angle brackets filled in."""
    blocks = re.findall(r"^```(?:sh|text)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    found = [line for line in lines if line.startswith(("<", "./cluster"))]
    return [re.sub(r"<([\w.]+)>", lambda match: words[match[1].replace(".", "_")], line) for line in found]
