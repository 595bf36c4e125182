"""Boots a machine: runs the steps of its role with the settings of its cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.bootstrap.context import Context
from node.bootstrap.report import BootReport, file_sink, was_ready
from node.bootstrap.services import InitServices, Services
from node.bootstrap.step_runner import run_steps
from node.bootstrap.steps import STEPS
from node.design.folders import Folders
from node.design.published import read_settings


def bootstrap(
    settings_file: Path, role: str, host: str | None, bucket: str, *, power_off: bool = False
) -> None:
    """Boot this machine. Without systemd it then keeps the services running until the machine ends.

    After a failed boot the machine stays as it is, so that the failure can be examined. It does not become a
    node.

    Args:
        host: The machine's name. `None` means that a cloud's machine finds its name by itself.
        bucket: A folder, `s3://name` or `gs://name`.
        power_off: Whether a machine of the role `image` stops at its end (`vm.baking`).

    Raises:
        SystemExit: A machine of the role `image` has done its steps. The status says how they ended.
    """
    settings = read_settings(settings_file)
    if role == "image":
        # Imported late, because no other machine needs it.
        from node.bootstrap.vm import baking

        raise SystemExit(baking.bake(settings, settings_file, str(host), bucket, power_off=power_off))
    folders = Folders(settings)
    services: Services
    if not folders.process:
        # Imported late, because process machines do not need it.
        from node.bootstrap.vm import machine

        machine.update_programs(settings, settings_file, role)
        host, sink, services = machine.begin(settings, host, bucket)
    else:
        host, sink, services = _on_this_host(role, host, bucket)
    report_file = Path(str(folders.lib)) / (f"boot/{host}.json" if folders.process else "boot.json")
    sinks = [file_sink(report_file), sink]
    if role == "compute" and not folders.process:
        # Imported late, because no other machine needs it.
        from node.bootstrap import report_sender

        # It is before the bucket, which may be slow.
        sinks.insert(1, report_sender.sender(settings.site.controller_address))
    report = BootReport(host, role, sinks, was_ready=was_ready(report_file))
    context = Context(settings, settings_file, role, host, folders, services, report)
    steps = [step for step in STEPS if step.taken_by(context)]
    if context.vm:
        from node.bootstrap.vm import motd

        motd.boot_with_messages(context, lambda: run_steps(context, steps))
    else:
        run_steps(context, steps)
    services.keep()


def _on_this_host(role: str, host: str | None, bucket: str) -> tuple[str, Callable[[str], None], Services]:
    """Return what `vm.machine.begin` returns, for a process machine."""
    if host is None:
        raise SystemExit("a process machine needs its name (--host)")
    return (
        host,
        file_sink(Path(bucket) / "boot" / f"{host}.json"),
        InitServices(host if role == "compute" else None),
    )
