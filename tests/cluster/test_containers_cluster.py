"""Slurm's `--container` on machines that boot: jobs of two nodes in an image that the test makes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.cluster.container_site import NUMBER, PROGRAMS, USER, Site, container_site, image_script
from tests.support.checkout import ROOT, until
from tests.support.containers import cluster_image

# The first test makes the machines' image where there is none.
pytestmark = pytest.mark.timeout(1500)

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {isolation: container, suite: SUITE}
        slurm: {accounting: false}
        containers: {runtime: oci}
        partitions:
          - {name: debug, instance_type: local.small, nodes: {min: 2, max: 2}, default: true}
      slurm-stacks:benchmark: BENCHMARK
"""
BUNDLE = f"/home/{USER}/bundle"
PYTHON = """
library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
left=$(printf -- '--exclude=%s ' test idlelib lib2to3 ensurepip __pycache__ 'config-*')
tar -C / $left -cf - $library | tar -C draft/rootfs -xf -
"""
IMAGE = image_script(PROGRAMS, more=PYTHON)
TRAIN = """
import json, os, time
from pathlib import Path

rank, size = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
shared = Path(os.environ["SLURM_STACKS_FOLDER"])
(shared / f"draft-{rank}").write_text(Path("/etc/image").read_text())
(shared / f"draft-{rank}").rename(shared / f"seen-{rank}")
while len(seen := sorted(shared.glob("seen-*"))) < size:
    time.sleep(0.1)
if rank == "0":
    said = {"image": seen[-1].read_text().strip(), "tasks": size, "words": Path("words.txt").read_text()}
    Path(os.environ["SLURM_STACKS_RESULT"]).write_text(json.dumps(said))
"""
TRAP = """
trap 'echo >saved-$SLURM_PROCID; exit 3' TERM
echo "rank $SLURM_PROCID works"
while :; do sleep 0.2; done
"""


@pytest.fixture(
    scope="module", params=["null", pytest.param("trixie", marks=pytest.mark.wide)], ids=["own", "newer"]
)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    stack = STACK.replace("SUITE", request.param)
    plain = stack.replace("BENCHMARK", "{enabled: false}")
    cluster_image(plain)
    with container_site(tmp_path_factory.mktemp("oci"), plain, stack) as made:
        made.user(IMAGE)
        yield made


def inside(script: str, *options: str, nodes: int = 2) -> str:
    """The command line of a step in the user's container."""
    return shlex.join(["srun", "-l", f"-N{nodes}", *options, f"--container={BUNDLE}", "sh", "-c", script])


def test_a_job_of_two_nodes_runs_in_an_image_as_the_page_says(site: Site) -> None:
    """With the page's own command that unpacks an image."""
    shown = re.search(r"^umoci unpack .*$", (ROOT / "docs" / "containers.md").read_text(), re.MULTILINE)
    assert shown is not None
    site.user(shown[0].replace("pytorch:latest", "image:v1"))
    told = site.user(inside("cat /etc/image; id -un; id -u; echo rank $SLURM_PROCID"))
    for rank in "01":
        lines = [line.partition(": ")[2] for line in told.splitlines() if line.startswith(f"{rank}: ")]
        assert lines == ["made by a test", USER, str(NUMBER), f"rank {rank}"]


def test_the_environment_is_the_jobs_and_what_the_image_sets_stays(site: Site) -> None:
    command = inside("echo $WHERE $COLOUR $MINE $HOME $PWD; echo $SLURM_JOB_NUM_NODES", nodes=1)
    told = site.user(f"COLOUR=of-the-job MINE=mine {command}")
    assert f"0: image of-the-image mine /home/{USER} /home/{USER}\n0: 1\n" in told


def test_shared_folders_and_further_mounts_are_there_and_the_node_is_not(site: Site) -> None:
    site.user("echo kept >in-home; mkdir -p data; echo some >data/file")
    script = "cat in-home; cat /data/file; echo from-inside >written; echo no >/data/file || ls /etc"
    mounts = f"CONTAINER_MOUNTS=/home/{USER}/data:/data:ro"
    told = site.user(f"{mounts} {inside(script, nodes=1)}")
    lines = [line.partition(": ")[2] for line in told.splitlines() if line.startswith("0: ")]
    assert lines[:2] == ["kept", "some"]
    assert any("Read-only" in line for line in lines)
    assert "image" in lines
    assert "slurm" not in lines, "the node's /etc is another"
    assert (site.home / "written").read_text() == "from-inside\n"
    assert (site.home / "written").stat().st_uid == NUMBER
    assert (site.home / "data" / "file").read_text() == "some\n"


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ("/nix", "/nix is not on this node"),
        ("data", "'data' is not /SOURCE"),
        ("/etc:/x:rx", "is not /SOURCE"),
    ],
)
def test_a_mount_that_cannot_be_is_said(site: Site, mounts: str, words: str) -> None:
    told = site.user(f"CONTAINER_MOUNTS={mounts} {inside('true', nodes=1)}", status=1)
    assert f"slurm-stacks: CONTAINER_MOUNTS: {mounts if mounts == '/nix' else repr(mounts)}" in told
    assert words in told


def test_a_status_and_a_signal_pass_through(site: Site) -> None:
    assert "exit code 7" in site.user(inside("exit 7", nodes=1), status=7)
    (site.home / "trap.sh").write_text(TRAP)
    step = shlex.join(["srun", f"--container={BUNDLE}", "sh", "trap.sh"])
    site.user(f"sbatch -N2 --output=steps --wrap {shlex.quote(step)}")
    steps = site.home / "steps"
    both = {"rank 0 works", "rank 1 works"}
    until(lambda: steps.exists() and both <= set(steps.read_text().splitlines()), 120, "both tasks")
    site.user(f"scancel -u {USER}")
    saved = [site.home / f"saved-{rank}" for rank in "01"]
    until(lambda: all(path.exists() for path in saved), 120, "what both tasks save")
    until(lambda: not site.user("squeue -h").strip(), 120, "the job's end")


def test_a_batch_script_runs_in_the_image(site: Site) -> None:
    script = f"#!/bin/sh\n#SBATCH --container={BUNDLE}\ncat /etc/image\npwd\n"
    (site.home / "job.sh").write_text(script)
    number = site.user("sbatch --parsable --wait job.sh").strip()
    assert (site.home / f"slurm-{number}.out").read_text().splitlines()[:2] == [
        "made by a test",
        f"/home/{USER}",
    ]


def test_the_stacks_own_program_runs_in_the_image_on_both_nodes(site: Site) -> None:
    checkout = site.checkout
    bundle = "/home/of-root"  # the benchmark's user here, who may not enter that of another in a container
    site.on("controller", f"cp -r {BUNDLE} {bundle}")
    benchmark = f"{{script: train.py, files: [words.txt], nodes: 2, container: {bundle}}}"
    checkout.write_stack(site.stack.replace("BENCHMARK", benchmark))
    (checkout.folder / "train.py").write_text(TRAIN)
    (checkout.folder / "words.txt").write_text("beside the script")
    checkout.cluster("up", check=True)
    (record,) = checkout.results()
    assert record["values"] == {"image": "made by a test", "tasks": 2, "words": "beside the script"}
    assert (record["environment"], record["versions"], record["exit_status"]) == (bundle, {}, 0)


def test_nothing_of_a_container_stays_on_its_node(site: Site) -> None:
    for host in ("debug-0", "debug-1"):
        assert site.on(host, f"ls /run/slurm-stacks/oci/{USER} 2>/dev/null || true").strip() == ""
        assert "bundle/rootfs" not in site.on(host, "cat /proc/mounts")
