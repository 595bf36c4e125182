"""Container machines: whether this host can run them, and the image that they start from."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from infra import bundle, os_errors
from infra.clouds import userdata
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from localcloud import cgroups, images, nspawn, volumes
from localcloud.containers import BootPlan
from localcloud.images import Say
from localcloud.nspawn import Bind, Machine
from node.bootstrap.vm import images as kinds
from node.bootstrap.vm.clouds.local import BUCKET
from node.design import time_limits
from node.design.model import CONTAINER, ClusterDesign, Settings, Site
from node.loader import IMAGE
from node.system import foreign
from node.system.processes import ProcessId
from operations import programs
from operations.local import system_packages

# The image of a cluster's container machines: the distribution's layer, and a layer of ours above it.
#
# The upper layer is made like a cloud's image: a machine boots from the distribution's layer, with this
# host's network, and takes the steps of the role `image` (`node.bootstrap.vm.baking`). The changes on its
# disk are the layer. It holds what all of the cluster's roles need; clusters with the same needs share it.

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


PROBE_SECONDS = 60.0
PROBE = """
set -e
ip link add br0 type bridge
ip link add eth0 type veth peer name v0
ip link set v0 master br0
mkdir "$1/upper" "$1/work" "$1/merged"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" "$1/merged"
touch "$1/merged/x"
"""
INSTEAD = "Or leave `isolation: container` out: machines are processes then, which work everywhere."


def check_support(isolation: str) -> None:
    """Refuse machines that cannot be made here. `up` installs missing packages before this check.

    Raises:
        UserError: Exit 3; the message names the cure.
    """
    if isolation == CONTAINER and (reason := unsupported_reason()) is not None:
        raise UserError(f"{reason} {INSTEAD}", EXIT_REFUSED, code="containers.not-possible")


def support_warnings(design: ClusterDesign) -> list[str]:
    """Return a plan's warnings about this host: why a cluster of that design cannot come up here.

    Raises:
        UserError: Exit 3; the design needs packages that this user may not install.
    """
    if design.isolation == CONTAINER:
        reason = unsupported_reason(design)
        return [f"this cannot come up here: {reason}"] if reason else []
    text = system_packages.check_accounting() if design.slurm.accounting else ""
    return [text] if text else []


def unsupported_reason(
    design: ClusterDesign | None = None, look: Callable[[], str] | None = None
) -> str | None:
    """Return why machines cannot boot here, with the cure; `None` if they can, once their image is made.

    Args:
        design: Decides what the image holds; without it, the space for the image is not checked.
        look: Returns the kernel's refusal of what a machine needs; by default `probe`.
    """
    return next(_reasons(design, look or probe), None)


def _reasons(design: ClusterDesign | None, look: Callable[[], str]) -> Iterator[str]:
    if os.geteuid() != 0:
        yield "machines that boot (`local: {isolation: container}`) are made by root: run as root (sudo)."
    if lacking := system_packages.missing(system_packages.CONTAINERS):
        yield (
            f"machines that boot need {' and '.join(lacking)}: as root, {system_packages.command(lacking)} "
            "(`up` does it)."
        )
    try:
        images.recipe(design.image.source if design is not None else None)
    except images.ImageError as error:
        yield f"{error}."
    if not cgroups.hierarchies():
        yield f"{cgroups.NO_VERSION_2}."
    if problem := look():
        yield (
            f"this root may not make containers ({problem}): this seems to be a container itself. "
            "Start that with --privileged, and have /tmp on a file system of its own (--tmpfs /tmp:exec)."
        )
    if design is not None and (missing := state_problem(design)):
        yield missing
    if design is not None and not image_exists(design):
        try:
            images.check_free_space(image_folder())
        except images.ImageError as error:
            yield f"{error}."


def state_problem(design: ClusterDesign) -> str:
    """Return why the disk with Slurm's state cannot be attached here, with the cure; empty if it can."""
    if design.state() is None or not (problem := volumes.unavailable()):
        return ""
    return (
        f"the disk with Slurm's state needs a loop device, and this machine gives none ({problem}): as root, "
        "modprobe loop; or write controller: {state: machine} into the stack file."
    )


def probe() -> str:
    """Try what a container machine needs. Returns the kernel's refusal; empty if all of it works."""
    root, _ = os_errors.nearest(locations.run_root())
    with tempfile.TemporaryDirectory(dir=root) as folder:
        done = programs.capture(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", PROBE, "sh", folder],
            env={"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            seconds=PROBE_SECONDS,
        )
        if done.status == programs.TIMED_OUT:
            return done.err
        # overlayfs leaves a folder that nobody may enter, so it could not be removed.
        work = Path(folder) / "work" / "work"
        if work.exists():
            work.chmod(0o700)
    lines = done.err.strip().splitlines() or [f"status {done.status}"]
    return lines[0] if done.failed else ""
