"""Runs the hooks of a machine. A script is in the node archive, at a URL, or in the stack file."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from node.bootstrap.context import Context, StepFailedError
from node.bootstrap.daemons import end_of
from node.design.model import Hook
from node.system import executables, files, foreign, subprocesses

SHOWN_LINES = 5
"""The last lines of a script that ended well, as the boot report has them. `./cluster logs` shows all."""


def run(context: Context, number: int, hook: Hook) -> list[str]:
    """Run a hook, and returns how long it took with its last lines.

    Args:
        number: The hook's place in the stack file, from 0.

    Raises:
        StepFailedError: It cannot be started, ended with another status than 0 or exceeded its time. The
            message has its last lines.
        OSError: The script cannot be fetched or started.
        ValueError: Machines of this cloud cannot fetch such a URL.
    """
    script = script_of(context, number, hook)
    # The number is the one in the name of its log.
    name = f"hook {number} ({hook.source})"
    with script.open("rb") as file:
        fault = executables.fault_here(file.read(executables.FIRST_BYTES), Path(hook.source).name)
    if fault is not None:
        raise StepFailedError(f"{name} cannot be started: {fault}")
    log = context.path(context.folders.log) / f"hook-{number}-{context.host}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with foreign.log(log, anew=True) as output:
        env = {**os.environ, "SLURM_STACKS_ROLE": context.role, "SLURM_STACKS_HOST": context.host}
        status = subprocesses.run([str(script), *hook.args], env, hook.timeout, output=output).status
    ended = f"was not done after {hook.timeout} s" if status is None else f"ended with status {status}"
    if status != 0:
        # A node's reason has the first line and the last one.
        printed = end_of(log)
        ending = [f"the end of {log}:", *printed] if any(map(str.strip, printed)) else ["it printed nothing"]
        raise StepFailedError("\n".join([f"{name} {ended}", *ending]))
    return [f"{name} took {time.monotonic() - began:.1f} s", *end_of(log)[-SHOWN_LINES:]]


def script_of(context: Context, number: int, hook: Hook) -> Path:
    """Return the path of the hook's script, which is executable. A script with a URL is fetched.

    Raises:
        OSError: The script cannot be fetched.
        ValueError: Machines of this cloud cannot fetch such a URL.
    """
    name = f"{number}-{Path(hook.source).name}"
    if hook.text is None and "://" not in hook.source:
        script = context.path(context.folders.code) / "hooks" / name
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return script
    script = files.folder(context.path(context.folders.lib) / "hooks", 0o700) / name
    content = fetch(context, hook.source) if hook.text is None else hook.text.encode()
    files.write(script, content, 0o700)
    return script


def fetch(context: Context, source: str) -> bytes:
    """Return what lies at a URL that machines of this cloud can fetch.

    Raises:
        OSError: It cannot be fetched.
        ValueError: Machines of this cloud cannot fetch such a URL.
    """
    # Imported late to save time: few clusters have such hooks.
    if context.vm:
        from node.bootstrap.vm import clouds

        cloud = clouds.of(context.settings)
        if source.startswith(cloud.scheme):
            bucket, _, key = source.removeprefix(cloud.scheme).partition("/")
            return cloud.bucket(f"{cloud.scheme}{bucket}").get(key)
    if source.startswith("https://"):
        from node.system import http_client
        from node.system.cloud_api import ServiceError

        answer = http_client.call("GET", source, dict)
        if answer.status != 200:
            raise ServiceError(f"{source}: HTTP status {answer.status}", status=answer.status)
        return answer.body
    raise ValueError(f"{source}: machines of provider {context.settings.design.provider} cannot fetch that")
