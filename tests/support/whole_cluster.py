"""What holds for a whole cluster on every cloud: its parts, and what is deleted before what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from node.design.model import ClusterDesign
from tests.support.operation_lines import operation_words
from tests.support.recorder import Recorder, custom, needs

COMMAND = "command:local:Command"
CODE = {"c-bundle-current", "c-bundle-code", "c-bundle-settings", "c-bundle-loader"}
"""What every machine reads as it boots."""
Declared = tuple[Recorder, list[Any]]


class Clusters:
    """The clusters of a test module, each declared once for all its tests.

    Args:
        declare: Declares a design, in a preview or not, and returns its resources and its outputs.
    """

    def __init__(self, declare: Callable[[ClusterDesign, bool], Declared]) -> None:
        self._declare = declare
        self._made: dict[tuple[str, bool], Declared] = {}

    def told(self, design: ClusterDesign, preview: bool = False) -> Declared:
        """Return a cluster's resources and its outputs."""
        key = repr(design), preview
        if key not in self._made:
            self._made[key] = self._declare(design, preview)
        return self._made[key]

    def __call__(self, design: ClusterDesign, *, preview: bool = False) -> Recorder:
        """Return a cluster's resources."""
        return self.told(design, preview)[0]

    def inventory(self, design: ClusterDesign, *, also: Iterable[str], keys: Iterable[str]) -> dict[str, Any]:
        """Return a cluster's inventory.

        Args:
            design: The cluster's design.
            also: What its outputs have beside the inventory.
            keys: The inventory's keys.
        """
        (found,) = self.told(design)[1]
        assert set(found) == {*keys, *also}
        return dict(found)


def check_parts(recorder: Recorder, parts: Iterable[str]) -> None:
    """Check that a cluster is these parts, that every resource has a parent, and every component ends."""
    children = {name for name, parent in recorder.parents().items() if parent == "c"}
    assert children == {f"c-{part}" for part in parts}
    commands = {name for name, kind in recorder.types().items() if kind == COMMAND}
    assert {name for name in commands if not name.startswith("c-images-")} == {"c-termination", "c-ready"}
    assert [name for name in recorder.types() if not recorder.parents()[name] and name != "c"] == []
    components = [name for name, asked in recorder.asked.items() if not asked.custom]
    assert sorted(recorder.closed) == sorted([*components, "slurm-stacks-test"])


def check_destruction(recorder: Recorder, first: Iterable[str], last: Iterable[str]) -> None:
    """Check that every custom resource is deleted either before or after the termination of nodes.

    Args:
        made: The cluster's resources.
        first: All that is deleted before it.
        last: Some that are deleted after it.
    """
    needed = needs(recorder)
    before = {name for name in custom(recorder) if "c-termination" in needed[name]}
    assert before == set(first)
    after = custom(recorder) - before - {"c-termination"}
    assert after == {name for name in needed["c-termination"] if recorder.asked[name].custom}
    assert after > set(last)


def check_login_machines_go_first(recorder: Recorder) -> None:
    """Check that login machines are deleted before the controller."""
    for name in recorder.types():
        if name.startswith("c-head-login") and recorder.asked[name].custom:
            assert "c-head-controller" in needs(recorder)[name]


def terminates(recorder: Recorder, program: ModuleType) -> Any:
    """Check that the termination does nothing until the end, and return the options of what it runs then.

    Args:
        made: The cluster's resources.
        program: The provider's entry point, which has to understand the line.
    """
    inputs = recorder.inputs("c-termination")
    assert not inputs.keys() & {"create", "update"}
    module, *words = operation_words(inputs, "delete")
    assert module == program.__package__
    options = program.parse(words)
    assert options.verb == "terminate-nodes"
    assert options.seconds <= 1800, "bounded in time"
    return options


def check_commands(recorder: Recorder, same: Recorder, program: ModuleType) -> None:
    """Check that commands hold nothing of this machine or moment: the same design has the same ones."""
    texts = [
        json.dumps([made.inputs(name) for name in ("c-termination", "c-ready")]) for made in (recorder, same)
    ]
    assert texts[0] == texts[1]
    folder = str(program.__file__).removesuffix(f"/{str(program.__package__).replace('.', '/')}/__main__.py")
    assert folder not in texts[0]
