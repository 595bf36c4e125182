"""The SDKs' packages load modules at the first use of a name, and a program sees no difference."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
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


def test_every_example_plans_the_same() -> None:
    lazy, usual = run(PLANS), run(PLANS, lazily=False)
    assert [json.loads(line)["stack"] for line in lazy.splitlines()]
    assert lazy == usual


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
print(len(set(dir(aws.ec2)) - {"_owners"}), "dill" in sys.modules and callable(sys.modules["dill"].dumps))
"""
    assert run(code).split()[1] == "True"


@pytest.mark.parametrize("sdk", ["pulumi_command", "pulumi_aws.ec2", "pulumi_gcp.storage"])
def test_a_package_has_the_same_names(sdk: str) -> None:
    code = (
        f"import importlib, types\npackage = importlib.import_module({sdk!r})\n"
        "own = {'_owners', '__class__', '__getattr__', '__setattr__', '__dir__'}\n"
        "for name in sorted(set(dir(package)) - own):\n"
        "    value = getattr(package, name)\n"
        "    if not name.startswith('__'):\n"
        "        is_module = isinstance(value, types.ModuleType)\n"
        "        place = None if is_module else getattr(value, '__module__', None)\n"
        "        print(name, place, getattr(value, '__name__', None))"
    )
    assert run(code) == run(code, lazily=False)


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("from .one import *\nuses = One", "__all__ = ['One']\nclass One: pass\n"),
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


def test_the_types_of_resources_are_registered() -> None:
    code = (
        "import pulumi_aws\nfrom pulumi.runtime import rpc\n"
        "print({k: sorted(v) for k, v in vars(rpc).items() if k.isupper() and isinstance(v, dict)})"
    )
    assert "aws:ec2/vpc" in run(code)
    assert run(code) == run(code, lazily=False)


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
