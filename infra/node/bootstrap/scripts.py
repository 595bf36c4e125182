"""The script of a hook: from the node archive, or from the address that the stack file names."""

from __future__ import annotations

import stat
from pathlib import Path

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context
from infra.node.model import Hook


def place(context: Context, number: int, hook: Hook) -> Path:
    """Have the script here, so that it can be run.

    Raises:
        OSError: its address does not give it; in words.
        ValueError: no machine of this cloud can ask such an address.
    """
    name = f"{number}-{Path(hook.source).name}"
    if "://" not in hook.source:
        script = context.path(context.folders.code) / "hooks" / name
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return script
    script = files.folder(context.path(context.folders.lib) / "hooks", 0o700) / name
    files.place(script, _fetch(context, hook.source), 0o700)
    return script


def _fetch(context: Context, source: str) -> bytes:
    # Imported here: few clusters have such hooks, and no boot of the others waits for it.
    if context.vm:
        from infra.node.bootstrap.vm import clouds

        own = clouds.of(context.settings)
        if source.startswith(own.scheme):
            bucket, _, key = source.removeprefix(own.scheme).partition("/")
            return own.bucket(f"{own.scheme}{bucket}").get(key)
    if source.startswith("https://"):
        from infra.node.cloud import call
        from infra.node.cloud.errors import ServiceError

        answer = call.call("GET", source, dict)
        if answer.status != 200:
            raise ServiceError(f"{source}: HTTP status {answer.status}", status=answer.status)
        return answer.body
    raise ValueError(f"{source}: machines of provider {context.settings.design.provider} cannot fetch that")
