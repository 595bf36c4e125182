"""Loads a module of the providers' SDKs when a name of it is used.

The package of a service imports the modules of all its resources (`from .instance import *`): for the
eighty resources of a cluster on AWS these are seven hundred modules, and a third of a plan's time. Here such
a package only notes which names each module exports, and imports the module at the first use of one. All else
of a package is executed as it is written, so Pulumi knows the class of each type of resource as usual.

What a package declares in another form than the generator's is imported as usual: a module whose `__all__` is
no plain list of names, and a package that is an object of its own or fails without the names of its modules.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

SDKS = ("pulumi_aws", "pulumi_gcp", "pulumi_command")
SELDOM = ("pulumi.automation", "dill")
"""Modules that `pulumi` imports for programs that start the engine or have dynamic providers."""
_EXPORTS = b"\n__all__ = ["


def install() -> None:
    """Load packages of the SDKs in this way from now on. Those that are imported already stay as they are."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds modules as Python does, and gives packages of the SDKs our loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        seldom = fullname in SELDOM
        if not seldom and fullname.partition(".")[0] not in SDKS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            if seldom:
                spec.loader = LazyLoader(spec.loader)
            elif spec.submodule_search_locations is not None:
                spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Executes a package without its `from .module import *`."""

    def exec_module(self, module: ModuleType) -> None:
        space = vars(module)
        before = dict(space)
        owners: dict[str, str] = {}
        space["__builtins__"] = {**vars(builtins), "__import__": _noting(module, owners)}
        try:
            super().exec_module(module)
        except Exception:
            owners.clear()
            usual = False
        else:
            usual = type(module) is ModuleType
        if usual:
            space["__builtins__"] = vars(builtins)
            if owners:
                space["_owners"] = owners
                module.__class__ = _LazyPackage
            return
        module.__class__ = ModuleType
        space.clear()
        space.update(before)
        super().exec_module(module)


def _noting(package: ModuleType, owners: dict[str, str]) -> Any:
    """Return an `__import__` for a package's code, which notes in `owners` who exports which name."""
    nothing = ModuleType("nothing")
    vars(nothing)["__all__"] = []

    def load(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 1 and name and tuple(fromlist or ()) == ("*",):
            exports = _exports(package, name)
            if exports is not None:
                owners.update(dict.fromkeys(exports, name))
                for export in exports:
                    # The last import of a name counts.
                    vars(package).pop(export, None)
                return nothing
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    return load


def _exports(package: ModuleType, name: str) -> list[str] | None:
    """Return `__all__` of a package's module without importing it; `None` if only an import tells."""
    try:
        with open(f"{package.__path__[0]}/{name}.py", "rb", buffering=0) as file:  # noqa: PTH123  for speed
            text = file.read(2048)
            if b"]" not in text.partition(_EXPORTS)[2]:
                text += file.read()
    except OSError:
        return None
    names, end, _ = text.partition(_EXPORTS)[2].partition(b"]\n")
    parts = names.decode().split("'")
    return parts[1::2] if end and set("".join(parts[::2])) <= set(", \n") else None


class _LazyPackage(ModuleType):
    """A package that imports a module when one of the names that it exports is used."""

    _owners: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        owners = self._owners
        if name == "__all__":
            # Only `from package import *` of a program asks for it: then all names must be there.
            for each in owners:
                getattr(self, each)
        if name in owners:
            value = getattr(importlib.import_module(f"{self.__name__}.{owners[name]}"), name)
        elif name in owners.values():
            value = importlib.import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Python gives a package each imported module, but `get_ami` is a function of the module get_ami.
        if name not in self._owners or value is not sys.modules.get(f"{self.__name__}.{name}"):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._owners, *self._owners.values()})
