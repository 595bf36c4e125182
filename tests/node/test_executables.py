"""Which scripts Linux can start: what the kernel itself says of each is the measure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from node.system import executables

# name -> content, and words of the message; none for what starts
SCRIPTS = {
    "plain": (b"#!/bin/sh\n", None),
    "with blanks": (b"#! \t/bin/sh -e\n", None),
    "without a line break": (b"#!/bin/sh", None),
    "crlf": (b"#!/bin/sh\r\necho hi\r\n", "line 1 has a carriage return, as Windows saves files: run sed -i"),
    "crlf after a word": (b"#!/usr/bin/env sh\r\n", "line 1 has a carriage return"),
    "of a former Mac": (b"#!/bin/sh\recho hi", "line 1 has a carriage return"),
    "a licence first": (
        b"# Copyright\n\n  #!/bin/bash\necho\n",
        "line 3 names the interpreter, and only",
    ),
    "an empty line first": (b"\n#!/bin/sh\n", "move line 2 to the top"),
    "no interpreter": (b"echo hi\n", "line 1 names no interpreter: begin with #!/bin/bash"),
    "empty": (b"", "line 1 names no interpreter"),
    "a relative interpreter": (b"#!nosuch/sh\n", "names no interpreter by its path"),
    "nothing after the mark": (b"#!\n", "names no interpreter by its path"),
    "a mark of UTF-8": (b"\xef\xbb\xbf#!/bin/sh\n", "line 1 begins with UTF-8's mark"),
    "UTF-16": ("\ufeff#!/bin/sh\n".encode("utf-16-le"), "line 1 begins with UTF-16"),
    "one word": (b"#!/bin/sh -eu\n", None),
    "env": (b"#!/usr/bin/env sh\n", None),
    "env that splits": (b"#!/usr/bin/env -S sh -e -u\n", None),
    "env that says how it splits": (b"#!/usr/bin/env -vS sh -e\n", None),
    "two words for env": (b"#!/usr/bin/env sh -e\n", "'sh -e', as Linux does: write #!/usr/bin/env -S sh -e"),
    "options of env": (b"#!/usr/bin/env -i sh\n", "write #!/usr/bin/env -S -i sh"),
    "two options": (b"#!/bin/bash -e -u\n", "one word, '-e -u'"),
    "a remark": (b"#!/bin/sh -e # stop at errors\n", "one word, such as -eu"),
    "too long": (b"#!/bin/" + b"x" * 300 + b"\n", "line 1 has more than 255 bytes"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_named_where_the_kernel_refuses_it(name: str, tmp_path: Path) -> None:
    content, words = SCRIPTS[name]
    script = tmp_path / "script"
    script.write_bytes(content)
    script.chmod(0o755)
    found = executables.fault(content, "a.sh")
    if words is None:
        assert found is None
        subprocess.run([script], check=True, timeout=20)
        return
    assert words in str(found)
    assert status_of(script) != 0


def status_of(script: Path) -> int:
    """Return the exit status of a script, or the number of the error if the kernel does not start it."""
    try:
        return subprocess.run([script], check=False, timeout=20, capture_output=True).returncode
    except OSError as error:
        return error.errno or -1


def test_an_interpreter_that_is_not_here_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    for first, fault in {
        "#!/bin/sh": None,
        "#!/bin/no-such-shell -e": "line 1 names /bin/no-such-shell, ",
    }.items():
        script.write_text(f"{first}\n")
        script.chmod(0o755)
        named = executables.fault_here(script.read_bytes())
        assert (named is None) == (status_of(script) == 0)
        assert str(named).startswith(str(fault))
    assert executables.fault_here(SCRIPTS["crlf"][0]) == executables.fault(SCRIPTS["crlf"][0])
    assert executables.fault_here(Path("/bin/true").read_bytes()[: executables.FIRST_BYTES]) is None


def test_a_program_needs_no_interpreter() -> None:
    assert executables.fault(Path("/bin/true").read_bytes()[: executables.FIRST_BYTES]) is None


def test_the_cure_cures(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_bytes(SCRIPTS["crlf"][0])
    found = executables.fault(script.read_bytes(), "a.sh")
    assert found is not None
    subprocess.run(["sh", "-c", found.cure.removeprefix("run ")], cwd=tmp_path, check=True, timeout=20)
    assert executables.fault(script.read_bytes()) is None
