"""User data: the script that installs a machine's first code, and a unit that runs it.

The text never changes while a cluster lives, not even a comment in it, because a change would restart or
replace machines. Its arguments are therefore the bucket, the region, the cluster, the role and the host, and
never a digest, a version or a secret.

The first code fetches one file, the loader, with the machine's role and Python's standard library alone.
Ubuntu's images have no client of any cloud. Installing one first would make each boot wait for the package
mirror, and each node would have to trust that mirror before its own code.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.design.model import ClusterDesign

CODE = "/opt/slurm-stacks"
UNIT = "slurm-stacks-boot.service"
HOOK = "#cloud-boothook\n"
"""The first line of a script that cloud-init runs at each boot as soon as it has read it. A script that
begins with `#!` instead runs last, after multi-user.target."""

_SCRIPT = """\
#!/bin/sh
# slurm-stacks: fetch the cluster's loader and start it, now and at each later boot.
set -eu
umask 022
mkdir -p {code}
cat >{code}/run_loader.py <<'END'
{start}END
changed=
if [ -e /etc/systemd/system/{unit} ]; then changed=yes; fi
cat >/etc/systemd/system/{unit} <<'END'
{service}END
# systemd finds a new unit by itself. Only a changed one needs the slow reload of all units.
if [ -n "$changed" ]; then systemctl daemon-reload; fi
systemctl enable --quiet --no-reload {unit}
systemctl start --no-block {unit}
"""

# systemd restarts a oneshot unit that fails. A unit that ends well has set the machine up for this boot.
_SERVICE = """\
[Unit]
Description=slurm-stacks: set up this machine ({what})
Wants=network-online.target
After={after}
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 {start} {arguments}
Restart=on-failure
RestartSec=15
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
"""


def script(start: Path, arguments: Sequence[str], what: str, limit: int, after: Sequence[str] = ()) -> str:
    """Return the shell script of a machine's first boot.

    Args:
        start: The file that becomes the machine's first code.
        arguments: The arguments of that code.
        what: The machine's name or role, for the people who read the unit.
        limit: The most bytes that the cloud accepts.
        after: Units, beside the network's, that must have finished before the boot begins.

    Raises:
        ValueError: The script is longer than the limit.
    """
    service = _SERVICE.format(
        what=what,
        start=f"{CODE}/run_loader.py",
        arguments=shlex.join(arguments).replace("%", "%%"),
        after=" ".join(["network-online.target", *after]),
    )
    text = _SCRIPT.format(code=CODE, unit=UNIT, start=start.read_text(encoding="utf-8"), service=service)
    if len(text.encode()) > limit:
        raise ValueError(f"the user data has {len(text.encode())} bytes, and the cloud takes {limit}")
    return text


@dataclass(frozen=True, slots=True)
class BootScript:
    """What one cloud's machines boot with, and how much of it the cloud accepts.

    Attributes:
        start: The file that becomes a machine's first code.
        limit: The most bytes that the cloud accepts.
        after: Units, beside the network's, that must have finished before the boot begins.
    """

    start: Path
    limit: int
    after: tuple[str, ...] = ()

    def render(self, design: ClusterDesign, bucket: str, role: str, host: str | None = None) -> str:
        """Return the script that makes the boot's unit and starts it.

        Running it a second time changes nothing.

        Args:
            role: controller | login | compute | image.
            host: The machine's name in the design. `None` means that the machine finds its name itself.

        Raises:
            ValueError: The script is longer than the cloud accepts.
        """
        place = ["--bucket", bucket, "--region", str(design.region), "--cluster", design.name]
        arguments = [*place, "--role", role, *(["--host", host] if host is not None else [])]
        return script(self.start, arguments, host or role, self.limit, self.after)
