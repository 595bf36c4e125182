"""The files on a container machine's disk before its first boot: network, user data, and skipped units."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from localcloud.container_machine import Machine, NetworkInterface

INTERFACE = "host0"
"""The name of a machine's network interface; systemd-nspawn chooses it."""
CLOUD_INIT = """\
# slurm-stacks: the network is configured already, and the seed is a folder, not a device. Only the modules
# that a first boot needs run, because importing a module takes time.
network: {config: disabled}
datasource: {NoCloud: {fs_label: null}}
ssh_genkeytypes: [ed25519]
ssh: {emit_keys_to_console: false}
ssh_deletekeys: false
cloud_init_modules: [bootcmd, write-files, set_hostname, users-groups, ssh]
cloud_config_modules: []
cloud_final_modules:
  [scripts-vendor, scripts-per-once, scripts-per-boot, scripts-per-instance, scripts-user, final-message]
"""
GENERATORS = (
    # This one detects the cloud; here the datasources are given.
    "cloud-init-generator",
    *("systemd-gpt-auto-generator", "systemd-hibernate-resume-generator", "systemd-cryptsetup-generator"),
    *("systemd-veritysetup-generator", "systemd-integritysetup-generator", "systemd-sysv-generator"),
    *("systemd-getty-generator", "systemd-rc-local-generator", "systemd-system-update-generator"),
    *("systemd-tpm2-generator", "systemd-ssh-generator", "systemd-bless-boot-generator"),
)
"""Generators that systemd would run at each boot and `daemon-reload` and that find nothing in a container."""
UNITS = (
    # The image or this host has already what these units set up.
    *("systemd-sysusers.service", "systemd-tmpfiles-setup-dev.service", "systemd-remount-fs.service"),
    *("dev-hugepages.mount", "cloud-init-hotplugd.socket"),
    # Nobody reads a container's log of logins.
    *("systemd-update-utmp.service", "systemd-update-utmp-runlevel.service"),
)
"""Units that container machines skip; units that no machine needs are masked in the image."""
FOUND_LATER = "cloud-init-local.service"
"""cloud-init's first stage. It is skipped, because it looks for a cloud's network settings and the next stage
finds a seed as well. It must run with a newer cloud-init, which is one process and waits for each stage."""
ONE_PROCESS = "lib/systemd/system/cloud-init-main.service"
SEED = "var/lib/cloud/seed/nocloud"


def write_boot_files(machine: Machine) -> None:
    """Write the files into the folder `seed` of the machine."""
    seed = machine.folder / "seed"
    shutil.rmtree(seed, ignore_errors=True)
    seed.mkdir()
    files: dict[str, str | tuple[str, int]] = {
        # With an id from the beginning, systemd does not run its set-up of a system's very first boot.
        "etc/machine-id": (f"{hashlib.sha256(machine.id.encode()).hexdigest()[:32]}\n", 0o444),
        "etc/cloud/cloud.cfg.d/90-slurm-stacks.cfg": CLOUD_INIT,
        # This replaces cloud-init's generator.
        "etc/systemd/system/multi-user.target.d/cloud-init.conf": "[Unit]\nWants=cloud-init.target\n",
        # systemd ignores an empty generator, and an empty unit is masked.
        **{f"etc/systemd/system-generators/{name}": "" for name in GENERATORS},
        **{f"etc/systemd/system/{name}": "" for name in UNITS},
        "etc/cloud/cloud.cfg.d/95-datasource.cfg": f"datasource_list: [{', '.join(machine.datasources)}]\n",
    }
    if machine.user_data is not None or "NoCloud" in machine.datasources:
        files[f"{SEED}/meta-data"] = f"instance-id: {machine.id}\nlocal-hostname: {machine.host}\n"
        files[f"{SEED}/user-data"] = (machine.user_data or "", 0o600)
    if tuple(machine.datasources) == ("NoCloud",) and not is_one_process(machine.layers):
        files[f"etc/systemd/system/{FOUND_LATER}"] = ""
    if machine.card is not None:
        files["etc/systemd/network/10-slurm-stacks.network"] = _network_file(machine.card)
    for path, content in (files | dict(machine.files)).items():
        text, mode = content if isinstance(content, tuple) else (content, 0o644)
        target = seed / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
    # The folder itself is the machine's root, which its services must be able to enter.
    for path, _, _ in os.walk(seed):
        _as_in_image(Path(path), machine, seed)


def is_one_process(layers: Sequence[Path]) -> bool:
    """Return whether the cloud-init of an image is one process, which waits for each of its stages."""
    return any((layer / ONE_PROCESS).exists() for layer in layers)


def _as_in_image(folder: Path, machine: Machine, seed: Path) -> None:
    """Copy owner and mode of a folder from the image: overlayfs takes them from the upper layer."""
    for layer in machine.layers:
        with contextlib.suppress(OSError):
            facts = (layer / folder.relative_to(seed)).stat()
            folder.chmod(facts.st_mode & 0o7777)
            os.chown(folder, facts.st_uid, facts.st_gid)
            return


def _network_file(card: NetworkInterface) -> str:
    lines = ["[Match]", f"Name={INTERFACE}", "[Network]", f"Address={card.address}", "LinkLocalAddressing=no"]
    lines += ["IPv6AcceptRA=no", *([f"Gateway={card.gateway}"] if card.gateway else [])]
    for route in card.routes:
        lines += ["[Route]", f"Destination={route}", "Scope=link"]
    return "\n".join([*lines, ""])
