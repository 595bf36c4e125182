"""mypy reads only the modules of the clouds' SDKs that we declare. All others are silently of type Any."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

SDKS = ("pulumi_aws", "pulumi_gcp")


def read_by_mypy() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    (found,) = [
        override["module"]
        for override in settings["overrides"]
        if override.get("follow_imports") == "normal" and "pulumi_aws" in override["module"]
    ]
    return set(found)


def folders(sdk: str) -> set[str]:
    """Return the services of an SDK."""
    spec = find_spec(sdk)
    assert spec is not None
    assert spec.origin is not None
    return {path.name for path in Path(spec.origin).parent.iterdir() if path.is_dir()}


def declared(tree: ast.AST, services: Mapping[str, set[str]]) -> Iterator[str]:
    """Return the modules of the SDKs that a file uses, as mypy's settings name them."""

    def pattern(sdk: str, name: str) -> str:
        # A class or function of the SDK has a file of the same name.
        of_its_own = name.removesuffix("_output").removesuffix("Args").lower()
        return f"{sdk}.{name}.*" if name in services[sdk] else f"{sdk}.{of_its_own}"

    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                sdk, _, service = one.name.partition(".")
                if sdk in SDKS:
                    aliases[one.asname or sdk] = sdk
                    yield pattern(sdk, service.partition(".")[0]) if service else sdk
        elif isinstance(node, ast.ImportFrom) and node.module:
            sdk, _, service = node.module.partition(".")
            if sdk in SDKS and not node.level:
                names = [service.partition(".")[0]] if service else [one.name for one in node.names]
                yield from (pattern(sdk, name) for name in names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield pattern(aliases[node.value.id], node.attr)


@pytest.fixture(scope="module")
def services() -> dict[str, set[str]]:
    return {sdk: folders(sdk) for sdk in SDKS}


def test_every_service_that_we_declare_is_read_and_no_other(services: dict[str, set[str]]) -> None:
    files = [
        *(ROOT / "infra").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "tools").rglob("*.py"),
    ]
    texts = [text for file in files if any(sdk in (text := file.read_text()) for sdk in SDKS)]
    used = {name for text in texts for name in declared(ast.parse(text), services)}
    inner = {f"{sdk}.{name}" for sdk in SDKS for name in ("_utilities", "provider")}
    assert used - read_by_mypy() == set(), "add them to [[tool.mypy.overrides]] in pyproject.toml"
    assert read_by_mypy() - used - inner == set(), "nobody uses these: mypy need not read them"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import pulumi_aws as aws\naws.rds.Instance('x')", {"pulumi_aws", "pulumi_aws.rds.*"}),
        ("import pulumi_aws\npulumi_aws.get_arn_output()", {"pulumi_aws", "pulumi_aws.get_arn"}),
        ("import pulumi_aws as aws\naws.ProviderArgs", {"pulumi_aws", "pulumi_aws.provider"}),
        ("import pulumi_gcp.dns", {"pulumi_gcp.dns.*"}),
        ("from pulumi_gcp import dns", {"pulumi_gcp.dns.*"}),
        ("from pulumi_gcp.dns import Policy", {"pulumi_gcp.dns.*"}),
    ],
)
def test_a_service_is_found_however_it_is_imported(
    services: dict[str, set[str]], text: str, wanted: set[str]
) -> None:
    assert set(declared(ast.parse(text), services)) == wanted
