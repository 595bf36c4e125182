"""Boots a machine: takes the steps of its role, by the settings of its cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from infra.node.bootstrap.context import Context
from infra.node.bootstrap.execute import run_steps
from infra.node.bootstrap.report import BootReport, file_sink
from infra.node.bootstrap.services import InitServices, Services
from infra.node.bootstrap.steps import STEPS
from infra.node.codec import from_json
from infra.node.model import Folders, Settings


def bootstrap(
    settings_file: Path, role: str, host: str | None, bucket: str, *, power_off: bool = False
) -> None:
    """Boot this machine, then stay with its services for its life, where no systemd does that.

    A failed boot leaves the machine as it is, for those who look why; it does not become a node.

    Args:
        host: None for a cloud's machine, which finds its name by itself.
        bucket: a folder, `s3://name` or `gs://name`.
        power_off: of a machine of the role `image` (`vm.baking`).

    Raises:
        SystemExit: with its status, when a machine of the role `image` has done its steps.
    """
    settings = from_json(Settings, json.loads(settings_file.read_text()))
    if role == "image":
        # Here and not above: no other machine needs anything of it.
        from infra.node.bootstrap.vm import baking

        raise SystemExit(baking.bake(settings, settings_file, str(host), bucket, power_off=power_off))
    folders = Folders(settings)
    services: Services
    if not folders.process:
        # Here and not above: no other machine needs anything of it.
        from infra.node.bootstrap.vm import machine

        machine.carry_on(settings, settings_file, role)
        host, sink, services = machine.begin(settings, host, bucket)
    else:
        host, sink, services = _on_this_host(settings, host, bucket)
    own = f"boot/{host}.json" if folders.process else "boot.json"
    report = BootReport(host, role, [file_sink(Path(str(folders.lib)) / own), sink])
    context = Context(settings, settings_file, role, host, folders, services, report)
    steps = [step for step in STEPS if step.taken_by(context)]
    if context.vm:
        from infra.node.bootstrap.vm import welcome

        welcome.around(context, lambda: run_steps(context, steps))
    else:
        run_steps(context, steps)
    services.keep()


def _on_this_host(
    settings: Settings, host: str | None, bucket: str
) -> tuple[str, Callable[[str], None], Services]:
    """What `vm.machine.begin` returns, for a process machine."""
    if host is None:
        raise SystemExit("a process machine is told its name (--host)")
    return host, file_sink(Path(bucket) / "boot" / f"{host}.json"), InitServices()
