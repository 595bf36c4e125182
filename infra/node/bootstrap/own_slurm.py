"""Slurm on machines with a root file system of their own: its files, and the daemons of each role."""

from __future__ import annotations

import os
import subprocess
import tempfile

from infra.node import ports
from infra.node.bootstrap import daemons, files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.registration import start_slurmd
from infra.node.bootstrap.services import Service
from infra.node.bootstrap.vm import clouds, welcome
from infra.node.slurm import version

PROGRAM = {"controller": "slurmctld", "login": "sinfo", "compute": "slurmd"}
"""Whose release decides how the role is configured."""
RECONFIGURE_SECONDS = 60.0
ENOUGH = "ClusterName=none\nSlurmctldHost=localhost\n"
"""The least that clients of Slurm's take for a configuration: without one they do not say their release."""


def slurm(context: Context) -> str:
    """Folders and configuration for the Slurm that is installed here.

    The controller renders the configuration. A login machine renders the same from the same settings: its
    clients need a file, since `sackd`, which would fetch it for them, comes with 23.11 only. A compute node
    renders nothing: its slurmd fetches the files from slurmctld at every start and follows `scontrol
    reconfigure`, so that a node which is up when the cluster grows knows the new ones too. For everybody
    else on the node they are where they are on the others.
    """
    folders, owner = context.folders, context.slurm_user
    release = _release(context)
    for path in (folders.run, folders.log, folders.lib):
        files.folder(context.path(path), 0o755, owner)
    etc = files.folder(context.path(folders.etc))
    if context.role == "compute":
        files.folder(context.path(folders.spool))
        files.link(context.path(folders.slurm_conf), str(folders.spool / "conf-cache" / "slurm.conf"))
        return f"{release}, configured by the controller"
    # Here and not above: a compute node renders nothing.
    from infra.node.elastic import programs
    from infra.node.slurm import conf
    from infra.node.slurm.configure import configure

    if context.role == "controller":
        # What users' jobs say and hold: scripts, environments, credentials.
        files.folder(context.path(folders.state), 0o700, owner)
        programs.write(context.settings, context.settings_file)
        files.folder(context.path(folders.lib / "requests"), 0o755, owner)
    tool = programs.write_tool(context.settings, context.settings_file)
    files.link(context.at("usr/local/bin/slurm-stacks"), str(tool))
    if context.role == "controller":
        configure(context.settings, release, files.place)
        return release
    for name, content in conf.render(context.settings, version.parse(release)).items():
        files.place(etc / name, content.encode())
    return release


def _release(context: Context) -> str:
    program = PROGRAM[context.role]
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
            conf.write(ENOUGH)
            conf.flush()
            env = {**os.environ, "SLURM_CONF": conf.name}
            done = subprocess.run([program, "-V"], env=env, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{program} is not installed on this machine") from None
    release = done.stdout.strip()
    context.report.content["facts"]["slurm"] = release
    return release


def ready(context: Context) -> str:
    """Start the role's daemons, the node's slurmd last."""
    owner = context.munge_user
    # Before slurmd: a job whose user is not known here fails.
    clouds.of(context.settings).people(context)
    # On a machine that boots again without having been off they still run, with an older configuration.
    for name in ("slurmd", "slurmctld", "elastic", "slurmdbd", "munged"):
        context.services.stop(name)
    run = files.folder(context.at("run/munge"), 0o755, owner)
    lib, log = (files.folder(context.at(f"var/{name}/munge"), 0o700, owner) for name in ("lib", "log"))
    daemons.munged(context, run, lib, log)
    said = ["munged"]
    if context.role == "controller":
        if context.settings.design.slurm.accounting:
            from infra.node.bootstrap import accounting

            said.append(accounting.start(context))
        if context.vm:
            from infra.node.bootstrap.vm import name_server

            said.append(name_server.start(context))
        daemons.see_port(context, context.settings.site.slurmctld_port)
        daemons.controller(context)
        # A head that boots again: nodes that are up fetch its files anew only when they are told to.
        context.run("scontrol", "reconfigure", timeout=RECONFIGURE_SECONDS, allow=(0, 1))
        said.append("slurmctld and the elastic daemon")
    if context.role == "compute":
        _slurmd(context)
        said.append("slurmd")
    if clouds.of(context.settings).watched(context):
        # Here and not above: it knows half of what the elastic daemon does, and few nodes have a use for it.
        from infra.node.bootstrap.vm import notices

        said.append(notices.start(context))
    welcome.complete(context)
    return f"started {', '.join(word for word in said if word)}"


def _slurmd(context: Context) -> None:
    site, folders, port = context.settings.site, context.folders, context.settings.site.slurmd_port
    log = context.path(folders.log)
    daemons.see_port(context, port)
    server = f"{site.controller_address}:{site.slurmctld_port}"
    # A container has the host's uptime: without -b its boot is older than the request, and the node stays
    # "powering up". A VM has booted since, and a slurmd that starts again on it has not rebooted.
    fresh = [] if context.settings.design.machines == "vm" else ["-b"]
    command = ("/usr/sbin/slurmd", "-D", *fresh, "-N", context.host, "--conf-server", server)
    release = version.parse(context.report.content["facts"]["slurm"])
    service = Service("slurmd", command, log / "slurmd.out")
    pid = start_slurmd(context.services, service, context.host, folders, release)
    daemons.wait("slurmd", lambda: not ports.free(port), log / "slurmd.out", pid)
