"""The image of a cluster's container machines: the distribution's layer, and a layer of ours above it.

The upper layer is made like a cloud's image: a machine boots from the distribution's layer, with this
host's network, and takes the steps of the role `image` (`node.bootstrap.vm.baking`). The changes on its
disk are the layer. It holds what all of the cluster's roles need; clusters with the same needs share it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path

from infra import bundle
from infra.clouds import userdata
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from localcloud import cgroups, images, nspawn
from localcloud.container_machine import Bind, Machine
from localcloud.containers import BootPlan
from localcloud.images import Say
from node.bootstrap.vm import images as kinds
from node.bootstrap.vm.clouds.local import BUCKET
from node.design import time_limits
from node.design.model import ClusterDesign, Settings, Site
from node.loader import IMAGE
from node.system import foreign
from node.system.processes import ProcessId
from operations import programs

STEPS = ("apt", "apt_repositories", "baking", "packages", "pyxis", "slurm_packages", "slurm_source")
"""The modules below `node/bootstrap/vm` that decide what an image holds."""
STEP_SECONDS = float(time_limits.PACKAGES + time_limits.SOURCE)
BOOT_SECONDS = 120.0
OFF_SECONDS = 60.0
USER_DATA_BYTES = 1 << 20
OF_ONE_MACHINE = (
    *("etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/systemd/network", "run", "tmp"),
    *("etc/cloud/cloud.cfg.d", "var/lib/cloud", "var/log", "var/tmp", "root"),
)
"""Paths that are removed from the upper layer: they belong to the machine that made it."""


def image_folder() -> Path:
    return locations.cache_root() / "images"


def image_plan(design: ClusterDesign, parts: list[Path]) -> BootPlan:
    """Return what the agent boots the cluster's machines from.

    Args:
        parts: The layers of their image, the uppermost first.
    """
    start = bundle.ROOT / "localcloud" / "run_loader.py"
    roles = ("controller", "login", "compute")
    texts = {
        role: userdata.HOOK
        + userdata.script(start, ["--bucket", BUCKET, "--role", role], role, USER_DATA_BYTES)
        for role in roles
    }
    state = design.state()
    backup = design.backup
    return BootPlan(
        tuple(map(str, parts)),
        texts,
        {},
        state.size_gib if state is not None else None,
        backup.bucket if backup is not None else None,
    )


def ensure_image(design: ClusterDesign, say: Say) -> list[Path]:
    """Return the layers of a cluster's image, the uppermost first; make those that are missing.

    Raises:
        UserError: Exit 3; they cannot be made.
    """
    try:
        with folders.umask():
            recipe = images.recipe(design.image.source)
            base = images.ensure(recipe, image_folder(), say)
            name = f"{recipe.name}-{_digest(design)}"
            upper = (
                images.cached(image_folder(), name, lambda draft: _bake(design, base, draft, say), say)
                / "disk"
            )
    except images.ImageError as error:
        raise UserError(str(error), EXIT_REFUSED, code="image.not-made") from error
    if gone := images.prune(image_folder(), (recipe.name, name), _image_plans()):
        say(f"removed images of machines that nothing has used for a week: {', '.join(sorted(gone))}")
    return [upper, base]


def _image_plans() -> list[Path]:
    """Return the files that name the layers of all clusters on this host, of any user."""
    return [file for root in locations.run_roots() for file in root.glob("*/cloud/plan.json")]


def image_exists(design: ClusterDesign) -> bool:
    """Whether the image of a design exists.

    Raises:
        UserError: Exit 3; it cannot be made here.
    """
    try:
        recipe = images.recipe(design.image.source)
    except images.ImageError as error:
        raise UserError(str(error), EXIT_REFUSED, code="image.not-made") from error
    return all((image_folder() / name).is_dir() for name in (recipe.name, f"{recipe.name}-{_digest(design)}"))


def _digest(design: ClusterDesign) -> str:
    vm = bundle.ROOT / "node" / "bootstrap" / "vm"
    content = [kinds.content(design, kind) for kind in kinds.kinds(design)]
    parts = [(vm / f"{name}.py").read_text() for name in STEPS]
    parts.append(json.dumps(sorted(json.dumps(part, sort_keys=True) for part in content)))
    return bundle.digest("".join(parts).encode())[:12]


def _bake(design: ClusterDesign, base: Path, draft: Path, say: Say) -> None:
    """Make the upper layer in a draft folder.

    Raises:
        ImageError: A step failed.
    """
    began = time.monotonic()
    say("installing Slurm and what else the machines need into their image (once, some minutes)")
    bucket = draft / "bucket"
    _publish(design, bucket)
    network = ("etc/hosts", "etc/resolv.conf")
    machine = Machine(
        id=f"image-{draft.name.strip('.')}",
        host="image",
        folder=draft / "machine",
        layers=[base],
        card=None,
        files={name: Path("/", name).read_text() for name in network if Path("/", name).exists()},
        binds=[Bind(bucket, BUCKET)],
    )
    child = nspawn.start(machine, die_with_parent=True)
    launcher = ProcessId.of(child.pid)
    try:
        if launcher is None:
            raise images.ImageError(f"the image's machine ended at once; see {machine.console}")
        nspawn.wait_for(launcher, machine.console)
        nspawn.execute(launcher, "systemctl", "is-system-running", "--wait", seconds=BOOT_SECONDS)
        for kind in kinds.kinds(design):
            _steps(launcher, kind, bucket, say)
        if not nspawn.power_off(machine.id, launcher, OFF_SECONDS):
            raise images.ImageError("the image's machine does not switch itself off")
    except OSError as error:
        raise images.ImageError(f"the machines' image cannot be made: {error}") from error
    finally:
        nspawn.kill(machine.id, launcher)
        child.wait()
        cgroups.remove(lambda: cgroups.of(nspawn.group(machine.id)))
    upper = machine.folder / "disk" / "upper"
    removed = programs.capture(["rm", "-rf", "--", *(str(upper / name) for name in OF_ONE_MACHINE)])
    if removed.failed:
        raise images.ImageError(f"the machines' image cannot be made: {removed.err.strip()}")
    upper.rename(draft / "disk")
    for left in (bucket, machine.folder):
        shutil.rmtree(left)
    taken = images.size_mib(image_folder())
    say(f"installed it in {time.monotonic() - began:.0f} s; all images in {image_folder()} take {taken} MiB")


def _steps(launcher: ProcessId, kind: kinds.ImageKind, bucket: Path, say: Say) -> None:
    loader = ("/usr/bin/python3", f"{BUCKET}/loader.py", "--bucket", BUCKET)
    report = bucket / "boot" / f"{kind.host}.json"
    done = nspawn.execute(launcher, *loader, "--role", kinds.ROLE, "--host", kind.host, seconds=STEP_SECONDS)
    steps = []
    with contextlib.suppress(OSError, ValueError):
        steps = foreign.record(report)["steps"]
    for step in steps:
        say(f"  {kind.name}, {step['name']}: {step.get('note', '')}"[:150])
    if done.status:
        tail = steps[-1].get("tail", []) if steps else done.errors.splitlines()[-8:]
        lines = [f"the machines' image cannot be made: its steps for {kind.name} failed"]
        raise images.ImageError("\n".join([*lines, *(f"  {line}" for line in tail), images.ARCHIVE_HINT]))


def _publish(design: ClusterDesign, bucket: Path) -> None:
    """Write what the role `image` reads, as in a cloud's bucket."""
    code = bundle.node_archive(design)
    text = bundle.settings_object(Settings(design, Site("/", "slurm", "controller", "")))
    content = bundle.current(code, text)
    blobs = {content["code"]["key"]: code, content["settings"]["key"]: text}
    blobs |= {IMAGE: json.dumps(content).encode()}
    blobs |= {"loader.py": (bundle.ROOT / "node" / "loader.py").read_bytes()}
    (bucket / "boot").mkdir(parents=True)
    for key, blob in blobs.items():
        (bucket / key).parent.mkdir(exist_ok=True)
        (bucket / key).write_bytes(blob)
