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
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from infra import bundle, trouble
from infra.errors import EXIT_INTERRUPTED, UserError
from infra.local import training
from infra.local.cloud.machines import of_cluster
from infra.local.site import RunDirectory
from infra.local.upkeep import (
    ANSWER_SECONDS,
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
from infra.node.model import ClusterDesign, Settings
from infra.node.processes import CALLER_VARIABLE, end_with_parent

HEAD_START_SECONDS = 120.0
LOOK_SECONDS = 1.0
CANCEL_SECONDS = 15.0


def cloud_up(project: Path, stack: str) -> dict[str, Any]:
    """Start the local cloud's agent and set its limits (a JSON object on standard input)."""
    limits = json.loads(sys.stdin.read() or "{}")
    run = RunDirectory.make(project, stack)
    start_agent(project, run)
    rpc.call(str(run.agent_socket), "limits", **limits)
    return {"run": str(run.path)}


def cloud_down(project: Path, stack: str) -> dict[str, Any]:
    """End every machine and the agent, and remove the run directory. Works with the agent dead, too."""
    end_cluster(RunDirectory.of(project, stack))
    return {}


def publish(project: Path, stack: str) -> dict[str, Any]:
    """Put code and settings into the cluster's bucket; the design is a JSON object on standard input."""
    design = from_json(ClusterDesign, json.loads(sys.stdin.read()))
    run = RunDirectory.make(project, stack)
    _place(run.bucket / "loader.py", (project / "infra" / "node" / "loader.py").read_bytes())
    content = _put(run, bundle.node_archive(design, project), run.settings(design))
    return {name: content[name]["sha256"] for name in ("code", "settings")}


def _put(run: RunDirectory, code: bytes, settings: Settings) -> dict[str, Any]:
    """Both objects, and last the file that names them."""
    text = bundle.settings_object(settings)
    content = bundle.current(code, text)
    for entry, blob in ((content["code"], code), (content["settings"], text)):
        _place(run.bucket / entry["key"], blob)
    _place(run.bucket / "current.json", json.dumps(content, indent=1).encode())
    return content


def head_up(project: Path, stack: str) -> dict[str, Any]:
    """Have a controller that runs what is published; a change restarts it with its state and jobs kept."""
    run = RunDirectory.of(project, stack)
    settings, revision = _published(run)
    start_agent(project, run)
    tags = {"cluster": settings.design.name, "role": "controller"}
    report = run.bucket / "boot" / "controller.json"
    there = _machines(run, tags, "pending", "running", "stopping")
    keep = [m for m in there if m["tags"].get("revision") == revision and m["state"] != "stopping"]
    if not keep or _state(report) == "failed":
        if there:
            print("restarting the controller with the new settings; jobs go on", file=sys.stderr)
            with saying("the controller's daemons are ending"):
                rpc.call(str(run.agent_socket), "terminate", 60.0, ids=[m["id"] for m in there])
        settings, revision = _with_free_ports(run)
        report.unlink(missing_ok=True)
        rpc.call(
            str(run.agent_socket),
            "launch",
            60.0,
            token=f"controller-{secrets.token_hex(8)}",
            names={"controller": f"{settings.design.name}-controller"},
            min_count=1,
            machine=settings.design.hosts[0].machine,
            tags={**tags, "revision": revision},
        )
    _wait_for_boot(report, run)
    site = settings.site
    return {
        "login": site.controller_address,
        "controller": f"{site.controller_address}:{site.slurmctld_port}",
        "scheduler_version": json.loads(report.read_text())["facts"]["slurm"],
        "shared": site.shared,
    }


def mend(project: Path, stack: str, say: Callable[[str], None]) -> None:
    """Start again what has died of a cluster that was brought up: nothing else would notice.

    Raises:
        UserError: that is not possible; the message says what is.
    """
    run = RunDirectory.of(project, stack)
    needed = ("bucket/current.json", "bucket/loader.py", "code/current/bin/slurm-stacks", "etc/slurm.conf")
    if gone := [str(run.path / file) for file in needed if not (run.path / file).exists()]:
        raise UserError(
            f"a part of the running cluster is gone: {', '.join(gone)}. Somebody removed it; "
            f"`./cluster down --stack {stack}` and then `./cluster up --stack {stack}` make it anew."
        )
    if not agent_answers(run):
        say("the local cloud's agent has ended: it is started again")
        start_agent(project, run)
    if fallen(run):
        say("the controller has ended: it is started again, with its queue")
        head_up(project, stack)


def _published(run: RunDirectory) -> tuple[Settings, str]:
    """The settings in the cluster's bucket, and the name of this pair of code and settings."""
    current = json.loads((run.bucket / "current.json").read_text())
    settings = from_json(Settings, json.loads((run.bucket / current["settings"]["key"]).read_text()))
    return settings, f"{current['code']['sha256'][:16]}-{current['settings']['sha256'][:16]}"


def _with_free_ports(run: RunDirectory) -> tuple[Settings, str]:
    """What is published, with other ports where another program has taken some since it was published."""
    settings, revision = _published(run)
    moved = run.settings(settings.design)
    if moved.site.slurmctld_port == settings.site.slurmctld_port:
        return settings, revision
    print(
        f"another program has taken a port of the cluster's ({settings.site.slurmctld_port} and following): "
        f"it moves to {moved.site.slurmctld_port} and following; jobs on nodes that are up are queued again",
        file=sys.stderr,
    )
    _terminate(run, "compute")
    current = json.loads((run.bucket / "current.json").read_text())
    _put(run, (run.bucket / current["code"]["key"]).read_bytes(), moved)
    return _published(run)


def head_down(project: Path, stack: str) -> dict[str, Any]:
    """End the controller: from here on nobody launches machines."""
    _terminate(RunDirectory.of(project, stack), "controller")
    return {}


def sweep(project: Path, stack: str) -> dict[str, Any]:
    """End every compute machine, by its tags and without the controller's help."""
    return {"terminated": _terminate(RunDirectory.of(project, stack), "compute")}


def stage(project: Path, stack: str) -> dict[str, Any]:
    """Copy the workload to the shared folder, under its digest."""
    run = RunDirectory.of(project, stack)
    digest = bundle.tree_digest(project / "workload")
    target = run.shared / "bench" / digest[:16]
    if not target.exists():
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        for name, content in bundle.tree(project / "workload"):
            _place(draft / "workload" / name, content)
        draft.rename(target)
    return {"folder": str(target), "digest": digest}


def environment(project: Path, stack: str) -> dict[str, Any]:
    """Build the training environment, where this machine has not got it yet."""
    run = RunDirectory.make(project, stack)
    uv = Path(sys.executable).with_name("uv")
    path = training.build(project, "cpu", (run.apps / "envs").resolve(), uv)
    return {"environment": path.name}


def tool(project: Path, stack: str, arguments: list[str]) -> int:
    """Run the cluster's own command, as the login machine would."""
    run = RunDirectory.of(project, stack)
    return subprocess.run([str(run.tool), *arguments], check=False).returncode


def cancel(project: Path, stack: str, arguments: list[str]) -> int:
    """The tool's cancel, which must not keep a destroy from going on."""
    run = RunDirectory.of(project, stack)
    try:
        subprocess.run([str(run.tool), "cancel", *arguments], check=False, timeout=CANCEL_SECONDS)
    except (subprocess.TimeoutExpired, OSError) as error:
        print(f"the job was not cancelled ({error}); it ends with the cluster", file=sys.stderr)
    return 0


def processes(run: RunDirectory) -> list[int]:
    """Pids of everything that belongs to the cluster (the agent, machines, daemons, jobs), deepest last."""
    return of_cluster(run.path)


def _terminate(run: RunDirectory, role: str) -> int:
    if not run.path.exists():
        return 0
    try:
        there = _machines(run, {"role": role}, "pending", "running", "stopping")
        names = ", ".join(m["node"] for m in there)
        with saying(f"{names}: the daemons are ending; those that hang are killed after 8 s"):
            rpc.call(str(run.agent_socket), "terminate", 60.0, ids=[m["id"] for m in there])
    except (rpc.RpcUnavailableError, rpc.RpcError) as error:
        # The last resource to go ends everything that is left, by its processes.
        print(f"the local cloud does not answer ({error}); its machines end with it", file=sys.stderr)
        end_hung_agent(run)
        return 0
    return len(there)


def _wait_for_boot(report: Path, run: RunDirectory) -> None:
    log = run.path / "log" / "boot-controller.log"
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
            print(f"controller: {step}", file=sys.stderr, flush=True)
        if time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            there = _machines(run, {"role": "controller"}, "pending", "running")
            if not there and _state(report) not in ("ready", "failed"):
                raise UserError(f"the controller ended during its boot; the end of {log}:\n{tail(log)}")
        return content["state"] in ("ready", "failed")

    _wait(f"the controller's boot (its output: {log})", settled, HEAD_START_SECONDS)
    if _state(report) == "failed":
        step = json.loads(report.read_text())["steps"][-1]
        raise UserError(
            f"the controller's boot failed at step {step['name']!r}: {step['note']}\n"
            + "\n".join(f"  {line}" for line in step.get("tail", []))
            + f"\nIts logs are in {run.path}/log; mend the cause and run up again."
        )


def _machines(run: RunDirectory, tags: dict[str, str], *states: str) -> list[dict[str, Any]]:
    """The local cloud's machines with these tags in one of these states."""
    machines = rpc.call(str(run.agent_socket), "list", ANSWER_SECONDS, tags=tags)["machines"]
    return [m for m in machines if m["state"] in states]


def _state(report: Path) -> str:
    return str(json.loads(report.read_text())["state"]) if report.exists() else "absent"


def _wait(what: str, there: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise UserError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)


def _place(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


VERBS: dict[str, Callable[[Path, str], dict[str, Any]]] = {
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
    options, rest = parser.parse_known_args()
    project = Path(os.environ.get("SLURM_STACKS_PROJECT", ".")).resolve()
    # munge refuses folders that others may write, and so does good sense: what lies here is executed.
    os.umask(os.umask(0o022) | 0o022)
    try:
        if options.verb in PASSING:
            return PASSING[options.verb](project, options.stack, [r for r in rest if r != "--"])
        print(json.dumps(VERBS[options.verb](project, options.stack)))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except rpc.RpcUnavailableError as error:
        print(f"the local cloud's agent does not answer ({error}); run `./cluster up` again", file=sys.stderr)
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
