"""GDRCopy on a node with GPUs: real apt and dpkg install its pinned packages; the kernel is a stand-in."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import subprocess
from pathlib import Path

import pytest

from node.bootstrap import command, steps
from node.bootstrap.context import Context
from node.bootstrap.vm import drivers, gdrcopy, images, nvidia
from node.cloud.errors import ServiceError
from node.containers.model import Package
from tests.support import doubles
from tests.support.apt_world import Machine, Repository
from tests.support.recorded import COMPUTE, V100, machine

KERNEL, BUILD, DRIVER = "6.17.0-1022-gcp", "6.17.0-1022.22", "580.173.02"
GPUS = dataclasses.replace(V100, efa=0)
OTHER_HEADERS = "linux-headers-6.14.0-1018-gcp"


def built(folder: Path, name: str, depends: str) -> bytes:
    """A package of NVIDIA's name and dependencies (packages/*/control of its repository), without content."""
    (folder / name / "DEBIAN").mkdir(parents=True)
    fields = {"Package": name, "Version": "2.6-1", "Architecture": "amd64", "Depends": depends}
    fields |= {"Maintainer": "Nobody <nobody@example.org>", "Description": "Empty"}
    text = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    (folder / name / "DEBIAN/control").write_text(text)
    deb = folder / f"{name}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", folder / name, deb],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return deb.read_bytes()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Context, Machine]:
    """A machine with NVIDIA's driver, and both packages in its node archive."""
    monkeypatch.setattr(platform, "release", lambda: KERNEL)
    monkeypatch.setattr(steps.gres, "devices", lambda _accelerator: ["/dev/null"])  # type: ignore[attr-defined]
    (debs := tmp_path / "debs").mkdir()
    contents = [built(debs, gdrcopy.DRIVER, "dkms (>= 1.95)"), built(debs, gdrcopy.LIBRARY, "")]
    packages = tuple(
        Package(f"packages/{name}_2.6-1_amd64.Ubuntu24_04.deb", hashlib.sha256(content).hexdigest())
        for name, content in zip((gdrcopy.DRIVER, gdrcopy.LIBRARY), contents, strict=True)
    )
    context, _ = machine(tmp_path, host="v100-0", partitions=(GPUS,), gdrcopy=packages)
    for package, content in zip(packages, contents, strict=True):
        path = context.path(context.folders.code / package.archived())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (noble := tmp_path / "noble").mkdir()
    context.run = run = Machine(tmp_path / "root", Repository(noble))
    words = {"kernel": KERNEL, "build": BUILD}
    other = {"kernel": OTHER_HEADERS.removeprefix("linux-headers-"), "build": "6.14.0-1018.22"}
    run.archive(
        ("tools", {}), ("kernel", words), ("headers", words), ("headers", other),
        ("nvidia_modules", {"kernel": KERNEL, "driver": DRIVER, "build": BUILD}),
        ("nvidia", {"driver": DRIVER}),
    )  # fmt: skip
    run.have(f"linux-image-{KERNEL}", OTHER_HEADERS)
    run.answer("dpkg-deb", lambda *argv: command.run(*argv, timeout=60.0))
    run.answer("nvidia-smi --list-gpus", "")

    def start(*_argv: str) -> str:
        run.answer("nvidia-smi --list-gpus", "GPU 0: x\n" * 8)
        return ""

    run.answer("modprobe nvidia", start)
    context.at(gdrcopy.NODE).parent.mkdir(parents=True, exist_ok=True)
    context.at(gdrcopy.DEVICES).parent.mkdir(parents=True)

    def load(*_argv: str) -> str:
        assert {nvidia.COMMON, gdrcopy.DRIVER, f"linux-headers-{KERNEL}"} <= run.versions().keys()
        context.at(gdrcopy.DEVICES).write_text("Character devices:\n  1 mem\n234 gdrdrv\n\nBlock devices:\n")
        return ""

    run.answer("modprobe gdrdrv", load)
    return context, run


def test_it_comes_after_the_driver_and_is_in_the_boot_report(node: tuple[Context, Machine]) -> None:
    context, run = node
    assert steps.accelerators(context) == "8 v100, GDRCopy 2.6-1"
    there = run.versions()
    assert (there[gdrcopy.DRIVER], there[gdrcopy.LIBRARY]) == ("2.6-1", "2.6-1")
    assert "dkms" in there
    assert OTHER_HEADERS not in there, "the module would be built for that kernel too"
    assert run.having("mknod") == [f"mknod --mode=666 {context.at(gdrcopy.NODE)} c 234 0"]
    # NVIDIA's own service would fail, and with it apt, before the driver is loaded.
    assert context.at(f"etc/systemd/system/{gdrcopy.UNIT}").readlink() == Path("/dev/null")
    run.calls.clear()
    assert steps.accelerators(context) == "8 v100, GDRCopy 2.6-1"
    assert run.having("install") == [], "it is installed once, and loaded at each boot"
    assert run.having("mknod")


def test_an_image_has_it_without_a_device(node: tuple[Context, Machine]) -> None:
    context, run = node
    placed = drivers.install_unloaded(context, GPUS)
    assert placed[1:] == [gdrcopy.DRIVER, gdrcopy.LIBRARY]
    assert not run.having("modprobe")
    design, plain = context.settings.design, doubles.design(GPUS, COMPUTE, isolation="vm")
    both = dataclasses.replace(plain, gdrcopy=design.gdrcopy)
    digests = [images.content(both, kind).get("gdrcopy") for kind in images.kinds(both)]
    assert [one for one in digests if one] == [[package.sha256 for package in design.gdrcopy]]
    assert not any("gdrcopy" in images.content(plain, kind) for kind in images.kinds(plain))


@pytest.mark.parametrize(
    ("words", "said", "error"),
    [
        (
            "modinfo",
            "modinfo: ERROR",
            r"was not built for Linux 6\.17\.0-1022-gcp \(gdrdrv/2\.6: added\)",
        ),
        ("modprobe gdrdrv", "Unknown symbol", r"does not load gdrdrv, although it was built: (.|\n)*Unknown"),
    ],
)
def test_a_module_that_does_not_work_keeps_the_node_away(
    node: tuple[Context, Machine], words: str, said: str, error: str
) -> None:
    context, run = node
    run.answer("dkms status", "gdrdrv/2.6: added\n")
    run.fail(words, said=said)
    with pytest.raises(RuntimeError, match=error):
        steps.accelerators(context)


def test_a_module_without_a_device_and_a_package_of_another_hash_stop_the_boot(
    node: tuple[Context, Machine],
) -> None:
    context, run = node
    context.at(gdrcopy.DEVICES).write_text("Character devices:\n234 gdrdrv-other\n")
    run.answer("modprobe gdrdrv", "")
    with pytest.raises(RuntimeError, match="/proc/devices has no device"):
        steps.accelerators(context)
    first = context.settings.design.gdrcopy[0]
    context.path(context.folders.code / first.archived()).write_bytes(b"another")
    for stamp in context.at("usr/share/slurm-stacks/packages").iterdir():
        stamp.unlink()
    with pytest.raises(ServiceError, match=f"and should be {first.sha256}: it is not installed"):
        steps.accelerators(context)
