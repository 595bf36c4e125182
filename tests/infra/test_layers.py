"""Who may import whom: an import never crosses upward, and what machines run needs nothing but Python."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

LIMIT = 400
FILES = sorted([*(ROOT / "infra").rglob("*.py"), *(ROOT / "workload").rglob("*.py")])
CLOUD_SDKS = ("pulumi_aws", "pulumi_gcp", "boto3", "botocore", "google")


@functools.cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Modules that a file imports anywhere, and whether for types only."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    tree = ast.parse(path.read_text())
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            base = node.module or ""
            yield base, id(node) in typing
            if base.startswith(("infra", "workload")):
                yield from ((f"{base}.{alias.name}", id(node) in typing) for alias in node.names)


def found(folder: str, *wrong: str, allow: tuple[str, ...] = ()) -> list[str]:
    """Imports of a folder's files of something below one of `wrong`."""
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, _ in imports(path)
        if any(name == w or name.startswith(f"{w}.") for w in wrong)
        and not any(name == a or name.startswith(f"{a}.") for a in allow)
    ]


def test_no_test_passes_for_want_of_what_is_installed_for_it() -> None:
    """Whoever renames a module learns it from an error, and not from one more test that is skipped."""
    lenient = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != "training_modules.py"
        and any(
            isinstance(node, ast.Attribute) and node.attr == "importorskip"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert lenient == []


# Only a controller of that cloud uses its driver, and its boot installs the client first: a cloud's wire,
# pages and errors are not ours to write again. Nodes use `infra.node.aws` and `infra.node.gcp` instead.
DRIVERS = ROOT / "infra" / "node" / "elastic" / "drivers"
CLIENTS = {DRIVERS / "ec2.py": {"boto3", "botocore"}, DRIVERS / "gce_client.py": {"google", "requests"}}


def test_node_code_needs_the_standard_library_only() -> None:
    strangers = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "infra" / "node").rglob("*.py"))
        for name, _ in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and name != "infra"
        and name != "infra.node"
        and not name.startswith("infra.node.")
        and name.partition(".")[0] not in CLIENTS.get(path, ())
    ]
    assert strangers == []


@pytest.mark.parametrize("driver", CLIENTS, ids=lambda path: path.stem)
def test_a_driver_imports_its_client_when_it_is_called(driver: Path) -> None:
    """It costs seconds and much memory, and a test of the driver brings another."""
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
        for path in sorted((ROOT / "infra" / "local" / "cloud").rglob("*.py"))
        for name, _ in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith(("infra.node", "infra.local.cloud"))
    ]
    assert strangers == []


def test_the_machines_first_files_import_the_standard_library_only() -> None:
    """Both run before there is any code of ours; the loader takes ours from what it has fetched."""
    assert {n for n, _ in imports(ROOT / "infra/local/cloud/init.py")} <= sys.stdlib_module_names
    ours = {n for n, _ in imports(ROOT / "infra/node/loader.py")} - sys.stdlib_module_names
    # What a cloud's bucket is asked with comes along in one archive (`bundle.loader_archive`).
    ours = {n for n in ours if not n.startswith(("infra.node.aws", "infra.node.gcp"))}
    assert {n.rpartition(".")[0] if n.endswith("bootstrap.bootstrap") else n for n in ours} == {
        "infra.node.bootstrap.main",
        "infra.node.bootstrap.main.bootstrap",
    }


def test_the_workload_imports_nothing_of_the_infrastructure() -> None:
    assert found("workload", "infra", "pulumi") == []


def test_the_infrastructure_imports_of_the_workload_its_script_and_the_form_of_its_result() -> None:
    assert set(found("infra", "workload")) <= {
        "infra/results.py: workload.result",
        "infra/results.py: workload.result.mistakes",
        "infra/benchmark.py: workload.script",
        "infra/benchmark.py: workload.script.render",
    }
    assert found("infra", "tensorflow", "tf_keras", "keras", "numpy", "sklearn") == []


@pytest.mark.parametrize("folder", ["infra/config", "infra/runner", "infra/console"])
def test_shared_parts_know_no_provider(folder: str) -> None:
    clouds = found(folder, "infra.local", "infra.aws", "infra.gcp", *CLOUD_SDKS, allow=("google.protobuf",))
    assert clouds == []


def test_what_clouds_share_knows_none_of_them() -> None:
    assert found("infra/clouds", "infra.local", "infra.aws", "infra.gcp", "infra.cli", *CLOUD_SDKS) == []


def test_the_design_is_pure() -> None:
    """No Pulumi, no network, no process, no provider."""
    for file in ("design.py", "cost.py", "machines.py", "node/model.py"):
        names = {name.partition(".")[0] for name, _ in imports(ROOT / "infra" / file)}
        assert not names & {"pulumi", "pulumi_command", "socket", "subprocess", "urllib", "http", *CLOUD_SDKS}
    assert found("infra/config", "pulumi_command", "subprocess", "socket") == []


def test_providers_do_not_know_each_other() -> None:
    assert found("infra/local", "infra.aws", "infra.gcp", "infra.cli", "infra.operate", *CLOUD_SDKS) == []
    assert found("infra/aws", "infra.local", "infra.gcp", "infra.cli", "infra.operate") == []
    assert found("infra/gcp", "infra.local", "infra.aws", "infra.cli", "infra.operate") == []
    assert found("infra/node/aws", "infra.node.gcp") == []
    assert found("infra/node/gcp", "infra.node.aws") == []


def test_clouds_clients_are_imported_by_their_own_parts_only() -> None:
    strangers = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if path.relative_to(ROOT).parts[:2] not in {("infra", "aws"), ("infra", "gcp")}
        and "drivers" not in path.parts
        for name, _ in imports(path)
        if name.partition(".")[0] in CLOUD_SDKS and not name.startswith("google.protobuf")
    ]
    assert strangers == []


def modules() -> dict[str, Path]:
    """Every module of ours by its name."""
    found = {}
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next one, and the last the first; empty: there are none."""
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
    """Neither by an import inside a function: what needs each other is one thing, or the wrong two."""
    ours = modules()
    arrows = {
        module: {name for name, typing in imports(path) if name in ours and not typing} - {module}
        for module, path in ours.items()
    }
    for its in arrows.values():
        # `from infra.runner import lock` names the package as well, and takes nothing of its own.
        its -= {name.rpartition(".")[0] for name in its}
    assert circle(arrows) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


def test_providers_are_named_by_the_commands_alone() -> None:
    """`providers` chooses one; the others are commands that are of the local stack or of this machine."""
    named = {file.partition(":")[0] for file in found("infra", "infra.local", "infra.aws", "infra.gcp")}
    outside = {f for f in named if f.split("/")[1] not in ("local", "aws", "gcp")}
    assert outside == {"infra/providers.py", "infra/cli.py", "infra/chaos.py", "infra/checks.py"}


def test_nothing_of_ours_does_work_at_import() -> None:
    """A module's top level defines; only `__main__` files, and blocks for being run, call functions."""
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}"
        for path in FILES
        if path.name != "__main__.py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    assert calls == []


def test_files_are_short() -> None:
    long = [f"{p.relative_to(ROOT)}: {n}" for p in FILES if (n := len(p.read_text().splitlines())) > LIMIT]
    assert long == []


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
