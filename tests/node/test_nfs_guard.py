"""Tests of who may speak NFS to a service, with real nftables rules in a network of the test's own."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from node.bootstrap.context import Context
from node.bootstrap.vm import firewall, nfs_guard
from node.design.storage import Mount
from tests.support.recorded import machine

NOBODY = 65534
WORLD = """
import encodings.idna, json, os, socket, subprocess, sys  # idna: later nobody could not read its file
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
servers = [socket.create_server(("127.0.0.1", port)) for port in (2049, 2050)]
subprocess.run(["nft", "-f", sys.argv[1]], check=True)

def tried(user, port):
    end, child = os.pipe()
    if os.fork() == 0:
        os.setgroups([])
        os.setuid(user)
        try:
            socket.create_connection(("127.0.0.1", port), 60).close()
            said = "connected"
        except OSError as error:
            said = type(error).__name__
        os.write(child, said.encode())
        os._exit(0)
    os.close(child)
    os.wait()
    return os.read(end, 100).decode()

print(json.dumps([tried(user, port) for user in (0, 65534) for port in (2049, 2050)]))
"""

EFS = Mount("/home", "efs")
OWN = Mount("/home", "nfs", served_by="controller")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None or shutil.which("ip") is None,
    reason="needs root, nftables and ip for rules in a network of its own",
)
def test_a_program_of_an_ordinary_user_reaches_no_nfs_server(tmp_path: Path) -> None:
    rules = tmp_path / "nfs.nft"
    rules.write_text(firewall.table(nfs_guard.NFS_TABLE, nfs_guard.NFS_CHAINS))
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", WORLD, str(rules)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["connected", "connected", "ConnectionRefusedError", "connected"]


def with_mounts(context: Context, *mounts: Mount) -> Context:
    design = dataclasses.replace(context.settings.design, mounts=mounts)
    return dataclasses.replace(context, settings=dataclasses.replace(context.settings, design=design))


@pytest.mark.parametrize(
    ("mount", "guarded"),
    [
        (EFS, True),
        (Mount("/home", "filestore"), True),
        (Mount("/home", "nfs", existing="server:/home"), True),
        (OWN, False),
        (Mount("/fsx", "fsx_lustre"), False),
    ],
)
def test_a_machine_of_a_service_has_the_rules_for_this_boot_and_the_next(
    tmp_path: Path, mount: Mount, guarded: bool
) -> None:
    context, run = machine(tmp_path)
    nfs_guard.install_nfs_guard(with_mounts(context, mount))
    file, unit = (text.format(name=nfs_guard.NFS_NAME) for text in (firewall.RULES, firewall.UNIT))
    rules = tmp_path / "root" / file
    assert run.calls == ([f"nft -f {rules}", f"systemctl enable {unit}"] if guarded else [])
    assert rules.exists() == guarded
