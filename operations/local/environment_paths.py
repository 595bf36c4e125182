"""Python environments that work at two paths.

One folder holds the environments of all local stacks. Process machines see it where it is, and machines that
boot see it at /apps. uv writes the path at which it installs into `activate` and into the beginning of each
console script, so on a machine that boots neither would work.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from node.design.model import APPS
from node.system import files

_OWN_PATH = re.compile(rb"^VIRTUAL_ENV=.*$", re.M)
_CHOICE = 'for VIRTUAL_ENV in {paths}; do [ ! -e "$VIRTUAL_ENV/pyvenv.cfg" ] || break; done'
"""Shell code that takes the first path which is there. dash does not tell a sourced file where it is."""
_START = re.compile(rb"(?:#!/bin/sh\n'''exec' [^\n]*\n' '''|#!/[^\n]*)\n")
"""The beginning of a console script. uv writes the first form for a long path, or one with a blank."""
_BESIDE = b"""\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''
"""
"""The beginning of a script that runs with the interpreter beside it: for sh a command, for Python a text."""


def adapt(environment: Path) -> None:
    """Have an environment work at its path here and at /apps. It may be adapted again."""
    paths = shlex.join([f"{APPS}/envs/{environment.name}", str(environment)])
    choice = _CHOICE.format(paths=paths).encode()
    interpreter = f"{environment}/bin/python".encode()
    for script in environment.glob("bin/*"):
        if script.is_symlink() or not script.is_file():
            continue
        content = adapted = script.read_bytes()
        start = _START.match(content)
        if script.name == "activate":
            adapted = _OWN_PATH.sub(lambda _: choice, content, count=1)
        elif start and interpreter in start[0]:
            adapted = _BESIDE + content[start.end() :]
        if adapted != content:
            files.write(script, adapted, script.stat().st_mode & 0o777)
