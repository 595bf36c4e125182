"""The articles' own program and job script, as a reader of them has both, on machines of both kinds.

The program (`tests/support/posts_keras.py`) is called keras.py, trains by MultiWorkerMirroredStrategy, and
wants port 22222 on every node.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from operations.local.run_directory import RunDirectory
from tests.support.checkout import ROOT, Checkout, until
from tests.support.containers import cluster_image, need_containers

pytestmark = [pytest.mark.wide, pytest.mark.tensorflow, pytest.mark.timeout(1500)]

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {{isolation: {isolation}}}
        partitions:
          - {{name: debug, instance_type: local.medium, nodes: {{max: 2}}, default: true}}
        slurm: {{suspend_time: 30}}
      slurm-stacks:benchmark: {{script: mnist_posts.py, nodes: 2}}
"""
PROGRAM = ROOT / "tests" / "support" / "posts_keras.py"
SCRIPT = """\
#!{shell}
#SBATCH --partition=debug
#SBATCH --job-name=keras-job
#SBATCH --nodes=2
#SBATCH --output=out-keras.txt
echo $SLURMD_NODENAME
echo $SLURM_JOB_NODELIST
source {environment}/bin/activate
srun --nodes=2 python3 keras.py {ports}
"""
SECONDS = 300.0


class Posts:
    """A cluster whose `up` has run the program as its benchmark."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        (found,) = json.loads(checkout.cluster("env", "list", "--json", check=True).stdout)
        self.environment = str(found["path"])
        self.run("mkdir -p posts; cat >posts/keras.py", PROGRAM.read_text())

    def run(self, line: str, stdin: str | None = None) -> str:
        return self.checkout.cluster("exec", "--", "sh", "-c", line, stdin=stdin, check=True).stdout

    def submit(self, ports: str, shell: str = "/bin/bash") -> str:
        script = SCRIPT.format(shell=shell, environment=self.environment, ports=ports)
        return self.run("cd posts && rm -f out-keras.txt && sbatch --parsable", script).strip()

    def state(self, job: str) -> str:
        text = self.checkout.execute("scontrol", "--oneliner", "show", "job", job)
        return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)["JobState"]

    def trained(self, job: str) -> None:
        """Wait for the end of a job in which both workers end with the same loss, as in the posts."""
        until(lambda: self.state(job) in ("COMPLETED", "FAILED"), SECONDS, "the job's end")
        out = self.run("cat posts/out-keras.txt")
        assert self.state(job) == "COMPLETED", out
        losses = re.findall(r"^trained by 2 workers, loss ([\d.]+)$", out, re.MULTILINE)
        assert len(losses) == 2
        assert len(set(losses)) == 1


@pytest.fixture(scope="module", params=["process", "container"])
def posts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Posts]:
    stack = STACK.format(isolation=request.param)
    checkout = Checkout(tmp_path_factory.mktemp("posts") / "a checkout", stack)
    shutil.copy(PROGRAM, checkout.folder / "mnist_posts.py")
    if request.param == "container":
        need_containers()
        cluster_image(stack)
    try:
        checkout.cluster("up", check=True, timeout=900)
        yield Posts(checkout)
    finally:
        left = checkout.close()
    assert left == []


def test_the_launchers_variables_are_all_that_the_program_needs(posts: Posts) -> None:
    (record,) = posts.checkout.results()
    assert (record["nodes"], record["notes"]) == (2, [])


def test_a_port_of_its_own_for_each_rank_works_everywhere(posts: Posts) -> None:
    posts.trained(posts.submit("rank"))


def test_the_published_port_works_or_is_explained_while_the_job_hangs(posts: Posts) -> None:
    job = posts.submit("same")
    if RunDirectory(posts.checkout.run_directory).containers:
        posts.trained(job)
        return

    def logs() -> str:
        return posts.checkout.cluster("logs", job).stdout

    until(lambda: "another process has the port" in logs(), SECONDS, "what the error means")
    assert posts.state(job) == "RUNNING", "the other worker waits"
    shown = " ".join(posts.checkout.cluster("status", check=True).stdout.split())
    assert f"job {job} (keras-job, running) has written: " in shown
    assert "Give each rank a port of its own" in shown
    posts.checkout.execute("scancel", job)


def test_a_script_for_another_shell_is_named_although_it_goes_on(posts: Posts) -> None:
    """As printed: `#!/bin/sh`, which is dash here. What comes after `source` runs with another Python."""
    if Path("/bin/sh").resolve().name != "dash":
        pytest.skip("needs dash as /bin/sh")
    job = posts.submit("rank", shell="/bin/sh")
    until(lambda: posts.state(job) in ("COMPLETED", "FAILED"), SECONDS, "the job's end")
    for command in (("logs", job), ("status",)):
        shown = " ".join(posts.checkout.cluster(*command, check=True).stdout.split())
        assert "let it begin with #!/bin/bash" in shown, command
