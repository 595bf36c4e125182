"""The steps of whole machines: a cloud's machines, and containers on the local stack."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from node.bootstrap import clock, daemons, key_server, report_server
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.bootstrap.slurmd import start_slurmd
from node.bootstrap.vm import (
    clouds,
    cluster_users,
    directory,
    host_keys,
    login_enrolment,
    motd,
    nfs_guard,
    pyxis,
    resolver,
)
from node.bootstrap.vm import mounts as mount_kinds
from node.bootstrap.vm import users as login_users
from node.design.storage import Mount
from node.health import programs as node_programs
from node.slurm import container_conf, version
from node.system import accounts, files, ports, waiting

KEY_SECONDS = {"login": 750.0, "compute": 110.0}
"""Role -> how long a machine waits for the key. This is less than the step's limit, so that the error can
give the cause.

A login machine is made together with the controller, which may have to wait until it may read the key. A node
is made much later."""
KEY_PAUSE_SECONDS = 1.0
KEY_FOUND = "took the cluster's munge key"
NEW_MODE = 0o755
"""The mode of the root folder of a new file system."""
SCRATCH = "scratch"
"""The key below `storage` in the stack file of the one file system that every user may write to."""


def users(context: Context) -> str:
    """Make the users of Slurm and munge."""
    if os.geteuid() != 0:
        raise PermissionError("the boot of a whole machine must run as root")
    user = context.settings.site.user
    wanted = (user, "munge")
    users_made = [user for user in wanted if _make_user(context, user)]
    return f"made {' and '.join(users_made)}" if users_made else f"{' and '.join(wanted)} are there"


def _make_user(context: Context, user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        pass
    else:
        return False
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    command += [
        "--shell",
        "/usr/sbin/nologin",
        *(["--uid", str(accounts.IDS[user])] if user in accounts.IDS else []),
        user,
    ]
    context.run(*command)
    return True


def hosts(context: Context) -> str:
    """Set the machine's name, and the names of the machines that it must find."""
    files.write(context.at("etc/hostname"), f"{context.host}\n".encode())
    if socket.gethostname() != context.host:
        socket.sethostname(context.host)
    return resolver.configure(context)


def secrets(context: Context) -> str:
    """Get the munge key: the controller from the secret store, all other machines from the controller.

    The controller of a new cluster makes the key. A key that is only on this machine is replaced, because the
    distribution's package makes one at its installation that no other machine has.
    """
    controller = context.role == "controller"
    if not controller or context.settings.design.state() is None:
        # Else they are on the disk with the state, which the next step mounts.
        context.report.content["host_keys"] = host_keys.host_keys(context)
    key, note = _key_of_the_cluster(context) if controller else (_key_from_controller(context), KEY_FOUND)
    path = context.path(context.folders.munge_key)
    files.folder(path.parent, 0o700, context.munge_user)
    files.write(path, key, 0o400, context.munge_user)
    if controller:
        _serve(context, path, directory.take_from_store(context))
    return note


def _serve(context: Context, key: Path, password: Path | None) -> None:
    """Start what serves the other machines from now on: the key, and the place for their boot reports."""
    python, code, log = context.settings.site.python, context.folders.code, context.path(context.folders.log)
    reports = report_server.folder(context.folders)
    for service in (
        key_server.service(python, code, key, log / "keys.log", password),
        report_server.service(python, code, reports, context.slurm_user, log / "reports.log"),
    ):
        context.services.stop(service.name)
        context.services.start(service)


def _key_of_the_cluster(context: Context) -> tuple[bytes, str]:
    name = context.settings.site.secret
    if not name:
        raise ValueError(
            "the settings name no secret for the munge key (site.secret): publish them again with `up`"
        )
    secret = clouds.of(context.settings).secret(name)
    if (key := secret.get()) is not None:
        return key, KEY_FOUND
    key = os.urandom(key_server.KEY_BYTES)
    secret.put(key)
    return key, "made the munge key"


def _key_from_controller(context: Context) -> bytes:
    longest = KEY_SECONDS[context.role]
    pauses = waiting.pauses_for(longest, KEY_PAUSE_SECONDS)
    address = context.settings.site.controller_address
    needs_password = directory.needs_password(context)

    def fetch() -> key_server.Given:
        given = key_server.fetch(address)
        if needs_password and not given.password:
            raise key_server.KeyUnavailableError(f"{address}: has no password for the directory of users yet")
        return given

    try:
        given = waiting.retry(fetch, key_server.KeyUnavailableError, pauses)
    except key_server.KeyUnavailableError as error:
        raise TimeoutError(
            f"the controller has given no munge key for {longest:g} s ({error}): see what its boot came to "
            f"(./cluster logs --stack {context.settings.design.stack} controller)"
        ) from error
    clock.remember(context, given.time)
    if needs_password:
        directory.keep(context, given.password)
    return given.key


def mounts(context: Context) -> str:
    """Mount the file systems of this role. A mount that exists already stays."""
    mine, kinds = context.mounts(), mount_kinds.kinds(context)
    nfs_guard.install_nfs_guard(context)
    for mount in mine:
        if mount.kind not in kinds:
            raise ValueError(
                f"{mount.path}: storage of kind {mount.kind} is not on this provider "
                f"(there is: {', '.join(kinds)})"
            )
        kinds[mount.kind](context, mount)
    if context.vm and not any(mount.kind == "nvme" for mount in mine):
        mount_kinds.tmp_on_disk(context)
    site = context.settings.site
    for folder in (site.shared, site.apps):
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"{folder}: no such folder, and nothing is mounted there")
    if context.role == "controller":
        _check_writable(context, mine)
        # As in /tmp, every user may create a benchmark's folder, but not remove another user's.
        files.folder(Path(site.shared) / "bench", 0o1777)
        _open_scratch(context, mine)
    mount_kinds.export(context)
    cluster_users.prepare(context)
    directory.prepare(context)
    if context.role == "controller":
        login_users.prepare(context)
    if context.has_users:
        login_users.configure_ssh(context)
    return " and ".join(mount.path for mount in mine) or "nothing to mount"


def _check_writable(context: Context, mounts: Sequence[Mount]) -> None:
    """Check that root may write to existing file systems in which it makes environments and keys.

    Raises:
        PermissionError: A file server maps root to a user who may not write.
    """
    site = context.settings.site
    for mount in mounts:
        folder = context.at(mount.path.lstrip("/"))
        if mount.existing is None or not {str(folder), mount.path} & {site.shared, site.apps}:
            continue
        trial = folder / f".slurm-stacks-{context.host}"
        try:
            trial.touch()
            trial.unlink()
        except PermissionError as error:
            raise PermissionError(
                f"{mount.path}: root of this machine may not write there, and makes environments and keys "
                f"there: export {mount.existing} to this network with no_root_squash ({error})"
            ) from error


def _open_scratch(context: Context, mounts: Sequence[Mount]) -> None:
    """Give the shared scratch of the stack file the mode of /tmp, so that every user can write there.

    A new file system belongs to root only. A file system whose owner or mode was changed keeps both.
    """
    for mount in mounts:
        # Who may write to somebody's own file system is the owner's decision.
        if mount.name != SCRATCH or mount.existing is not None:
            continue
        folder = context.at(mount.path.lstrip("/"))
        status = folder.stat()
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == NEW_MODE:
            folder.chmod(0o1777)


PROGRAM = {"controller": "slurmctld", "login": "sinfo", "compute": "slurmd"}
"""Role -> the program whose release decides how the role is configured."""
ENOUGH = "ClusterName=none\nSlurmctldHost=localhost\n"
"""The smallest configuration that Slurm's clients accept. Without one they do not print their release."""


def slurm(context: Context) -> str:
    """Make the folders and the configuration for the installed release of Slurm.

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
            files.folder(context.path(container_conf.oci_state(context.settings)), 0o1777)
        files.link(context.path(folders.slurm_conf), str(folders.spool / "conf-cache" / "slurm.conf"))
        return f"{release}, configured by the controller"
    # Imported late, because a compute node renders nothing.
    from node.elastic import programs
    from node.slurm import conf, in_force
    from node.slurm.configure import configure

    if context.role == "controller":
        # The folder holds the scripts, environments and credentials of users' jobs.
        files.folder(context.path(folders.state), 0o700, owner)
        programs.write(context.settings, context.settings_file)
        for path in (folders.elastic, folders.elastic / "requests"):
            files.folder(context.path(path), 0o755, owner)
    is_controller = context.role == "controller"
    tool = programs.write_tool(context.settings, context.settings_file, here=is_controller)
    files.link(context.at("usr/local/bin/slurm-stacks"), str(tool))
    if context.role == "controller":
        daemons.record_changes(context)
        context.report.content["facts"] |= configure(context.settings, release, files.write).facts()
        return release
    has_epilog = not version.cleans_up_requeued_jobs(release)
    rendered = conf.render(context.settings, version.parse(release), has_epilog=has_epilog)
    if not _is_readable(context, rendered):
        # The controller has refused them, too, and `up` has its words.
        plain = in_force.NOTHING.put_in(context.settings)
        rendered = conf.render(plain, version.parse(release), has_epilog=has_epilog)
    for name, content in rendered.items():
        files.write(etc / name, content.encode())
    return release


def _is_readable(context: Context, rendered: Mapping[str, str]) -> bool:
    """Return whether Slurm's clients can read slurm.conf, which only the stack file's own options prevent."""
    from node.slurm import in_force

    if in_force.Given.of(context.settings) == in_force.NOTHING:
        return True
    with tempfile.TemporaryDirectory() as name:
        for file, content in rendered.items():
            (Path(name) / file).write_text(content)
        try:
            # It reads the file, and asks nobody.
            context.slurm("scontrol", "show", "hostnames", "node-1", conf=f"{name}/slurm.conf")
        except CommandError:
            return False
    return True


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
    """Start the role's daemons. A node's slurmd is the last."""
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
    started: list[str | None] = ["munged"]
    if context.role == "controller":
        # Imported late, because no node needs it.
        from node.backup import restore_boot, timer
        from node.slurm.control import Control

        if context.settings.design.state() is not None:
            from node.bootstrap.vm import kept_state

            kept_state.check_held(context)
        if (note := restore_boot.put_in_place(context)) is not None:
            started.append(note)
        if context.settings.design.slurm.accounting:
            from node.bootstrap import accounting

            started.append(accounting.start(context, restore_boot.take_database))
        if context.vm:
            from node.bootstrap.vm import name_server

            started.append(name_server.start_name_server(context))
        restore_boot.note_in_place(context)
        daemons.check_port(context, context.settings.site.slurmctld_port)
        daemons.controller(context)
        if context.settings.design.slurm.accounting:
            from node.accounting import apply, enrolment

            enrolment.enrol_queued(context)
            apply.finish(context)
        if (note := restore_boot.finish(context, Control(context.folders.slurm_conf))) is not None:
            context.report.content["facts"]["restore"] = note
        started.append(timer.set_timer(context))
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
    if context.role in ("controller", "login"):
        login_enrolment.prepare(context)
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
