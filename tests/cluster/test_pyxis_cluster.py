"""`srun --container-image` with Enroot and Pyxis on machines that boot: a job of two nodes in an own image.

Neither is on a package registry. The test runs where a folder has packages of both for this machine's Slurm.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.container_site import PROGRAMS, USER, Site, container_site, copy_script
from tests.support.containers import base_image

FOLDER = os.environ.get("SLURM_STACKS_PYXIS_PACKAGES")
PACKAGES = sorted(Path(FOLDER).glob("*.deb")) if FOLDER else []
pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not PACKAGES,
        reason="needs packages of Enroot and Pyxis, which no registry has: name their folder in "
        "SLURM_STACKS_PYXIS_PACKAGES",
    ),
]
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {isolation: container}
        slurm: {accounting: false}
        containers:
          runtime: pyxis
          packages: [PACKAGES]
        partitions:
          - {name: debug, instance_type: local.small, nodes: {min: 2, max: 2}, default: true}
      slurm-stacks:benchmark: {enabled: false}
"""
MAKE = f"""
set -e
{copy_script("image", PROGRAMS)}
mkdir -p image/tmp image/proc image/sys image/dev
echo "made by a test" >image/etc/image
mksquashfs image image.sqsh -quiet -no-progress
"""
"""Makes an image from programs of this machine, as `enroot import` leaves one."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    named = [
        f"{{source: site/{path.name}, sha256: {hashlib.sha256(path.read_bytes()).hexdigest()}}}"
        for path in PACKAGES
    ]
    base_image()
    stack = STACK.replace("PACKAGES", ", ".join(named))
    files = {f"site/{path.name}": path for path in PACKAGES}
    with container_site(tmp_path_factory.mktemp("pyxis"), stack, files=files) as made:
        made.user(MAKE)
        yield made


def test_a_job_of_two_nodes_runs_in_an_image_with_its_mounts(site: Site) -> None:
    site.user("mkdir -p data; echo some >data/file; echo kept >in-home")
    script = (
        "cat /etc/image /data/file in-home; id -un; echo rank $SLURM_PROCID; [ -e /etc/slurm ] || echo apart"
    )
    options = f"--container-image=/home/{USER}/image.sqsh --container-mounts=/home/{USER}/data:/data:ro"
    workdir = f"--container-workdir=/home/{USER}"
    told = site.user(f"srun -l -N2 {options} {workdir} sh -c {shlex.quote(script)}")
    for rank in "01":
        lines = [line.partition(": ")[2] for line in told.splitlines() if line.startswith(f"{rank}: ")]
        assert [line for line in lines if not line.startswith("pyxis:")] == [
            "made by a test", "some", "kept", USER, f"rank {rank}", "apart",
        ]  # fmt: skip


def test_an_image_that_is_not_there_is_an_error_and_nothing_runs_outside(site: Site) -> None:
    told = site.user(f"srun -N1 --container-image=/home/{USER}/none.sqsh touch outside || echo refused")
    assert "refused" in told
    assert not (site.home / "outside").exists()
