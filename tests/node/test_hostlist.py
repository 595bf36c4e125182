"""Tests of host lists: the notation, its errors, and that folding and expanding are inverse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.slurm.hostlist import LIMIT, LONGEST, Expander, expand, fold, fold_numbers
from tests.support import texts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("n[0-3]", ["n0", "n1", "n2", "n3"]),
        ("n[3]", ["n3"]),
        (
            "debug-[0-1,07-09]x,login",
            ["debug-0x", "debug-1x", "debug-07x", "debug-08x", "debug-09x", "login"],
        ),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[0-1]n[2,4]", ["r0n2", "r0n4", "r1n2", "r1n4"]),
        ("[0-1]", ["0", "1"]),
        ("a[1,3-4],b,c[9]", ["a1", "a3", "a4", "b", "c9"]),
        (" a[1-2] \n", ["a1", "a2"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "a[",
        "a]",
        "a[1-2",
        "a[]",
        "a[1-]",
        "a[-1]",
        "a[x]",
        "a[5-3]",
        "a[1[2]]",
        "a,,b",
        ",a",
        "a,",
        "a b",
        "a[1, 2]",
        "a[1٣]",
    ],
)
def test_expand_refuses_and_quotes_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="host list") as error:
        expand(text)
    assert repr(text) in str(error.value)


def test_a_mistyped_range_does_not_eat_the_memory() -> None:
    with pytest.raises(ValueError, match=f"more than {LIMIT}"):
        expand("n[0-99999]m[0-99999]")
    assert len(expand(f"n[1-{LIMIT}]")) == LIMIT


def test_a_long_prefix_does_not_eat_the_memory() -> None:
    assert expand(f"{'n' * 250}[0-3]")
    for text in (f"{'n' * 255}[0-3]", f"n[{'0' * 300}-3]", f"{'n' * 90}[1]{'m' * 90}[1]{'o' * 90}[0-99]"):
        with pytest.raises(ValueError, match=f"more than {LONGEST}"):
            expand(text)


def test_the_lists_of_a_reading_are_bounded_together_and_equal_ones_are_one() -> None:
    expander = Expander(10)
    assert expander("a[0-5]") == ("a0", "a1", "a2", "a3", "a4", "a5")
    assert all(expander("a[0-5]") is expander("a[0-5]") for _ in range(9))
    with pytest.raises(ValueError, match="5 names, more than 4"):
        expander("b[0-4]")
    assert len(expander("b[0-3]")) == 4
    with pytest.raises(ValueError, match="more than 0"):
        expander("c")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["n7"], "n7"),
        (["n10", "n9", "n2", "n2"], "n[2,9-10]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n8", "n09", "n10"], "n[8,09-10]"),
        (["r1-n3", "r1-n4", "r2-n3"], "r1-n[3-4],r2-n3"),
        (["n0x", "n1x"], "n0x,n1x"),
        (["b", "a1", "a"], "a,a1,b"),
        (["n99", "n100"], "n[99-100]"),
        (["n099", "n100"], "n[099-100]"),
    ],
)
def test_fold(names: list[str], text: str) -> None:
    assert fold(names) == text


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a[1]", "a]"])
def test_fold_refuses_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="no host name"):
        fold(["ok", name])


_names = texts.matching(r"[a-z-]{0,3}[0-9]{0,4}[a-z]{0,2}[0-9]{0,3}x?").filter(bool)


@given(st.sets(_names, max_size=60))
def test_expand_undoes_fold(names: set[str]) -> None:
    expanded = expand(fold(names))
    assert set(expanded) == names
    assert len(expanded) == len(names)


@given(st.sets(_names, max_size=60))
def test_fold_does_not_depend_on_the_order(names: set[str]) -> None:
    assert fold(sorted(names)) == fold(sorted(names, reverse=True)) == fold([*names, *names])


@given(st.sets(st.integers(0, 300), min_size=1), st.sampled_from([0, 2, 3, 4]))
def test_a_fleet_folds_to_its_runs(numbers: set[int], width: int) -> None:
    """The shortest text has one item per run of consecutive numbers."""
    runs = sum(1 for n in numbers if n - 1 not in numbers)
    text = fold(f"n-{n:0{width}d}" for n in numbers)
    assert text.count(",") == runs - 1


def test_numbers_of_jobs_fold_as_those_of_names_do() -> None:
    assert fold_numbers(range(1, 127)) == "1-126"
    assert fold_numbers([12, 3, 11, 10, 3, 9]) == "3,9-12"
    assert fold_numbers([]) == ""


def test_the_work_grows_as_the_names_do() -> None:
    """Five times the names make five times the calls: a count does not depend on the machine's speed."""

    def calls(count: int) -> int:
        names = [f"compute-{i}" for i in range(count)]
        made = 0

        def seen(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            folded = fold(names)
            alone, listed = expand(folded), expand(",".join(names))
        finally:
            sys.setprofile(before)
        assert folded == f"compute-[0-{count - 1}]"
        assert alone == listed == names
        return made

    assert calls(5000) <= 6 * calls(1000)


@pytest.mark.cluster
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's client is not installed")
@pytest.mark.parametrize("text", ["n[0-3]", "n[098-101]", "a[1,3-4],b,c[9],n0x", "r[0-1]n[2,4]"])
def test_as_slurm_expands(text: str, tmp_path: Path) -> None:
    # These commands need no controller, only a slurm.conf.
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")

    def show(what: str, value: str) -> list[str]:
        command = ["scontrol", "show", what, value]
        environment = {"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    names = expand(text)
    assert show("hostnames", text) == names
    assert sorted(show("hostnames", fold(names))) == sorted(names)
