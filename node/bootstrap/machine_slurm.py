"""The steps `slurm` and `ready` of whole machines: Slurm's files, and the daemons of each role."""

from __future__ import annotations

import tempfile

from node import ports
from node.bootstrap import clock, daemons, files
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.registration import start_slurmd
from node.bootstrap.services import Service
from node.bootstrap.vm import clouds, motd, pyxis
from node.containers import oci
from node.health import programs as node_programs
from node.slurm import version

PROGRAM = {"controller": "slurmctld", "login": "sinfo", "compute": "slurmd"}
"""Role -> the program whose release decides how the role is configured."""
ENOUGH = "ClusterName=none\nSlurmctldHost=localhost\n"
"""The smallest configuration that Slurm's clients accept. Without one they do not print their release."""


def slurm(context: Context) -> str:
    """Makes the folders and the configuration for the installed release of Slurm.

    The controller renders the configuration. A login machine renders the same files from the same settings,
    because its clients need a file: `sackd`, which would fetch it, exists only from 23.11 on. A compute node
    renders nothing. Its slurmd fetches the files from slurmctld at every start and follows `scontrol
    reconfigure`, so that a running node learns about nodes that are added later. A link gives other programs
    on the node the files at their usual path.
    """
    folders, owner = context.folders, context.slurm_user
    release = _release(context)
    for path in (folders.run, folders.log, folders.lib):
        files.folder(context.path(path), 0o755, owner)
    etc = files.folder(context.path(folders.etc))
    pyxis.configure(context)
    if context.role == "compute":
        node_programs.write(context.settings, context.settings_file)
        files.folder(context.path(folders.spool))
        containers = context.settings.design.containers
        if containers is not None and containers.runtime == "oci":
            # As in /tmp, each user makes a folder there. It is in memory, so every boot makes it.
            files.folder(context.path(oci.state(context.settings)), 0o1777)
        files.link(context.path(folders.slurm_conf), str(folders.spool / "conf-cache" / "slurm.conf"))
        return f"{release}, configured by the controller"
    # Imported late, because a compute node renders nothing.
    from node.elastic import programs
    from node.slurm import conf
    from node.slurm.configure import configure

    if context.role == "controller":
        # The folder holds the scripts, environments and credentials of users' jobs.
        files.folder(context.path(folders.state), 0o700, owner)
        programs.write(context.settings, context.settings_file)
        files.folder(context.path(folders.lib / "requests"), 0o755, owner)
    tool = programs.write_tool(context.settings, context.settings_file)
    files.link(context.at("usr/local/bin/slurm-stacks"), str(tool))
    if context.role == "controller":
        configure(context.settings, release, files.write)
        return release
    for name, content in conf.render(context.settings, version.parse(release)).items():
        files.write(etc / name, content.encode())
    return release


def _release(context: Context) -> str:
    program = PROGRAM[context.role]
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
            conf.write(ENOUGH)
            conf.flush()
            release = context.run(program, "-V", env={"SLURM_CONF": conf.name}).strip()
    except CommandError as error:
        if error.status == 127:
            raise FileNotFoundError(str(error)) from None
        raise
    context.report.content["facts"]["slurm"] = release
    return release


def ready(context: Context) -> str:
    """Starts the role's daemons. A node's slurmd is the last."""
    clock.check(context)
    owner = context.munge_user
    # Users come before slurmd, because a job fails if its user is not known here.
    clouds.of(context.settings).prepare_users(context)
    # If the boot is repeated without a restart, the daemons still run with an older configuration.
    for name in ("slurmd", "slurmctld", "elastic", "slurmdbd", "munged"):
        context.services.stop(name)
    run = files.folder(context.at("run/munge"), 0o755, owner)
    lib, log = (files.folder(context.at(f"var/{name}/munge"), 0o700, owner) for name in ("lib", "log"))
    daemons.munged(context, run, lib, log)
    started = ["munged"]
    if context.role == "controller":
        if context.settings.design.slurm.accounting:
            from node.bootstrap import accounting

            started.append(accounting.start(context))
        if context.vm:
            from node.bootstrap.vm import name_server

            started.append(name_server.start(context))
        daemons.check_port(context, context.settings.site.slurmctld_port)
        daemons.controller(context)
        # If the controller boots again, running nodes fetch the new files only after this.
        if waits := daemons.reconfigure(context):
            context.report.content["facts"]["waits"] = waits
        started.append("slurmctld and the elastic daemon")
    if context.role == "compute":
        _slurmd(context)
        started.append("slurmd")
    if clouds.of(context.settings).watched(context):
        # Imported late, because it imports much of the elastic daemon, and few nodes need it.
        from node.bootstrap.vm import notices

        started.append(notices.start(context))
    motd.announce_ready(context)
    return f"started {', '.join(name for name in started if name)}"


def _slurmd(context: Context) -> None:
    site, folders, port = context.settings.site, context.folders, context.settings.site.slurmd_port
    log = context.path(folders.log)
    daemons.check_port(context, port)
    server = f"{site.controller_address}:{site.slurmctld_port}"
    # A container has the host's uptime. Without -b its boot would be older than the request, and the node
    # would stay "powering up". A VM has booted after the request, and must not report a boot when only its
    # slurmd restarts.
    fresh = [] if context.settings.design.isolation == "vm" else ["-b"]
    command = ("/usr/sbin/slurmd", "-D", *fresh, "-N", context.host, "--conf-server", server)
    release = version.parse(context.report.content["facts"]["slurm"])
    service = Service("slurmd", command, log / "slurmd.out")
    pid = start_slurmd(context.services, service, context.host, folders, release)
    daemons.wait("slurmd", lambda: not ports.free(port), log / "slurmd.out", pid)
