"""Finds the Python interpreters of this host that a cluster's machines need.

A virtual environment holds packages and a link to its interpreter. A machine that boots has an image of its
own, in which only the distribution's interpreter exists.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from localcloud.container_machine import Bind
from node.bootstrap.vm.environments import python_version, pyvenv_values

DISTRIBUTION = (Path("/"), Path("/usr"))
"""The prefixes of the interpreter that the machines' image has, too."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter of this host.

    Attributes:
        prefix: The folder of its `bin` and `lib`.
        version: As in `python3.11`.
        library: The folder of its standard library.
    """

    prefix: Path
    version: str
    library: Path

    def binds(self) -> list[Bind]:
        """Return the mounts that an environment of this interpreter needs."""
        if self.prefix.resolve() in DISTRIBUTION:
            return []
        # An environment may link to any of these names.
        programs = [self.prefix / "bin" / name for name in ("python", "python3", f"python{self.version}")]
        shared = (self.prefix / "lib").glob(f"libpython{self.version}*.so*")
        parts = [*programs, self.library, *shared]
        return [Bind(path.resolve(), str(path), read_only=True) for path in parts if path.exists()]


def interpreter_binds(envs: Path | None = None) -> list[Bind]:
    """Return the mounts of this interpreter and of those that existing environments link to.

    The cache is shared by all checkouts, and one of them may use another interpreter.

    Args:
        envs: The folder of the training environments.
    """
    interpreters = [_this_interpreter()]
    if envs is not None and envs.is_dir():
        interpreters += [
            interpreter for folder in sorted(envs.iterdir()) for interpreter in _interpreters_of(folder)
        ]
    return [bind for interpreter in dict.fromkeys(interpreters) for bind in interpreter.binds()]


def _this_interpreter() -> Interpreter:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Interpreter(Path(sys.base_prefix).resolve(), version, Path(sysconfig.get_path("stdlib")))


def _interpreters_of(environment: Path) -> list[Interpreter]:
    """Return the interpreter that an environment links to, by each path that leads to it."""
    values = pyvenv_values(environment / "pyvenv.cfg")
    home = Path(values.get("home", ""))
    version = ".".join((python_version(values) or "").split(".")[:2])
    named = Interpreter(home.parent, version, home.parent / "lib" / f"python{version}")
    # Users of the cluster may write to the environments. One must name an interpreter outside of them.
    inside = environment.parent.resolve() in home.resolve().parents
    if inside or not home.is_absolute() or home.name != "bin":
        return []
    if not ((home / f"python{version}").is_file() and (named.library / "os.py").is_file()):
        return []
    prefix = home.parent.resolve()
    return [named, Interpreter(prefix, version, prefix / "lib" / f"python{version}")]
