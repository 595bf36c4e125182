"""Which folder may import which or name it in a command, and that machines need nothing but Python."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import CODE, ROOT, sources

FILES = sources()
CLOUD_SDKS = ("pulumi_aws", "pulumi_gcp", "boto3", "botocore", "google")
LAYERS = ("infra", "operations", "cli")
ROOMS = ("infra", "operations", "cli/providers")
"""Where each of these has a folder for each provider."""
PROVIDERS = [f"{room.replace('/', '.')}.{name}" for room in ROOMS for name in ("local", "aws", "gcp")]
PROVIDERS += ["cli.providers.batch"]
OF_CLOUDS = tuple(f"{room}/{name}/" for room in ROOMS for name in ("aws", "gcp"))
OF_CLOUDS += ("cli/providers/batch/",)
IMPORTS = {
    "__main__.py": {"infra"},
    "component": {"component", "infra"},
    "infra": {"infra", "node", "workload"},
    "operations": {"operations", "infra", "node", "localcloud", "workload"},
    "cli": {"cli", "operations", "infra", "node", "localcloud", "workload"},
    "node": {"node"},
    "localcloud": {"localcloud", "node"},
    "workload": {"workload"},
}
"""The table: folder -> the folders that its code may import."""
ACTING = {
    "asyncio", "fcntl", "http", "multiprocessing", "selectors", "signal", "socket", "ssl", "subprocess",
    "threading", "urllib", *CLOUD_SDKS,
}  # fmt: skip
"""A module that imports one of these does something: it starts a process, asks over a network, waits."""


@functools.cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Return the modules that a file imports anywhere, and whether for types only."""
    return list(_imports_of(path.read_text(), str(path)))


def _imports_of(text: str, path: str) -> Iterator[tuple[str, bool]]:
    nodes = [*ast.walk(ast.parse(text))]
    typing = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in text and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            base = node.module or ""
            yield base, id(node) in typing
            if base.partition(".")[0] in CODE:
                yield from ((f"{base}.{alias.name}", id(node) in typing) for alias in node.names)


def found(folder: str, *wrong: str, allow: tuple[str, ...] = ()) -> list[str]:
    """Return the imports of anything below one of `wrong` in a folder, or in the module of that name."""
    files = sorted((ROOT / folder).rglob("*.py")) or [(ROOT / folder).with_suffix(".py")]
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name, _ in imports(path)
        if any(name == w or name.startswith(f"{w}.") for w in wrong)
        and not any(name == a or name.startswith(f"{a}.") for a in allow)
    ]


def crossing(file: str, text: str | None = None) -> set[str]:
    """Return our folders that a file imports, but may not. The file need not exist if `text` is given."""
    there = imports(ROOT / file) if text is None else _imports_of(text, file)
    names = {name.partition(".")[0] for name, _ in there}
    return (names & {*CODE, "tests", "tools"}) - IMPORTS[file.partition("/")[0]]


def test_a_folders_code_imports_what_runs_where_it_runs() -> None:
    """The table holds for every import, including those inside functions and those for types only."""
    files = [*FILES, ROOT / "__main__.py"]
    crossings = {
        str(path.relative_to(ROOT)): wrong
        for path in files
        if (wrong := crossing(str(path.relative_to(ROOT))))
    }
    assert crossings == {}
    assert {path.relative_to(ROOT).parts[0] for path in files} == set(IMPORTS)


def test_the_table_finds_an_import_that_crosses() -> None:
    assert crossing("infra/aws/x.py", "def f():\n    from cli.providers.aws import account\n") == {"cli"}
    assert crossing("node/x.py", "import infra.design\n") == {"infra"}
    assert crossing("__main__.py", "from cli import providers\nfrom infra import providers\n") == {"cli"}
    assert crossing("operations/x.py", "from cli import main\n") == {"cli"}
    assert crossing("infra/x.py", "from operations import ssh\n") == {"operations"}
    assert crossing("cli/x.py", "from tools import generate\n") == {"tools"}
    assert crossing("cli/x.py", "from localcloud import isolation\nfrom node import rpc\n") == set()


def acts(module: str) -> bool:
    """Return whether a module of ours imports one of `ACTING` itself."""
    return any(name in ACTING for name, _ in imports(modules()[module]))


def taken(text: str, path: str = "x.py") -> Iterator[str]:
    """Yield the functions that a file takes of modules of the node code that act."""
    tree = ast.parse(text)
    whole: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "node":
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if module in modules():
                    whole[alias.asname or alias.name] = module
                elif alias.name.islower() and acts(node.module or ""):
                    yield f"{path}: {module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = whole.get(node.value.id, "")
            if module and node.attr.islower() and acts(module):
                yield f"{path}: {module}.{node.attr}"


def test_the_program_takes_of_the_node_code_what_does_nothing() -> None:
    """Types, constants, and functions of modules that start no process, wait for none and ask nobody."""
    assert [
        line
        for file in sorted((ROOT / "infra").rglob("*.py"))
        for line in taken(file.read_text(), str(file.relative_to(ROOT)))
    ] == []
    assert [*taken("from node.system.rpc import call, Address")] == ["x.py: node.system.rpc.call"]
    assert [*taken("from node.system import rpc\nrpc.call()\nrpc.LIMIT")] == ["x.py: node.system.rpc.call"]


def named_modules(text: str) -> set[str]:
    """Return the modules of other folders that a file's string constants name, alone or within a command.

    Strings that are statements, such as docstrings, run nothing and are left out.
    """
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]
    pattern = rf"(?<![\w./])(?:{'|'.join(sorted(set(CODE) - {'infra'}))})(?:\.[a-z_]\w*)+(?![\w/])"
    named = {name for text in texts for name in re.findall(pattern, text)}
    return named & {*modules()}


def test_the_program_names_no_module_but_the_operations_entry_points() -> None:
    """A command line that a resource runs leads where an import may not: it is held to the same order."""
    named = {name for path in (ROOT / "infra").rglob("*.py") for name in named_modules(path.read_text())}
    assert named
    for name in named:
        assert name.startswith("operations."), name
        file = modules().get(f"{name}.__main__") or modules()[name]
        assert 'if __name__ == "__main__":' in file.read_text(), name


def test_a_module_that_a_command_names_is_found() -> None:
    text = (
        '"""cli.main"""\nX = ("-m", "cli.main")\nY = f"python -m cli.commands.chaos {X}"\nZ = "node.example"'
    )
    assert named_modules(text) == {"cli.main", "cli.commands.chaos"}


def test_no_test_passes_for_want_of_what_is_installed_for_it() -> None:
    """A renamed module must cause an error, and not one more skipped test."""
    lenient = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != "training_modules.py"
        and "importorskip" in (text := path.read_text())
        and any(
            isinstance(node, ast.Attribute) and node.attr == "importorskip"
            for node in ast.walk(ast.parse(text))
        )
    ]
    assert lenient == []


# Only a controller of that cloud uses its driver, and its boot installs these packages of the distribution
# first. Everything else on machines uses `node.aws` and `node.gcp`, as the driver of EC2 does.
DRIVERS = ROOT / "node" / "elastic" / "drivers"
CLIENTS = {
    DRIVERS / "gce" / "client.py": {"urllib3"},
}


def test_node_code_needs_the_standard_library_only() -> None:
    strangers = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "node").rglob("*.py"))
        for name, _ in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and name != "node"
        and not name.startswith("node.")
        and name.partition(".")[0] not in CLIENTS.get(path, ())
    ]
    assert strangers == []


@pytest.mark.parametrize("driver", CLIENTS, ids=lambda path: path.parent.name)
def test_a_driver_imports_its_client_when_it_is_called(driver: Path) -> None:
    """The client's import costs seconds and much memory, and tests of the driver use another client."""
    inside = {name.partition(".")[0] for name, _ in imports(driver)} & CLIENTS[driver]
    assert inside == CLIENTS[driver], "the exception above is still needed"
    top = ast.parse(driver.read_text()).body
    assert [ast.unparse(n) for n in top if isinstance(n, ast.If | ast.Try)] == []
    early = {alias.name for n in top if isinstance(n, ast.Import) for alias in n.names}
    early |= {n.module or "" for n in top if isinstance(n, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in early} & CLIENTS[driver] == set()


def test_the_local_clouds_agent_needs_no_packages() -> None:
    strangers = [
        name
        for path in sorted((ROOT / "localcloud").rglob("*.py"))
        for name, _ in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith(("node", "localcloud"))
    ]
    assert strangers == []


def test_the_machines_first_files_import_the_standard_library_only() -> None:
    """They run before the machine has our code. The loader imports ours from what it has fetched."""
    for name in ("init", "hosts_namespace", "fork_server"):
        first = {n.partition(".")[0] for n, _ in imports(ROOT / f"localcloud/{name}.py")}
        assert first <= sys.stdlib_module_names
    ours = {n for n, _ in imports(ROOT / "node/loader.py")} - sys.stdlib_module_names
    # The modules for requests to a cloud's bucket are in the loader's archive (`bundle.loader_archive`).
    ours = {n for n in ours if not n.startswith(("node.aws", "node.gcp"))}
    assert {n for n in ours if n in modules()} == {"node.bootstrap.main"}


def test_the_workload_imports_nothing_of_the_infrastructure() -> None:
    assert found("workload", *(folder for folder in CODE if folder != "workload"), "pulumi") == []


def needed(module: str) -> set[str]:
    """Return all that a module imports, by way of other modules of ours, too."""
    names: set[str] = set()
    to_read = [module]
    while to_read:
        new = {name for name, _ in imports(modules()[to_read.pop()])} - names
        names |= new
        to_read += [name for name in new if name in modules()]
    return names


def test_the_others_import_of_the_workload_what_runs_without_its_environment() -> None:
    taken = {
        line.partition(": ")[2] for folder in (*LAYERS, "localcloud") for line in found(folder, "workload")
    }
    assert taken & {*modules()}
    for module in taken & {*modules()}:
        strangers = {name.partition(".")[0] for name in needed(module)} - sys.stdlib_module_names
        # jinja2 writes the batch script, and the Pulumi program has it.
        assert strangers <= {"workload", "jinja2"}, module
    for folder in (*LAYERS, "node", "localcloud"):
        assert found(folder, "tensorflow", "tf_keras", "keras", "numpy", "sklearn") == []


@pytest.mark.parametrize("folder", ["infra/config", "cli/engine", "cli/console"])
def test_shared_parts_know_no_provider(folder: str) -> None:
    clouds = found(folder, *PROVIDERS, *CLOUD_SDKS, allow=("google.protobuf",))
    assert clouds == []


def test_what_clouds_share_knows_none_of_them() -> None:
    assert found("infra/clouds", *PROVIDERS, *CLOUD_SDKS) == []
    assert found("operations/clouds", *PROVIDERS, *CLOUD_SDKS) == []
    assert found("cli/providers/clouds", *PROVIDERS, "cli.main", *CLOUD_SDKS) == []


def test_the_design_is_pure() -> None:
    """The design's modules import neither Pulumi, a network, processes, nor a provider."""
    for file in (
        "infra/design.py",
        "infra/cost.py",
        "infra/instance_types/catalog.py",
        "node/design/model.py",
    ):
        names = {name.partition(".")[0] for name, _ in imports(ROOT / file)}
        assert not names & {"pulumi", "pulumi_command", "socket", "subprocess", "urllib", "http", *CLOUD_SDKS}
    assert found("infra/config", "pulumi_command", "subprocess", "socket") == []


def test_providers_do_not_know_each_other() -> None:
    for own in ("local", "aws", "gcp"):
        others = [name for name in PROVIDERS if not name.endswith(own)]
        assert found(f"infra/{own}", *others) == []
        assert found(f"operations/{own}", *others) == []
        assert found(f"cli/providers/{own}", *others, "cli.main", "cli.commands.operate") == []
    # AWS Batch is on AWS, which does not know it.
    assert found("cli/providers/batch", "cli.providers.local", "cli.providers.gcp", "cli.main") == []
    for folder in ("infra/local", "operations/local", "cli/providers/local"):
        assert found(folder, *CLOUD_SDKS) == []
    assert found("node/aws", "node.gcp") == []
    assert found("node/gcp", "node.aws") == []


def test_clouds_clients_are_imported_by_their_own_parts_only() -> None:
    strangers = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if not str(path.relative_to(ROOT)).startswith(OF_CLOUDS) and "drivers" not in path.parts
        for name, _ in imports(path)
        if name.partition(".")[0] in CLOUD_SDKS and not name.startswith("google.protobuf")
    ]
    assert strangers == []


@functools.cache
def modules() -> dict[str, Path]:
    """Return every module of ours by its name."""
    found = {}
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next one, and the last the first; empty if there are none."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return way[way.index(module) :]
        if module in done:
            return []
        for after in sorted(arrows[module]):
            if there := walk(after, [*way, module]):
                return there
        done.add(module)
        return []

    return next((there for module in arrows if (there := walk(module, []))), [])


def test_no_module_imports_itself_by_way_of_others() -> None:
    """This includes imports inside functions. Modules that need each other should be one module."""
    ours = modules()
    arrows = {
        module: {name for name, typing in imports(path) if name in ours and not typing} - {module}
        for module, path in ours.items()
    }
    for arrow in arrows.values():
        # `from cli.engine import lock` also names the package, but uses nothing of it.
        arrow -= {name.rpartition(".")[0] for name in arrow}
    assert circle(arrows) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


def test_providers_are_named_where_one_is_chosen_alone() -> None:
    """`infra.providers` chooses one for the program, and `cli.providers.provider` for the commands.

    The other modules are commands for the local stack or this machine.
    """
    choosers = {"infra/providers.py", "cli/providers/provider.py"}
    clouds = [name for name in PROVIDERS if not name.endswith("local")]
    named = {line.partition(":")[0] for folder in LAYERS for line in found(folder, *clouds)}
    assert {file for file in named if not file.startswith(OF_CLOUDS)} == choosers
    named = {line.partition(":")[0] for folder in LAYERS for line in found(folder, *PROVIDERS)}
    own = (*OF_CLOUDS, *(f"{room}/local/" for room in ROOMS))
    elsewhere = {file for file in named - choosers if not file.startswith(own)}
    assert all(re.fullmatch(r"cli/(commands/)?[^/]+", file) for file in elsewhere), elsewhere


def test_no_command_asks_for_the_scheduler() -> None:
    """The provider that is chosen by it answers."""
    asking = {
        str(path.relative_to(ROOT)): node.lineno
        for path in [*(ROOT / "cli" / "commands").rglob("*.py"), *(ROOT / "cli").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and (node.attr == "scheduler" or ast.unparse(node).endswith(("cluster.batch", "design.batch")))
    }
    # What Slurm a file gets; what outputs of others say before a provider is asked.
    assert {*asking} == {"cli/commands/init/choices.py", "cli/slurm_release.py", "cli/output_values.py"}


def test_nothing_of_ours_does_work_at_import() -> None:
    """A module's top level only defines. Only `__main__` files and blocks, which are run, call functions."""
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}"
        for path in FILES
        if path.name != "__main__.py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    assert calls == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p.relative_to(ROOT)) for p in FILES if p.stat().st_size and not _docstring(p)]
    assert silent == []


def _docstring(path: Path) -> str | None:
    return ast.get_docstring(ast.parse(path.read_text()))


def test_the_tests_of_this_file_can_fail(tmp_path: Path) -> None:
    """The walk sees imports inside functions and for types, and names taken from packages."""
    file = tmp_path / "x.py"
    file.write_text(
        "import os.path\nfrom typing import TYPE_CHECKING\nfrom infra import local\n"
        "if TYPE_CHECKING:\n    import pulumi\ndef f():\n    from infra.aws.cluster import X\n"
    )
    assert dict(imports(file)) == {
        "os.path": False, "typing": False, "infra": False, "infra.local": False, "pulumi": True,
        "infra.aws.cluster": False, "infra.aws.cluster.X": False,
    }  # fmt: skip
