"""The SDKs' packages load modules at the first use of a name, and a program sees no difference."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import bundle
from tests.support.checkout import ROOT

START = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom cli.engine import lazy_sdks\n"
PLANS = (
    "import json\nfrom cli.commands.operate import make_plan\nfrom infra.config.load import load_file\n"
    "from infra.program.stack import Stack\nfrom pathlib import Path\n"
    f"root = Path({str(ROOT)!r})\n"
    "for file in sorted(root.glob('Pulumi.*.yaml')):\n"
    "    plan = make_plan(Stack(root, file.name[7:-5]), load_file(file))\n"
    # Other clusters of this machine come and go meanwhile.
    "    plan['warnings'] = [text for text in plan['warnings'] if 'shares them' not in text]\n"
    "    print(json.dumps(plan))\n"
)


def run(code: str, *, lazily: bool = True, path: Path | None = None) -> str:
    """Run a program with packages that are loaded lazily, or as usual, and return what it prints."""
    how = "lazy_sdks.install()\n" if lazily else "lazy_sdks.install = lambda: None\n"
    first = f"sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run(
        [sys.executable, "-c", START + how + first + code], capture_output=True, text=True, check=True
    )
    return done.stdout


FORKS = f"""{START}
import json, os
lazy_sdks.install = lambda: None
import pulumi_aws
for line in sys.stdin:
    here, there = os.pipe()
    if (child := os.fork()) == 0:
        os.close(here)
        os.dup2(there, 1)
        exec(compile(json.loads(line), "program", "exec"), {{"__name__": "__main__"}})
        sys.stdout.flush()
        os._exit(0)
    os.close(there)
    with open(here) as printed:
        text = printed.read()
    print(json.dumps([os.waitpid(child, 0)[1], text]), flush=True)
"""
"""Runs each program in a fork of a process that has imported `pulumi_aws` as usual."""
Usual = Callable[[str], str]


@pytest.fixture(scope="module")
def usual() -> Iterator[Usual]:
    """Runs a program with packages that are imported as usual, and returns what it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def printed(code: str) -> str:
            print(json.dumps(code), file=asks, flush=True)
            status, text = json.loads(answers.readline())
            assert status == 0
            return str(text)

        yield printed
        asks.close()


def test_every_example_plans_the_same(usual: Usual) -> None:
    lazy, whole = run(PLANS), usual(PLANS)
    assert [json.loads(line)["stack"] for line in lazy.splitlines()]
    assert lazy == whole


def test_names_modules_and_types_are_those_of_the_usual_import() -> None:
    code = """
import pickle, typing
import pulumi, pulumi_aws as aws
assert not any(name.startswith("pulumi_aws.ec2.vpc") for name in sys.modules)
aws.ec2.Tag
import pulumi_aws.ec2.get_ami
assert type(aws.ec2.get_ami).__name__ == "function" and aws.ec2.get_ami.__module__ == "pulumi_aws.ec2.get_ami"
assert aws.ec2.vpc.Vpc is aws.ec2.Vpc is pickle.loads(pickle.dumps(aws.ec2.Vpc))
assert typing.get_type_hints(aws.ec2.LaunchTemplate.block_device_mappings.fget)
assert "NatGateway" in dir(aws.ec2) and not hasattr(aws.ec2, "Nothing")
space = {}
exec("from pulumi_aws.sqs import *", space)
assert space["Queue"] is aws.sqs.Queue and "get_queue" in space
print(len(set(dir(aws.ec2))), "dill" in sys.modules and callable(sys.modules["dill"].dumps))
"""
    assert run(code).split()[1] == "True"


@pytest.mark.parametrize(
    "sdk", ["pulumi_command", "pulumi_aws.ec2", "pulumi_gcp.storage", "pulumi_aws.ec2.instance"]
)
def test_a_module_has_the_same_names(usual: Usual, sdk: str) -> None:
    code = (
        f"import importlib, types\npackage = importlib.import_module({sdk!r})\n"
        "own = {'__class__', '__getattr__', '__setattr__', '__dir__'}\n"
        "for name in sorted(set(dir(package)) - own):\n"
        "    value = getattr(package, name)\n"
        "    if not name.startswith('__'):\n"
        "        is_module = isinstance(value, types.ModuleType)\n"
        "        place = None if is_module else getattr(value, '__module__', None)\n"
        "        print(name, place, getattr(value, '__name__', None))"
    )
    assert run(code) == usual(code)


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("from .one import *\nuses = One", "__all__ = ['One']\nclass One: pass\n"),
        (
            "import pulumi\nfrom .one import *\nclass Own(pulumi.runtime.ResourcePackage):\n"
            "  version = lambda self: None\n  construct_provider = None\n"
            "pulumi.runtime.register_resource_package('own', Own())\nuses = One",
            "__all__ = ['One']\nclass One: pass\n",
        ),
        ("from .one import *", "names = ['One']\n__all__ = names\nclass One: pass\n"),
        ("from .one import *", "__all__ = ['One'] + []\nclass One: pass\n"),
        ("from .one import *", "class One: pass\n"),
        (
            "import sys, types\nfrom .one import *\nclass Own(types.ModuleType): pass\n"
            "sys.modules[__name__].__class__ = Own",
            "__all__ = ['One']\nclass One: pass\n",
        ),
    ],
)
def test_a_package_of_another_form_is_imported_as_usual(tmp_path: Path, package: str, module: str) -> None:
    folder = tmp_path / "pulumi_command"
    folder.mkdir()
    (folder / "__init__.py").write_text(package)
    (folder / "one.py").write_text(module)
    code = "import pulumi_command\nprint('One' in vars(pulumi_command), pulumi_command.One.__name__)"
    assert run(code, path=tmp_path).split() == ["True", "One"]


def test_a_class_is_that_of_the_usual_import(usual: Usual) -> None:
    code = """
import importlib, inspect
from pulumi import _types
def shown(value):
    if isinstance(value, frozenset):
        return repr(sorted(value))
    is_function = inspect.isfunction(value)
    return f"function {value.__qualname__} {value.__annotations__}" if is_function else repr(value)
for part in ("ec2.instance", "ec2.get_ami", "s3._inputs", "s3.outputs", "iam._enums", "_utilities"):
    module = importlib.import_module(f"pulumi_aws.{part}")
    for name, cls in inspect.getmembers(module, inspect.isclass):
        print(name, cls.__module__, cls.__qualname__, cls.__mro__, cls.__doc__)
        print(_types._types_from_py_properties(cls))
        own = {key: shown(value) for key, value in vars(cls).items() if key != "__init_subclass__"}
        print(sorted((key, value.split(" at 0x")[0]) for key, value in own.items()))
"""
    shown = run(code)
    assert "BucketCorsRuleArgs" in shown
    assert shown == usual(code)


def test_a_class_is_made_when_its_name_is_used() -> None:
    code = """
import gc, threading, pulumi_aws as aws
def made(part):
    return {cls.__name__ for cls in gc.get_objects() if isinstance(cls, type) and part in cls.__name__}
aws.ec2.LaunchTemplatePlacementArgs
assert made("LaunchTemplate") == {"LaunchTemplatePlacementArgs"}
aws.ec2.LaunchTemplate
assert made("LaunchTemplate") == {"LaunchTemplatePlacementArgs", "LaunchTemplateArgs", "LaunchTemplate"}
found = []
threads = [threading.Thread(target=lambda: found.append(aws.ec2.InstanceType)) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), len(set(map(id, found))))
"""
    assert run(code).split() == ["8", "1"]


def test_a_class_of_a_program_has_the_types_of_its_bases(usual: Usual) -> None:
    """Pulumi evaluates the annotations with the names of the modules of all bases, the program's last."""
    code = """
import pulumi_aws as aws
from pulumi import _types
class Own(aws.s3.Bucket):
    def __init_subclass__(cls, **keywords):
        print(cls.__name__, keywords)
class Further(Own, given=1):
    pass
class Arguments(aws.s3.BucketArgs):
    pass
class Result(aws.ec2.GetSubnetsResult):
    pass
for cls in (Own, Further, Arguments, Result):
    print(_types._types_from_py_properties(cls))
"""
    shown = run(code)
    for part in ("Further {'given': 1}", "CannedAcl", "BucketCorsRuleArgs", "GetSubnetsFilterResult"):
        assert part in shown
    assert shown == usual(code)


USES = {
    "": True,
    "def after(): return One.mark": True,
    "class Two(One): pass": True,
    "def after() -> One: ...": False,
    "ALL = [One]": False,
    "Other = One": False,
    "One.more = 1": False,
    "One = One()": False,
    "print = One\nprint.mark": False,
    "import functools\n@functools.singledispatch\nclass One: mark = 'one'": False,
    "import functools\n@functools.total_ordering\nclass One:\n  mark = 'one'\n  __lt__ = None": False,
    "class One: mark = 'one'": False,
    "del One\nclass One: mark = 'one'": False,
    "from pulumi import input_type\n@input_type\nclass One: mark = 'one'": False,
    "class int: pass\nOne.value = int()": False,
}
"""What a module does with its class One -> whether the class can be made later."""


def test_classes_that_a_module_uses_are_made_as_usual(tmp_path: Path) -> None:
    folder = tmp_path / "pulumi_command"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .module0 import *\n")
    one = "import pulumi\n\n__all__ = ['One']\n\n@pulumi.input_type\nclass One:\n    mark = 'one'\n"
    for number, lines in enumerate(USES):
        (folder / f"module{number}.py").write_text(one + lines)
    code = f"""
import importlib, pulumi_command
for number in range({len(USES)}):
    one = importlib.import_module(f"pulumi_command.module{{number}}")
    lazy = 'One' not in vars(one)
    print(one.One.mark, type(one.One).__name__, one.pulumi.__file__)
    print(sorted(set(dir(one)) - {{'__class__', '__dir__', '__getattr__', '__setattr__'}}))
    print(one.after() if 'after' in vars(one) else '', one.Two.mark if 'Two' in dir(one) else '')
    print(lazy if type(pulumi_command) is not type(importlib) else '')
"""
    found = run(code, path=tmp_path).splitlines()
    assert dict(zip(USES, found[3::4], strict=True)) == {lines: str(lazy) for lines, lazy in USES.items()}
    found[3::4] = [""] * len(USES)
    assert found == run(code, path=tmp_path, lazily=False).splitlines()


def test_the_types_of_resources_are_registered(usual: Usual) -> None:
    code = (
        "import pulumi_aws\nfrom pulumi.runtime import rpc\n"
        "print({k: sorted(v) for k, v in vars(rpc).items() if k.isupper() and isinstance(v, dict)})"
    )
    assert "aws:ec2/vpc" in (registered := run(code))
    assert registered == usual(code)


def test_the_error_of_a_broken_package_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "pulumi_command"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise KeyError('broken')")
    code = "try:\n    import pulumi_command\nexcept KeyError as error:\n    print(error)"
    assert run(code, path=tmp_path).strip() == "'broken'"


def test_a_package_of_the_lock_file_is_what_the_whole_file_says() -> None:
    lock = (ROOT / "uv.lock").read_text()
    whole: dict[str, Any] = {package["name"]: package for package in tomllib.loads(lock)["package"]}
    assert {name: bundle._locked_package(lock, name) for name in whole} == whole
