"""What the local stack's commands run, on this machine: `python -m infra.local.operations VERB --stack S`.

Every verb is idempotent: an interrupted `up` runs it again. The result is on standard output, and stays the
same for the same cluster; what it waits for is on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra import bundle
from infra.errors import UserError
from infra.local import training
from infra.local.cloud.machines import CLUSTER_VARIABLE
from infra.local.site import RunDirectory
from infra.node import rpc
from infra.node.codec import from_json
from infra.node.model import ClusterDesign
from infra.node.processes import end_marked, marked

AGENT_START_SECONDS = 20.0
HEAD_START_SECONDS = 120.0
LOOK_SECONDS = 1.0
CANCEL_SECONDS = 15.0


def cloud_up(project: Path, stack: str) -> dict[str, Any]:
    """Start the local cloud's agent and set its limits (a JSON object on standard input)."""
    limits = json.loads(sys.stdin.read() or "{}")
    run = RunDirectory.make(project, stack)
    if not _agent_answers(run):
        log = run.cloud / "agent.log"
        with log.open("ab") as output:
            agent = subprocess.Popen(
                [sys.executable, "-m", "infra.local.cloud.agent", str(run.path)],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Not the caller's environment: the agent outlives it, and machines inherit from the agent.
                env={
                    "PATH": "/usr/local/bin:/usr/bin:/bin",
                    "HOME": str(Path.home()),
                    "PYTHONPATH": str(project),
                    "LANG": "C.UTF-8",
                    CLUSTER_VARIABLE: str(run.path),
                },
                start_new_session=True,
            )
        _wait(
            "the local cloud's agent",
            lambda: _agent_answers(run) or agent.poll() is not None,
            AGENT_START_SECONDS,
        )
        if not _agent_answers(run):
            raise UserError(f"the local cloud's agent did not start; the end of {log}:\n{_tail(log)}")
    rpc.call(str(run.agent_socket), "limits", **limits)
    return {"run": str(run.path)}


def cloud_down(project: Path, stack: str) -> dict[str, Any]:
    """End every machine and the agent, and remove the run directory. Works with the agent dead, too."""
    run = RunDirectory.of(project, stack)
    if run.path.exists():
        try:
            rpc.call(str(run.agent_socket), "shutdown", 60.0)
            _wait("the agent's end", lambda: not _agent_answers(run), 10)
        except (rpc.RpcUnavailableError, rpc.RpcError) as error:
            print(f"the agent does not answer ({error}); ending its machines by hand", file=sys.stderr)
    if left := end_marked(CLUSTER_VARIABLE, str(run.path)):
        raise UserError(f"these processes of the cluster cannot be ended: {left}")
    shutil.rmtree(run.path, ignore_errors=True)
    return {}


def publish(project: Path, stack: str) -> dict[str, Any]:
    """Put code and settings into the cluster's bucket; the design is a JSON object on standard input."""
    design = from_json(ClusterDesign, json.loads(sys.stdin.read()))
    run = RunDirectory.make(project, stack)
    code = bundle.node_archive(design, project)
    settings = bundle.settings_object(run.settings(design))
    content = bundle.current(code, settings)
    for entry, blob in ((content["code"], code), (content["settings"], settings)):
        _place(run.bucket / entry["key"], blob)
    _place(run.bucket / "loader.py", (project / "infra" / "node" / "loader.py").read_bytes())
    _place(run.bucket / "current.json", json.dumps(content, indent=1).encode())
    return {name: content[name]["sha256"] for name in ("code", "settings")}


def head_up(project: Path, stack: str) -> dict[str, Any]:
    """Have a controller that runs what is published; a change restarts it with its state and jobs kept."""
    run = RunDirectory.of(project, stack)
    current = json.loads((run.bucket / "current.json").read_text())
    settings = json.loads((run.bucket / current["settings"]["key"]).read_text())
    design, site = settings["design"], settings["site"]
    tags = {"cluster": design["name"], "role": "controller"}
    revision = f"{current['code']['sha256'][:16]}-{current['settings']['sha256'][:16]}"
    report = run.bucket / "boot" / "controller.json"
    alive = _living(run, tags)
    keep = [m for m in alive if m["tags"].get("revision") == revision and _state(report) != "failed"]
    if not keep:
        if alive:
            print("restarting the controller with the new settings; jobs go on", file=sys.stderr)
            rpc.call(str(run.agent_socket), "terminate", 60.0, ids=[m["id"] for m in alive])
        report.unlink(missing_ok=True)
        rpc.call(
            str(run.agent_socket),
            "launch",
            60.0,
            token=f"controller-{time.time():.6f}",
            names={"controller": f"{design['name']}-controller"},
            min_count=1,
            machine=design["hosts"][0]["machine"],
            tags={**tags, "revision": revision},
        )
    _wait_for_boot(report, run)
    return {
        "login": site["controller_address"],
        "controller": f"{site['controller_address']}:{site['slurmctld_port']}",
        "scheduler_version": json.loads(report.read_text())["facts"]["slurm"],
        "shared": site["shared"],
    }


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
    return marked(CLUSTER_VARIABLE, str(run.path))


def _terminate(run: RunDirectory, role: str) -> int:
    if not run.path.exists():
        return 0
    try:
        machines = rpc.call(str(run.agent_socket), "list", tags={"role": role})["machines"]
        ids = [m["id"] for m in machines if m["state"] != "terminated"]
        rpc.call(str(run.agent_socket), "terminate", 60.0, ids=ids)
    except rpc.RpcUnavailableError as error:
        # The last resource to go ends everything that is left, by its processes.
        print(f"the local cloud does not answer ({error}); its machines end with it", file=sys.stderr)
        return 0
    return len(ids)


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
            if not _living(run, {"role": "controller"}) and _state(report) not in ("ready", "failed"):
                raise UserError(f"the controller ended during its boot; the end of {log}:\n{_tail(log)}")
        return content["state"] in ("ready", "failed")

    _wait(f"the controller's boot (its output: {log})", settled, HEAD_START_SECONDS)
    if _state(report) == "failed":
        step = json.loads(report.read_text())["steps"][-1]
        raise UserError(
            f"the controller's boot failed at step {step['name']!r}: {step['note']}\n"
            + "\n".join(f"  {line}" for line in step.get("tail", []))
            + f"\nIts logs are in {run.path}/log; mend the cause and run up again."
        )


def _living(run: RunDirectory, tags: dict[str, str]) -> list[dict[str, Any]]:
    """The local cloud's machines with these tags that start or run."""
    machines = rpc.call(str(run.agent_socket), "list", tags=tags)["machines"]
    return [m for m in machines if m["state"] in ("pending", "running")]


def _state(report: Path) -> str:
    return str(json.loads(report.read_text())["state"]) if report.exists() else "absent"


def _agent_answers(run: RunDirectory) -> bool:
    try:
        rpc.call(str(run.agent_socket), "limits", 5.0)
    except rpc.RpcUnavailableError:
        return False
    return True


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


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
