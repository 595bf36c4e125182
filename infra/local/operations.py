"""What the local stack's commands run, on this machine: `python -m infra.local.operations VERB --stack S`.

Every verb is idempotent: an interrupted `up` runs it again. The result is on standard output, and stays the
same for the same cluster; what it waits for is on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from infra import bundle, trouble
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.hints import hint
from infra.local import image, names, packages, possible
from infra.local.benchmark import cancel, environment, place, stage, tool
from infra.local.cloud import kind
from infra.local.cloud.limits import COMPUTE
from infra.local.cloud.machines import of_cluster
from infra.local.ending import end_former, is_here, machines, terminate
from infra.local.site import RunDirectory, user
from infra.local.upkeep import (
    agent_answers,
    end_cluster,
    end_hung_agent,
    fallen,
    saying,
    start_agent,
    tail,
)
from infra.node import rpc
from infra.node.codec import from_json
from infra.node.model import ClusterDesign, Host, Settings
from infra.node.processes import CALLER_VARIABLE, end_with_parent

HEAD_START_SECONDS = 120.0
LOOK_SECONDS = 1.0


def cloud_up(
    project: Path, stack: str, machines: str = kind.PROCESS, cluster: str | None = None
) -> dict[str, Any]:
    """Start the local cloud's agent and set its limits (a JSON object on standard input).

    Args:
        cluster: the cluster's name.

    Raises:
        UserError: such machines cannot be made here, or the cluster that is up has others, or another name.
    """
    limits = json.loads(sys.stdin.read() or "{}")
    possible.check(machines)
    run = RunDirectory.make(project, stack)
    if cluster is not None and (other := run.cluster) not in (None, cluster):
        raise UserError(
            f"cluster {other} of stack {stack} is up, and the stack file says {cluster}: that is another "
            f"cluster. `./cluster up --stack {stack} --replace` destroys {other}, its files and its jobs, "
            f"and makes {cluster}; with the old name in the stack file {other} goes on",
            EXIT_REFUSED,
        )
    if cluster is not None:
        run.cluster_file.write_text(cluster)
    if fallen(run):
        kind.write(run.path, machines)
    elif kind.read(run.path) != machines:
        raise UserError(
            f"the cluster's machines are of kind {kind.read(run.path)}, and the stack file says {machines}: "
            f"run `./cluster down --stack {stack}` first, then `./cluster up --stack {stack}`"
        )
    if machines == kind.CONTAINER:
        (run.shared / user()).mkdir(exist_ok=True)
    start_agent(project, run)
    _settle_names(run, lambda text: print(text, file=sys.stderr, flush=True))
    rpc.call(str(run.agent_socket), "limits", **limits)
    return {"run": str(run.path)}


def _settle_names(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Whether machines that start from now on know each other by name. Containers always do."""
    if not run.containers:
        names.settle(run, say)


def cloud_down(project: Path, stack: str, cluster: str | None = None) -> dict[str, Any]:
    """End every machine and the agent, and remove the run directory. Works with the agent dead, too.

    Args:
        cluster: the name of the cluster that is to go; another one that is up stays.
    """
    if is_here(run := RunDirectory.of(project, stack), cluster):
        end_cluster(run)
    return {}


def publish(project: Path, stack: str) -> dict[str, Any]:
    """Put code and settings into the cluster's bucket; the design is a JSON object on standard input."""
    design = from_json(ClusterDesign, json.loads(sys.stdin.read()))
    if design.slurm.accounting and design.machines == kind.PROCESS:
        # `./cluster up` has done it by now; whoever calls the engine itself has not.
        packages.ensure(lambda text: print(text, file=sys.stderr, flush=True), accounting=True)
    run = RunDirectory.make(project, stack)
    if run.containers:
        layers = image.have(design, lambda text: print(text, file=sys.stderr, flush=True))
        image.plan(layers).write(run.path)
    place(run.bucket / "loader.py", (project / "infra" / "node" / "loader.py").read_bytes())
    content = _put(run, bundle.node_archive(design, project), run.settings(design))
    return {name: content[name]["sha256"] for name in ("code", "settings")}


def _put(run: RunDirectory, code: bytes, settings: Settings) -> dict[str, Any]:
    """Both objects, and last the file that names them."""
    text = bundle.settings_object(settings)
    content = bundle.current(code, text)
    for entry, blob in ((content["code"], code), (content["settings"], text)):
        place(run.bucket / entry["key"], blob)
    place(run.bucket / "current.json", json.dumps(content, indent=1).encode())
    return content


def head_up(project: Path, stack: str) -> dict[str, Any]:
    """Have a controller that runs what is published; a change restarts it with its state and jobs kept."""
    run = RunDirectory.of(project, stack)
    settings, revision = _published(run)
    start_agent(project, run)
    head = settings.design.controller()
    end_former(run, settings, revision)
    settings, revision = _have(run, head, settings, revision)
    # They boot while the controller does, and wait for its key.
    login = [host for host in settings.design.hosts if host.role == "login"]
    for host in login:
        _have(run, host, settings, revision)
    for host in (head, *login):
        _wait_for_boot(_report(run, host.name), run, host)
    site = settings.site
    report = _report(run, head.name)
    return {
        "login": settings.design.login_hosts()[0].name if run.containers else site.controller_address,
        "controller": f"{site.controller_address}:{site.slurmctld_port}",
        "scheduler_version": json.loads(report.read_text())["facts"]["slurm"],
        "shared": site.shared,
    }


def _have(run: RunDirectory, host: Host, settings: Settings, revision: str) -> tuple[Settings, str]:
    """Have a machine of the head's that runs this revision; it may still boot.

    Returns:
        What it runs: a controller whose port was taken meanwhile has another one.
    """
    tags = {"cluster": settings.design.name, "role": host.role}
    report = _report(run, host.name)
    every = machines(run, tags, "pending", "running", "stopping")
    there = [m for m in every if m["node"] == host.name]
    keep = [m for m in there if m["tags"].get("revision") == revision and m["state"] != "stopping"]
    if not keep or _state(report) == "failed":
        if there:
            jobs = "; jobs go on" if host.role == "controller" else ""
            print(f"restarting the {host.name} with the new settings{jobs}", file=sys.stderr)
            with saying(f"the {host.name}'s daemons are ending"):
                rpc.call(str(run.agent_socket), "terminate", 60.0, ids=[m["id"] for m in there])
        if host.role == "controller":
            settings, revision = _with_free_ports(run)
        report.unlink(missing_ok=True)
        rpc.call(
            str(run.agent_socket),
            "launch",
            60.0,
            token=f"{host.name}-{secrets.token_hex(8)}",
            names={host.name: f"{settings.design.name}-{host.name}"},
            min_count=1,
            machine=host.machine,
            tags={**tags, "revision": revision},
        )
    return settings, revision


def _report(run: RunDirectory, host: str) -> Path:
    return run.bucket / "boot" / f"{host}.json"


def mend(project: Path, stack: str, say: Callable[[str], None]) -> None:
    """Start again what has died of a cluster that was brought up: nothing else would notice.

    Raises:
        UserError: that is not possible; the message says what is.
    """
    run = RunDirectory.of(project, stack)
    needed = ["bucket/current.json", "bucket/loader.py"]
    if not run.containers:
        needed += ["code/current/bin/slurm-stacks", "etc/slurm.conf"]
    if gone := [str(run.path / file) for file in needed if not (run.path / file).exists()]:
        raise UserError(
            f"a part of the running cluster is gone: {', '.join(gone)}. Somebody removed it; "
            f"`./cluster down --stack {stack}` and then `./cluster up --stack {stack}` make it anew."
        )
    if not run.containers and not (run.cloud / "view.py").exists():
        # An agent of a version that knew no names. Machines outlive it.
        end_hung_agent(run)
    if not agent_answers(run):
        say("the local cloud's agent has ended: it is started again")
        start_agent(project, run)
    _settle_names(run, say)
    if fallen(run):
        say("the controller has ended: it is started again, with its queue")
        head_up(project, stack)
    elif gone := _gone_login(run):
        say(f"{', '.join(gone)} has ended: it is made anew")
        head_up(project, stack)


def _gone_login(run: RunDirectory) -> list[str]:
    """Login machines that the cluster should have, and has not."""
    settings, _ = _published(run)
    wanted = [host.name for host in settings.design.hosts if host.role == "login"]
    there = {m["node"] for m in machines(run, {"role": "login"}, "pending", "running")} if wanted else set()
    return [name for name in wanted if name not in there]


def _published(run: RunDirectory) -> tuple[Settings, str]:
    """The settings in the cluster's bucket, and the name of this pair of code and settings."""
    current = json.loads((run.bucket / "current.json").read_text())
    settings = from_json(Settings, json.loads((run.bucket / current["settings"]["key"]).read_text()))
    return settings, f"{current['code']['sha256'][:16]}-{current['settings']['sha256'][:16]}"


def _with_free_ports(run: RunDirectory) -> tuple[Settings, str]:
    """What is published, with other ports and addresses where another program has taken some meanwhile."""
    settings, revision = _published(run)
    if run.containers:
        return settings, revision
    old, moved = settings.site, run.settings(settings.design)
    # Without addresses it is a cluster of an earlier version, whose code would not know them.
    ours = old.first_address in (None, moved.site.first_address)
    if not ours or moved.site.slurmctld_port != old.slurmctld_port:
        print(
            f"another program has taken a port of the cluster's ({old.slurmctld_port} and following), or "
            f"another cluster its addresses: it moves to {moved.site.slurmctld_port} and following; jobs on "
            "nodes that are up are queued again",
            file=sys.stderr,
        )
        terminate(run, "compute")
    elif old.slurmdbd_port == moved.site.slurmdbd_port:
        return settings, revision
    current = json.loads((run.bucket / "current.json").read_text())
    _put(run, (run.bucket / current["code"]["key"]).read_bytes(), moved)
    return _published(run)


def head_down(project: Path, stack: str, cluster: str | None = None) -> dict[str, Any]:
    """End the controller, from here on nobody launches machines, and where people log in."""
    if is_here(run := RunDirectory.of(project, stack), cluster):
        terminate(run, "controller")
        terminate(run, "login")
    return {}


def sweep(project: Path, stack: str, cluster: str | None = None) -> dict[str, Any]:
    """End every compute machine, by its tags and without the controller's help."""
    run = RunDirectory.of(project, stack)
    return {"terminated": terminate(run, COMPUTE) if is_here(run, cluster) else 0}


def processes(run: RunDirectory) -> list[int]:
    """Pids of everything that belongs to the cluster (the agent, machines, daemons, jobs), deepest last."""
    return of_cluster(run.path)


def _wait_for_boot(report: Path, run: RunDirectory, host: Host) -> None:
    log = run.boot_log(host.name)
    tags = {"role": host.role, "node": host.name}
    shown: str = ""
    looked = time.monotonic()

    def settled() -> bool:
        nonlocal shown, looked
        content: dict[str, Any] = {"steps": [], "state": "booting"}
        if report.exists():
            content = json.loads(report.read_text())
        step = content["steps"][-1]["name"] if content["steps"] else ""
        if step != shown:
            shown = step
            print(f"{host.name}: {step}", file=sys.stderr, flush=True)
        if time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            there = machines(run, tags, "pending", "running")
            if not there and _state(report) not in ("ready", "failed"):
                raise UserError(f"the {host.name} ended during its boot; the end of {log}:\n{tail(log)}")
        return content["state"] in ("ready", "failed")

    _wait(f"the {host.name}'s boot (its output: {log})", settled, HEAD_START_SECONDS)
    if _state(report) == "failed":
        step = json.loads(report.read_text())["steps"][-1]
        raise UserError(
            f"the {host.name}'s boot failed at step {step['name']!r}: {step['note']}\n"
            + "\n".join(f"  {line}" for line in step.get("tail", []))
            + f"\nIts logs are in {run.path}/log; mend the cause and run up again."
        )


def _state(report: Path) -> str:
    return str(json.loads(report.read_text())["state"]) if report.exists() else "absent"


def _wait(what: str, there: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise UserError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)


VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "cloud-up": cloud_up,
    "cloud-down": cloud_down,
    "publish": publish,
    "head-up": head_up,
    "head-down": head_down,
    "sweep": sweep,
    "stage": stage,
    "environment": environment,
}
PASSING: dict[str, Callable[[Path, str, list[str]], int]] = {"tool": tool, "cancel": cancel}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=[*VERBS, *PASSING])
    parser.add_argument("--stack", required=True)
    parser.add_argument("--machines", help="cloud-up: process | container")
    parser.add_argument("--cluster", help="the cluster's name; another one that is up is left alone")
    options, rest = parser.parse_known_args()
    project = Path(os.environ.get("SLURM_STACKS_PROJECT", ".")).resolve()
    # munge refuses folders that others may write, and so does good sense: what lies here is executed.
    os.umask(os.umask(0o022) | 0o022)
    try:
        if options.verb in PASSING:
            return PASSING[options.verb](project, options.stack, [r for r in rest if r != "--"])
        given = {name: value for name in ("machines", "cluster") if (value := getattr(options, name))}
        print(json.dumps(VERBS[options.verb](project, options.stack, **given)))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except rpc.RpcUnavailableError as error:
        print(
            f"the local cloud's agent does not answer ({error}); run `{hint('up', options.stack)}` again",
            file=sys.stderr,
        )
        return 1
    except rpc.RpcError as error:
        print(f"the local cloud refused: {error} ({error.code})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        explained = trouble.explain(error)
        print(explained, file=sys.stderr)
        return explained.exit_code
    return 0


def _end_with_caller() -> None:
    """A killed `./cluster up` leaves none of its commands behind, nor what they have started (uv)."""

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        # Only a group of our own: under Pulumi's CLI it is the provider's.
        own = os.getpgrp() == os.getpid()
        os.kill(0 if own else os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    end_with_parent(os.environ.get(CALLER_VARIABLE))


if __name__ == "__main__":
    _end_with_caller()
    sys.exit(main())
