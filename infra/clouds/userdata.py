"""What a machine is told before it has anything: the file that fetches its code, and a unit that runs it.

The text never changes for a living cluster: a change would restart or replace machines. So its arguments name
bucket, region, cluster, role and host, and no digest, no version and no secret.

It fetches one file, the loader, with the machine's role and Python's standard library alone: Ubuntu's images
have no client of a cloud, and to install one first would make each boot wait for the package mirror and each
node trust it before its code.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

CODE = "/opt/slurm-stacks"
UNIT = "slurm-stacks-boot.service"
HOOK = "#cloud-boothook\n"
"""Begins what cloud-init runs at each boot as soon as it has read it, before it goes on. What begins with
`#!` instead it runs last of all, after multi-user.target."""

_SCRIPT = """\
#!/bin/sh
# slurm-stacks: fetch the cluster's loader and start it, now and at each later boot.
set -eu
umask 022
mkdir -p {code}
cat >{code}/start.py <<'END'
{start}END
changed=
if [ -e /etc/systemd/system/{unit} ]; then changed=yes; fi
cat >/etc/systemd/system/{unit} <<'END'
{service}END
# systemd reads a unit that is new when it is asked for it; to read all of them anew takes time.
if [ -n "$changed" ]; then systemctl daemon-reload; fi
systemctl enable --quiet --no-reload {unit}
systemctl start --no-block {unit}
"""

# A oneshot unit that fails is started again; one that ends well has made this boot's machine.
_SERVICE = """\
[Unit]
Description=slurm-stacks: become what the cluster needs ({what})
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
    """The shell script of a machine's first boot.

    Args:
        start: the file that becomes the machine's first code.
        arguments: of that.
        what: the machine's name or role, for who reads the unit.
        limit: bytes that the cloud takes.
        after: units beside the network's that have to be through with their work before it begins.

    Raises:
        ValueError: it would be longer.
    """
    service = _SERVICE.format(
        what=what,
        start=f"{CODE}/start.py",
        arguments=shlex.join(arguments).replace("%", "%%"),
        after=" ".join(["network-online.target", *after]),
    )
    text = _SCRIPT.format(code=CODE, unit=UNIT, start=start.read_text(encoding="utf-8"), service=service)
    if len(text.encode()) > limit:
        raise ValueError(f"the user data has {len(text.encode())} bytes, and the cloud takes {limit}")
    return text
