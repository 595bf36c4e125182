"""Loads what the providers' SDKs declare when a name of it is used: modules, and the classes in them.

The package of a service imports the modules of all its resources (`from .instance import *`), and these the
classes of all inputs and outputs of the service: for the eighty resources of a cluster these are hundreds of
modules and thousands of classes, half of a plan's time. Here a module of an SDK only notes which names such
imports bring, and which classes its own code would make. A name is imported, or its class made, at its first
use. All else of a module is executed as it is written, so Pulumi knows the class of each type of resource.

What a module declares in another form than the generator's is imported as usual: a module whose `__all__` is
no plain list of names, classes that its code uses for more than to name them, and a module that is an object
of its own or fails without the names of others.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

SDKS = ("pulumi_aws", "pulumi_gcp", "pulumi_command")
SELDOM = ("pulumi.automation", "dill")
"""Modules that `pulumi` imports for programs that start the engine or have dynamic providers."""
_EXPORTS = b"\n__all__ = ["
_MARKS = ("input_type", "output_type", "type_token")
"""Pulumi's decorators that only note something on a class. `type_token` is one after a call."""
_PLAIN = vars(builtins)
_NOTHING = ModuleType("nothing")
vars(_NOTHING)["__all__"] = []


def install() -> None:
    """Load the SDKs in this way from now on. Modules that are imported already stay as they are."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds modules as Python does, and gives those of the SDKs our loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        seldom = fullname in SELDOM
        if not seldom and fullname.partition(".")[0] not in SDKS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            loader = spec.loader
            spec.loader = LazyLoader(loader) if seldom else _Loader(fullname, loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Executes a module without its `from .module import *` and its classes."""

    def exec_module(self, module: ModuleType) -> None:
        if not (self._succeeds(module, lazy_classes=True) or self._succeeds(module, lazy_classes=False)):
            super().exec_module(module)

    def _succeeds(self, module: ModuleType, *, lazy_classes: bool) -> bool:
        """Execute a module without its imports, and without its classes. Undo it if its code needs them."""
        space = vars(module)
        before = dict(space)
        is_sdk = "." not in module.__name__
        registered = [dict(register) for register in _registers()] if is_sdk else []
        names = space["__builtins__"] = _Names(module, lazy_classes)
        try:
            super().exec_module(module)
            plain = names.settle()
        except Exception:
            plain = False
        if not plain:
            module.__class__ = ModuleType
            space.clear()
            space.update(before)
            if is_sdk:
                _unregister(registered)
        elif names.owners or names.classes:
            module.__class__ = _LazyModule
        else:
            space["__builtins__"] = _PLAIN
        return plain


class _Names(dict[str, Any]):
    """The builtins of a module's code, and behind them the names that are not imported or made yet.

    Python looks there for what is no global name: for names in functions, and in annotations that are text.

    Attributes:
        owners: Which module exports a name, by the name.
        classes: The classes of the module's own code, by name.
    """

    def __init__(self, module: ModuleType, lazy_classes: bool) -> None:
        super().__init__(_PLAIN, __import__=self._import, __build_class__=self._build_class)
        self.module = module
        self.owners: dict[str, str] = {}
        self.classes: dict[str, _Class] = {}
        self._lazy_classes = lazy_classes
        self._noted: list[_Class] = []

    def __missing__(self, name: str) -> Any:
        if name in self.owners or name in self.classes:
            return getattr(self.module, name)
        raise KeyError(name)

    def settle(self) -> bool:
        """End the execution of the module's code: what its functions import and make is real from now on.

        Returns:
            Whether all that the code does with the noted classes is to give them their names.
        """
        self.update(__import__=_PLAIN["__import__"], __build_class__=_PLAIN["__build_class__"])
        space = vars(self.module)
        for name in list(space):
            if type(space[name]) is _Pulumi:
                space[name] = sys.modules["pulumi"]
            elif type(space[name]) is _Class:
                self.classes[name] = space.pop(name)
        noted, self._noted = self._noted, []
        plain = type(self.module) is ModuleType and len(self.classes) == len(noted)
        while noted and plain:
            each = noted.pop()
            # Only `classes` holds it, this local name, and getrefcount's argument.
            plain = self.classes.get(each.name) is each and sys.getrefcount(each) == 3
        return plain

    def complete(self) -> None:
        """Import and make all names of the module."""
        for name in (*self.owners, *self.classes):
            getattr(self.module, name)

    def _build_class(self, body: Any, name: str, *bases: Any, **keywords: Any) -> Any:
        bases = tuple(base.made() if type(base) is _Class else base for base in bases)
        make = functools.partial(self._make, body, name, *bases, **keywords)
        if not self._lazy_classes or name in _PLAIN:
            return make()
        noted = _Class(name, make)
        self._noted.append(noted)
        return noted

    def _make(self, *arguments: Any, **keywords: Any) -> Any:
        """Make a class, and complete the module when a class of another module derives from it.

        Pulumi evaluates the annotations of a class with the names of the modules of all its bases.
        """
        made = builtins.__build_class__(*arguments, **keywords)
        if type(made) is type:  # an enumeration and a TypedDict are no bases
            type.__setattr__(made, "__init_subclass__", self._completing(made))
        return made

    def _completing(self, made: type) -> Any:
        """Return the class's `__init_subclass__`, which also completes the module."""
        own = vars(made).get("__init_subclass__")

        def init_subclass(cls: Any, /, **keywords: Any) -> None:
            before = own.__get__(None, cls) if own else super(made, cls).__init_subclass__  # type: ignore[arg-type]
            before(**keywords)
            if cls.__module__ != made.__module__:
                self.complete()

        return classmethod(init_subclass)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 1 and name and tuple(fromlist or ()) == ("*",):
            exports = _exports(str(self.module.__file__).rpartition("/")[0], name)
            if exports is not None and not exports & _PLAIN.keys():
                self.owners.update(dict.fromkeys(exports, name))
                for export in exports & vars(self.module).keys():
                    # The last import of a name counts.
                    vars(self.module).pop(export)
                return _NOTHING
        found = builtins.__import__(name, globals, locals, fromlist or (), level)
        return _Pulumi(found) if found is sys.modules.get("pulumi") and not fromlist else found


class _Class:
    """A class that a module's code would make here: `made` makes it, with the decorators of Pulumi on it."""

    __slots__ = ("_body", "_made", "marks", "name")

    def __init__(self, name: str, body: Callable[[], type]) -> None:
        self.name = name
        self.marks: list[Callable[[type], type]] = []
        self._body = body
        self._made: type | None = None

    def made(self) -> type:
        if self._made is None:
            made = self._body()
            for mark in self.marks:
                made = mark(made)
            self._made = made
        return self._made


class _Pulumi(ModuleType):
    """The package `pulumi` for a module that is executed: its decorators take a `_Class` too."""

    def __init__(self, pulumi: ModuleType) -> None:
        super().__init__("pulumi")
        vars(self).update(vars(pulumi))
        for name in _MARKS[:2]:
            setattr(self, name, _later(getattr(pulumi, name)))
        self.type_token = lambda token: _later(pulumi.type_token(token))


def _later(decorate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the decorator, which a class that is not made yet gets when it is made."""

    def mark(cls: Any) -> Any:
        if type(cls) is not _Class:
            return decorate(cls)
        cls.marks.append(decorate)
        return cls

    return mark


def _registers() -> list[dict[str, list[Any]]]:
    """Return where Pulumi notes what SDKs tell of themselves, by package and by module."""
    space = vars(sys.modules.get("pulumi.runtime.rpc", _NOTHING))
    return [space[name] for name in ("_RESOURCE_PACKAGES", "_RESOURCE_MODULES") if name in space]


def _unregister(before: Sequence[Mapping[str, object]]) -> None:
    """Have Pulumi forget what an SDK told after `before`: it tells it again, and twice would be an error."""
    for register, known in zip(_registers(), before or ({}, {}), strict=False):
        for key in register.keys() - known.keys():
            del register[key]


@functools.cache
def _exports(folder: str, name: str) -> frozenset[str] | None:
    """Return `__all__` of a module without importing it; `None` if only an import tells."""
    text = b""
    try:
        with open(f"{folder}/{name}.py", "rb", buffering=0) as file:  # noqa: PTH123  for speed
            while b"]\n" not in text.partition(_EXPORTS)[2] and (more := file.read(2048 + len(text))):
                text += more
    except OSError:
        return None
    names, end, _ = text.partition(_EXPORTS)[2].partition(b"]\n")
    parts = names.decode().split("'")
    return frozenset(parts[1::2]) if end and set("".join(parts[::2])) <= set(", \n") else None


class _LazyModule(ModuleType):
    """A module that gets a name at its first use."""

    def __getattr__(self, name: str) -> Any:
        names = vars(self)["__builtins__"]
        if name == "__all__":
            # Only `from package import *` of a program asks for it: then all names must be there.
            names.complete()
        if name in names.classes:
            value = names.classes[name].made()
        elif name in names.owners:
            value = getattr(importlib.import_module(f".{names.owners[name]}", self.__package__), name)
        elif name in self._modules():
            value = importlib.import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        # Another thread may have been here meanwhile: a name has one value.
        return vars(self).setdefault(name, value)

    def __setattr__(self, name: str, value: object) -> None:
        # Python gives a package each imported module, but `get_ami` is a function of the module get_ami.
        is_own = isinstance(value, ModuleType) and value is sys.modules.get(f"{self.__name__}.{name}")
        if not (is_own and name in vars(self)["__builtins__"].owners):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        names = vars(self)["__builtins__"]
        return sorted({*vars(self), *names.owners, *names.classes, *self._modules()})

    def _modules(self) -> set[str]:
        """Return which modules the usual import would have imported into this package."""
        return set(vars(self)["__builtins__"].owners.values()) if "__path__" in vars(self) else set()
