"""Downloads the uv that uv.lock names, for a machine that has none, and prints its path.

`./cluster` runs this file before there is an environment, so it uses only the standard library.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT = 60.0
LOCK = Path(__file__).resolve().parents[1] / "uv.lock"


def choose(wheels: Sequence[dict[str, Any]], system: str, machine: str, libc: str) -> dict[str, Any] | None:
    """Return the first wheel that runs on a machine.

    Args:
        wheels: A package's wheels, as uv.lock has them.
        system: `sys.platform`.
        machine: The processor's architecture, as `uname -m` prints it.
        libc: "glibc" for the GNU C library; anything else is musl's.
    """
    tag = "macosx_" if system == "darwin" else "manylinux_" if libc == "glibc" else "musllinux_"
    return next((w for w in wheels if tag in w["url"] and w["url"].endswith(f"_{machine}.whl")), None)


def fetch(wheel: dict[str, Any]) -> bytes:
    """Download a wheel and return the program in it.

    Raises:
        OSError: It was not downloaded.
        ValueError: The file is not the one that uv.lock names.
    """
    with urllib.request.urlopen(wheel["url"], timeout=TIMEOUT) as answer:
        content: bytes = answer.read()
    if (digest := f"sha256:{hashlib.sha256(content).hexdigest()}") != wheel["hash"]:
        raise ValueError(f"its hash is {digest}, and uv.lock has {wheel['hash']}: it is not to be trusted")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/scripts/uv")))


def main() -> None:
    """Print the path of the locked uv, which is downloaded unless it is there."""
    packages = tomllib.loads(LOCK.read_text(encoding="utf-8"))["package"]
    (uv,) = (package for package in packages if package["name"] == "uv")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurm-stacks"
    program = cache / f"uv-{uv['version']}"
    if not program.exists():
        wheel = choose(uv["wheels"], sys.platform, platform.machine(), platform.libc_ver()[0])
        if wheel is None:
            sys.exit(
                f"There is no uv {uv['version']} for this machine. Install uv yourself: https://docs.astral.sh/uv/"
            )
        try:
            content = fetch(wheel)
            cache.mkdir(parents=True, exist_ok=True)
            draft = program.with_name(f"{program.name}.{os.getpid()}")
            draft.write_bytes(content)
            draft.chmod(0o755)
            draft.replace(program)
        except (OSError, ValueError) as error:
            sys.exit(
                f"uv {uv['version']} could not be installed as {program}: {error}\n"
                f"It comes from {wheel['url']}. Check the connection and the space, or install uv yourself "
                "(https://docs.astral.sh/uv/), and run the command again."
            )
    print(program)


if __name__ == "__main__":
    main()
