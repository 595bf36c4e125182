"""Every word of a node's state, of 22.05 to 26.05, is known in one place, and one that Slurm has not told."""

from __future__ import annotations

import ast
import ctypes
import json
from pathlib import Path

import pytest

from node.slurm import node_flags
from node.slurm.answers import parse_nodes
from tests.support.checkout import ROOT
from tests.test_job_states import docstrings, modules

RELEASES = json.loads((ROOT / "tests" / "node" / "data" / "slurm_node_states.json").read_text())["releases"]
"""Made by tools/slurm_node_states.py."""
BASES = {word for release in RELEASES.values() for word in release["bases"]}
FLAGS = {word for release in RELEASES.values() for word in release["flags"]}
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so")
"""Slurm's own library, which has the functions that make the words."""
REQUESTS = {
    "DOWN", "DRAIN", "FAIL", "IDLE", "POWER_DOWN", "POWER_UP", "RESUME", "CLOUD", "ERROR", "COMPLETING",
    "UNKNOWN", "EXTERNAL",
}  # fmt: skip
"""Words that are also requests, a partition's state, a job's state, or another program's."""


def test_the_table_has_every_word_of_every_release() -> None:
    assert list(RELEASES) == ["22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"]
    assert BASES | {node_flags.MISSING} == node_flags.BASES
    assert node_flags.FLAGS == FLAGS
    assert min(len(release["flags"]) for release in RELEASES.values()) >= 20


@pytest.mark.skipif(not LIBRARY.exists(), reason="needs Slurm's library")
def test_the_words_are_slurms_own() -> None:
    """What the library of this machine makes of each number of a base state, and of each bit of a flag."""
    loaded = ctypes.CDLL(str(LIBRARY))
    of_base, of_flag = loaded.slurm_node_state_base_string, loaded.slurm_node_state_flag_string_single
    of_base.restype = of_flag.restype = ctypes.c_char_p
    bases = {of_base(number).decode() for number in range(16)} - {"INVALID"}
    flags = {of_flag(ctypes.byref(ctypes.c_uint32(1 << bit))).decode() for bit in range(4, 32)} - {"?"}
    assert any((bases, flags) == (set(of["bases"]), set(of["flags"])) for of in RELEASES.values())


@pytest.mark.parametrize("word", sorted(FLAGS | {"FLAG_OF_2030", "?"}))
def test_a_flag_is_read_and_known_or_told_as_it_is(word: str) -> None:
    (node,) = parse_nodes(f"NodeName=n RealMemory=1 State=IDLE+CLOUD+{word} Owner=N/A Reason=x").values()
    assert node.flags == {"CLOUD", word}
    assert node_flags.unknown(node.flags) == ([] if word in FLAGS else [word])
    if word not in FLAGS:
        assert node.is_usable, "what is not known takes no node out of use"


def test_no_other_module_knows_a_word() -> None:
    """But in requests to Slurm, which have words of their own."""
    found = {}
    for file, tree in modules():
        prose = docstrings(tree)
        texts = {
            part.value
            for part in ast.walk(tree)
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in prose
        }
        if words := texts & ((BASES | FLAGS) - REQUESTS):
            found[file] = words
    del found["tools/slurm_outputs.py"]  # it brings nodes into these states
    assert found.pop("node/slurm/node_flags.py") == (BASES | FLAGS) - REQUESTS
    assert found == {}
