"""A local cluster: its cloud, what is published to it, its head, and the repair of all.

Every function is idempotent, because an interrupted `up` runs it again. Progress is on standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra import bundle, environments
from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters, locations
from infra.program.stack import Stack
from localcloud.isolation import read_isolation, write_isolation
from localcloud.machines import COMPUTE
from node.bootstrap.report import SENTENCES
from node.bootstrap.vm import state_guard
from node.design.directory import SECRET
from node.design.model import CONTAINER, PROCESS, ClusterDesign, Host, Settings, Site
from node.design.published import read_settings
from node.slurm.environment import without_slurm
from node.system import files, foreign
from node.system.codec import from_json
from operations import guard as guards
from operations import programs
from operations.access import TOOL
from operations.local import container_images, containers, machine_access, namespaces, system_packages
from operations.local.agent import (
    agent_answers,
    controller_is_dead,
    end_cluster,
    explain_wait,
    say,
    start_agent,
    tail,
)
from operations.local.benchmark import write_file
from operations.local.machines import end_removed_machines, is_this_cluster, machines, terminate
from operations.local.run_directory import RunDirectory, user
from operations.waiting import attempts

HEAD_START_SECONDS = 120.0
STATUS_SECONDS = 60.0
LOOK_SECONDS = 1.0
ENDED = ("ready", "failed")
"""The states of a boot that has come to its end."""


def cloud_up(stack: Stack, kind: str = PROCESS, cluster: str | None = None) -> dict[str, Any]:
    """Start the local cloud's agent and set its limits (a JSON object on standard input).

    Args:
        cluster: The cluster's name.

    Raises:
        UserError: Such machines cannot be made here, or the running cluster has other machines or another
            name.
    """
    limits = json.loads(sys.stdin.read() or "{}")
    containers.check_support(kind)
    run = RunDirectory.make(stack)
    if cluster is not None and (other := run.cluster) not in (None, cluster):
        raise UserError(
            f"cluster {other} of stack {stack.name} is up, and the stack file says {cluster}: that is "
            f"another cluster. `./cluster up --stack {stack.name} --replace` destroys {other}, its files "
            f"and its jobs, and makes {cluster}; with the old name in the stack file {other} goes on",
            EXIT_REFUSED,
            code="cluster.other-name",
        )
    if cluster is not None:
        run.cluster_file.write_text(cluster)
    if controller_is_dead(run):
        write_isolation(run.path, kind)
    elif (isolation := read_isolation(run.path)) != kind:
        raise UserError(
            f"the cluster's machines are of kind {isolation}, and the stack file says "
            f"{kind}: run `./cluster down --stack {stack.name}` first, then "
            f"`./cluster up --stack {stack.name}`",
            code="cluster.other-kind",
        )
    if kind == CONTAINER:
        (run.shared / user()).mkdir(exist_ok=True)
    start_agent(stack.project, run)
    _update_namespaces(stack, run, say)
    run.call("limits", **limits)
    return {"run": str(run.path)}


def look(stack: Stack) -> dict[str, Any]:
    """Return why a cluster cannot come up on this machine; the design is a JSON object on standard input."""
    return {"warnings": containers.support_warnings(from_json(ClusterDesign, json.loads(sys.stdin.read())))}


def _update_namespaces(stack: Stack, run: RunDirectory, say: Callable[[str], None]) -> None:
    """Find out what machines that start from now on have of their own. Containers have all of it."""
    if not run.containers:
        namespaces.update(run, stack, say)


def cloud_down(stack: Stack, cluster: str | None = None) -> dict[str, Any]:
    """End every machine and the agent, and remove the run directory. This works without an agent, too.

    Args:
        cluster: The name of the cluster to end; a running cluster of another name stays.
    """
    if is_this_cluster(run := RunDirectory.of(stack), cluster):
        end_cluster(run)
        # `list` must not show it any longer, also after a `pulumi destroy`. The next `up` notes it again.
        clusters.remove(locations.cluster_id(stack))
    return {}


def publish(stack: Stack) -> dict[str, Any]:
    """Write code and settings into the cluster's bucket; the design is a JSON object on standard input."""
    design = from_json(ClusterDesign, json.loads(sys.stdin.read()))
    if design.slurm.accounting and design.isolation == PROCESS:
        # `./cluster up` has installed them before; a direct `pulumi up` has not.
        system_packages.ensure(say, accounting=True)
    run = RunDirectory.make(stack)
    if run.containers:
        if problem := containers.state_problem(design):
            raise UserError(problem, EXIT_REFUSED, code="containers.not-possible")
        if design.backup is not None and not Path(design.backup.bucket).is_dir():
            raise UserError(
                f"controller.backup.bucket: there is no folder {design.backup.bucket} here: make it, best "
                "on another disk and with mode 700, or name another one",
                EXIT_REFUSED,
                code="backup.no-folder",
            )
        take_password(run, design, stack.project)
        layers = container_images.ensure_image(design, say)
        container_images.image_plan(design, layers).write(run.path)
    write_file(
        run.bucket / "loader.py", (environments.code_of(stack.project) / "node" / "loader.py").read_bytes()
    )
    settings = run.settings(design, lambda: _nodes_are_up(run))
    port = None if run.containers else _published_port(run)
    if port is not None and port != settings.site.slurmctld_port:
        _move(run, port, settings.site)
    content = _put(run, bundle.node_archive(design, stack.project), settings)
    return {name: content[name]["sha256"] for name in ("code", "settings")}


def take_password(run: RunDirectory, design: ClusterDesign, project: Path) -> None:
    """Put the password for the directory of users into the cluster's secret store, or remove it.

    Raises:
        UserError: Its file cannot be read, or others could read it.
    """
    directory = design.access.directory
    store = run.path / "secrets"
    if directory is None or directory.password_secret is None:
        (store / SECRET).unlink(missing_ok=True)
        return
    file = Path(directory.password_secret)
    try:
        mode, content = stat.S_IMODE(file.stat().st_mode), file.read_bytes()
    except OSError as error:
        why = str(error.strerror)
    else:
        inside = project.resolve() in file.resolve().parents
        why = "it lies in the project" if inside else "others may read it" if mode & 0o077 else ""
    if why:
        raise UserError(
            f"access.directory.password_secret: {file}: {why}: name a file outside of the project, with mode "
            "600, that has the password and nothing else",
            EXIT_REFUSED,
            code="directory.password-file",
        )
    store.mkdir(mode=0o700, exist_ok=True)
    files.write(store / SECRET, content, 0o600)


def _nodes_are_up(run: RunDirectory) -> bool:
    return bool(machines(run, {"role": "compute"}, "pending", "running"))


def _published_port(run: RunDirectory) -> int | None:
    """Return the port of slurmctld that is published, perhaps by another version; `None` if none is."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(foreign.record(run.bucket / run.current()["settings"]["key"])["site"]["slurmctld_port"])
    return None


def _move(run: RunDirectory, port: int, site: Site) -> None:
    """End the nodes of a cluster whose ports or addresses are other ones from now on.

    They would not find the controller, nor it them: jobs would seem to run, and be begun again when their
    nodes are given up.

    Args:
        port: slurmctld's former port.
    """
    print(
        f"another program has taken a port of the cluster ({port} and following), or "
        f"another cluster its addresses: it moves to {site.slurmctld_port} and following; jobs on "
        "nodes that are up are queued again",
        file=sys.stderr,
    )
    terminate(run, "compute")


def _put(run: RunDirectory, code: bytes, settings: Settings) -> dict[str, Any]:
    """Write both objects, and then the file that names them."""
    text = bundle.settings_object(settings)
    content = bundle.current(code, text)
    for entry, blob in ((content["code"], code), (content["settings"], text)):
        write_file(run.bucket / entry["key"], blob)
    write_file(run.bucket / "current.json", json.dumps(content, indent=1).encode())
    return content


def head_up(stack: Stack) -> dict[str, Any]:
    """Start a controller with the published code and settings. A change restarts it; its jobs go on."""
    run = RunDirectory.of(stack)
    settings, revision = _published(run)
    start_agent(stack.project, run)
    head = settings.design.controller()
    end_removed_machines(run, settings, revision)
    settings, revision = _ensure_machine(run, head, settings, revision)
    # Login machines boot at the same time as the controller, and wait for its key.
    login = [host for host in settings.design.hosts if host.role == "login"]
    for host in login:
        _ensure_machine(run, host, settings, revision)
    for host in (head, *login):
        _wait_for_boot(run, host)
    site = settings.site
    facts = {
        "id": run.path.name,
        "login_ssh": shlex.join([str(bundle.ROOT / "cluster"), "ssh", "--outputs", str(run.outputs)]),
        "login": settings.design.login_hosts()[0].name if run.containers else site.controller_address,
        "controller": f"{site.controller_address}:{site.slurmctld_port}",
        "scheduler_version": run.report(head.name)["facts"]["slurm"],
        "shared": site.shared,
    }
    _write_outputs(run, settings.design, facts)
    return facts


def _write_outputs(run: RunDirectory, design: ClusterDesign, facts: Mapping[str, str]) -> None:
    """Write the `cluster` output for `./cluster --outputs`, which needs no stack file and no engine.

    The engine's own output also has the benchmark.
    """
    # A repair runs outside of the engine, and leaves the file as it is.
    if (cluster_id := os.environ.get("CLUSTER_ID")) is None:
        return
    # Imported here, because few heads need it.
    from infra.outputs.publish import Deployed, build

    deployed = Deployed(
        id=cluster_id,
        login_address=facts["login"],
        login_machine=facts["id"],
        login_ssh=facts["login_ssh"],
        controller_address=facts["controller"],
        scheduler_version=facts["scheduler_version"],
        shared=facts["shared"],
    )
    write_file(run.outputs, json.dumps(build(design, deployed), indent=1).encode())


def _ensure_machine(run: RunDirectory, host: Host, settings: Settings, revision: str) -> tuple[Settings, str]:
    """Launch a machine of the head with this revision, unless it runs already. It may still boot.

    Returns:
        The settings and the revision that it runs: if another program has taken the controller's port, these
        are new ones.
    """
    tags = {"cluster": settings.design.name, "role": host.role}
    every = machines(run, tags, "pending", "running", "stopping")
    present = [m for m in every if m["node"] == host.name]
    keep = [m for m in present if m["tags"].get("revision") == revision and m["state"] != "stopping"]
    if not keep or run.report(host.name).get("state") == "failed":
        if present:
            jobs = "; jobs go on" if host.role == "controller" else ""
            print(f"restarting {host.name} with the new settings{jobs}", file=sys.stderr)
            with explain_wait(f"the daemons of {host.name} are ending"):
                run.call("terminate", 60.0, ids=[m["id"] for m in present])
        if host.role == "controller":
            settings, revision = _with_free_ports(run)
        run.boot_report(host.name).unlink(missing_ok=True)
        run.call(
            "launch",
            60.0,
            token=f"{host.name}-{secrets.token_hex(8)}",
            names={host.name: f"{settings.design.name}-{host.name}"},
            min_count=1,
            machine=host.instance_type,
            tags={**tags, "revision": revision},
        )
    return settings, revision


def repair(stack: Stack, say: Callable[[str], None]) -> None:
    """Restart the dead parts of a cluster. The engine would not notice them.

    Raises:
        UserError: That is not possible; the message says what to do.
    """
    run = RunDirectory.of(stack)
    needed = ["bucket/current.json", "bucket/loader.py"]
    if not run.containers:
        needed += ["code/current/bin/slurm-stacks", "etc/slurm.conf"]
    if gone := [str(run.path / file) for file in needed if not (run.path / file).exists()]:
        raise UserError(
            f"a part of the running cluster is gone: {', '.join(gone)}. Somebody removed it; "
            f"`./cluster down --stack {stack.name}` and then `./cluster up --stack {stack.name}` make a new "
            "cluster.",
            code="cluster.part-gone",
        )
    if not agent_answers(run):
        say("the local cloud's agent has ended: it is started again")
        start_agent(stack.project, run)
    _update_namespaces(stack, run, say)
    if controller_is_dead(run):
        say("the controller has ended: it is started again, with its queue")
        head_up(stack)
    elif _has_lost_its_disk(run):
        say("the controller has lost the disk with Slurm's state: it is ended, and another one takes over")
        terminate(run, "controller")
        head_up(stack)
    elif run.report("controller").get("state") != "ready":
        say("the boot of the controller is not over: waiting for it")
        head_up(stack)
    elif gone := _gone_login(run):
        say(f"{', '.join(gone)} has ended: it is started again")
        head_up(stack)


def _has_lost_its_disk(run: RunDirectory) -> bool:
    """Return whether the controller runs, but has lost the disk with Slurm's state, and so stopped Slurm."""
    pid = machine_access.controller(run) if run.containers else None
    return pid is not None and state_guard.lost(Path(f"/proc/{pid}/root/run/slurm-stacks/state.json"))


def _gone_login(run: RunDirectory) -> list[str]:
    """Return the names of login machines that the cluster should have but that do not run."""
    settings, _ = _published(run)
    wanted = [host.name for host in settings.design.hosts if host.role == "login"]
    present = {m["node"] for m in machines(run, {"role": "login"}, "pending", "running")} if wanted else set()
    return [name for name in wanted if name not in present]


def _published(run: RunDirectory) -> tuple[Settings, str]:
    """Return the published settings, and the name of this pair of code and settings."""
    current = run.current()
    settings = read_settings(run.bucket / current["settings"]["key"])
    return settings, f"{current['code']['sha256'][:16]}-{current['settings']['sha256'][:16]}"


def _with_free_ports(run: RunDirectory) -> tuple[Settings, str]:
    """Return what is published, with new ports and addresses if another program has taken some."""
    settings, revision = _published(run)
    if run.containers:
        return settings, revision
    old, moved = settings.site, run.settings(settings.design)
    # A cluster without addresses of its own has none that another could have taken.
    keeps_addresses = old.first_address in (None, moved.site.first_address)
    if not keeps_addresses or moved.site.slurmctld_port != old.slurmctld_port:
        _move(run, old.slurmctld_port, moved.site)
    elif (old.slurmdbd_port, old.cloud) == (moved.site.slurmdbd_port, moved.site.cloud):
        return settings, revision
    current = run.current()
    _put(run, (run.bucket / current["code"]["key"]).read_bytes(), moved)
    return _published(run)


def guard(stack: Stack) -> dict[str, Any]:
    """Fail if the cluster has jobs, or does not answer. Without a controller none can run."""
    run = RunDirectory.of(stack)
    if machine_access.is_up(run) and not controller_is_dead(run):
        guards.check(lambda: _status(run))
    return {}


def _status(run: RunDirectory) -> str:
    command = machine_access.command(run, [TOOL, "status"])
    env = without_slurm(os.environ) | command.env
    done = programs.capture(command.argv, env=env, seconds=STATUS_SECONDS)
    if done.failed:
        raise UserError(done.err.strip() or f"status {done.status}", code="tool.failed")
    return done.out


def head_down(stack: Stack, cluster: str | None = None) -> dict[str, Any]:
    """End the controller, so that nobody launches machines any more, and the login machines."""
    if is_this_cluster(run := RunDirectory.of(stack), cluster):
        terminate(run, "controller")
        terminate(run, "login")
    return {}


def terminate_nodes(stack: Stack, cluster: str | None = None) -> dict[str, Any]:
    """End every compute machine by its tags, without the controller."""
    run = RunDirectory.of(stack)
    return {"terminated": terminate(run, COMPUTE) if is_this_cluster(run, cluster) else 0}


def _wait_for_boot(run: RunDirectory, host: Host) -> None:
    """Wait until a machine of the head has booted, and print its steps meanwhile.

    Raises:
        UserError: The boot failed or takes too long, or the machine has ended.
    """
    log, tags = run.boot_log(host.name), {"role": host.role, "node": host.name}
    shown = ""
    looked = time.monotonic()
    for _ in attempts(HEAD_START_SECONDS, 0.02):
        report = run.report(host.name)
        step = report["steps"][-1]["name"] if report.get("steps") else ""
        if step != shown:
            shown = step
            say(f"{host.name}: {step}")
        if report.get("state") in ENDED:
            break
        if time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            present = machines(run, tags, "pending", "running")
            # Its last report may be newer than `report`.
            if not present and run.report(host.name).get("state") not in ENDED:
                raise UserError(
                    f"the {host.name} ended during its boot; the end of {log}:\n{tail(log)}",
                    code="boot.ended",
                )
    else:
        raise UserError(
            f"waited {HEAD_START_SECONDS:g} s for the {host.name}'s boot (its output: {log})",
            code="boot.late",
        )
    if report["state"] == "failed":
        step = report["steps"][-1]
        raise UserError(
            f"the {host.name}'s boot failed at step {step['name']!r}: {step['note']}\n"
            + "\n".join(f"  {line}" for line in step.get("tail", []))
            + f"\nIts logs are in {run.path}/log; fix the cause and run up again.",
            code="boot.step-failed",
        )
    for key in SENTENCES:
        if sentence := report["facts"].get(key):
            say(f"{host.name}: {sentence}")
