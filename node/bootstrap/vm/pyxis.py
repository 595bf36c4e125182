"""Installs Enroot and Pyxis from the packages of the stack file, and configures them on a machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import apt, apt_repositories, hashed_packages
from node.design.containers import Containers
from node.slurm import container_conf
from node.system import files

TOOLKIT = "libnvidia-container-tools"
TOOLKIT_VERSION = "1.19.1-1"
"""The version of NVIDIA's container tools, as in examples/hooks/docker.sh."""
TOOLKIT_PACKAGES = (TOOLKIT, "libnvidia-container1")
TOOLKIT_CLI = "usr/bin/nvidia-container-cli"
TOOLKIT_REPOSITORY = "https://nvidia.github.io/libnvidia-container"
TOOLKIT_FINGERPRINT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
"""The repository's key, as Google's initialization-actions for Dataproc have it for the same packages."""
ENOUGH = "ClusterName=none\nSlurmctldHost=localhost\nPlugStackConfig={stack}\n"
"""The smallest configuration with which srun loads a plugin and prints its options."""


def wanted(context: Context) -> Containers | None:
    """Return the section of the design if this machine gets Enroot and Pyxis; otherwise `None`."""
    containers = context.settings.design.containers
    return containers if containers is not None and containers.runtime == "pyxis" else None


def install(context: Context) -> list[str]:
    """Install the packages of the stack file that this machine does not have, and return their names.

    Raises:
        ServiceError: A package cannot be fetched, or has another hash.
        CommandError: apt cannot install one.
    """
    containers = wanted(context)
    return hashed_packages.install(context, containers.packages) if containers is not None else []


def install_toolkit(context: Context) -> list[str]:
    """Install NVIDIA's container tools on a node with GPUs: Enroot uses them to give containers the GPUs.

    Returns:
        What was missing.

    Raises:
        ServiceError: The repository's key cannot be fetched, or is another one.
        CommandError: apt cannot install them.
    """
    if wanted(context) is None or context.at(TOOLKIT_CLI).exists():
        return []
    key_url = f"{TOOLKIT_REPOSITORY}/gpgkey"
    source = f"{TOOLKIT_REPOSITORY}/stable/deb/$(ARCH) /"
    apt_repositories.add_repository(
        context, "nvidia-container", key_url, source, fingerprint=TOOLKIT_FINGERPRINT
    )
    apt.update(context)
    pinned = [f"{name}={TOOLKIT_VERSION}" for name in TOOLKIT_PACKAGES]
    apt.install(context, pinned, fresh=True, downgrade=True)
    return [f"{TOOLKIT} {TOOLKIT_VERSION}"]


def configure(context: Context) -> None:
    """Write the configuration, and sees that this machine's Slurm loads the plugin.

    A machine whose stack file has no Pyxis any more does not load it.

    Raises:
        RuntimeError: Enroot or Pyxis is not installed, or Pyxis was built for another release of Slurm.
    """
    line = context.at(container_conf.PYXIS_LINE)
    if wanted(context) is None:
        line.unlink(missing_ok=True)
        return
    settings, role = context.settings, context.role
    plugin = _plugin(context)
    if not context.at("usr/bin/enroot").exists():
        raise RuntimeError(
            "Enroot is not installed (/usr/bin/enroot): name its package in containers.packages, or use an "
            "image that has it"
        )
    # As in /tmp, each user makes a folder there.
    for folder in (
        container_conf.ENROOT_RUNTIME,
        container_conf.enroot_images(settings),
        container_conf.enroot_data(settings, role),
    ):
        files.folder(context.at(folder.lstrip("/")), 0o1777)
    for name, text in (
        (container_conf.ENROOT, container_conf.enroot_conf(settings, role)),
        (container_conf.ENROOT_MOUNTS, container_conf.enroot_mounts(settings, role)),
        (container_conf.PYXIS_LINE, container_conf.pyxis_line(plugin)),
    ):
        path = context.at(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, text.encode())
    try:
        _load(context, line)
    except RuntimeError:
        # With this line every srun and sbatch of this machine would fail.
        line.unlink()
        raise


def _plugin(context: Context) -> str:
    """Return the path of Pyxis's plugin."""
    root = context.at("")
    patterns = [f"{folder}/{container_conf.PYXIS_PLUGIN}" for folder in container_conf.PLUGIN_FOLDERS]
    if not (plugins := [path for pattern in patterns for path in sorted(root.glob(pattern))]):
        raise RuntimeError(
            f"Pyxis is not installed (no {container_conf.PYXIS_PLUGIN} in "
            f"/{', /'.join(container_conf.PLUGIN_FOLDERS)}): name its "
            "package in containers.packages, or use an image that has it"
        )
    return str(plugins[0])


def _load(context: Context, line: Path) -> None:
    """Have srun load the plugin: Slurm refuses one that was built for another of its releases."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write(ENOUGH.format(stack=line))
        conf.flush()
        try:
            output = context.slurm("srun", "--help", conf=conf.name)
        except CommandError as error:
            output = str(error)
    if "--container-image" not in output:
        last = "\n".join(text for text in output.splitlines() if "error:" in text or "Incompatible" in text)
        release = context.report.content["facts"].get("slurm", "this machine's Slurm")
        raise RuntimeError(
            f"Slurm does not load Pyxis: its package must have been built for {release}, with the headers of "
            f"that release (docs/containers.md)\n{last}".rstrip()
        )
