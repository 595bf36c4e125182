"""Tests of where a batch job writes: the patterns of `sbatch --output`.

What they become is what slurmd makes of them (fname.c). tests/node/test_slurm_conf_cluster.py compares it
with the files of a real slurmd.
"""

from __future__ import annotations

import pytest

from node.logs.job_output import Output, output_files, output_path
from node.slurm.fields import OUTPUT
from node.slurm.version import knows_last_digit

ALONE = {
    **dict.fromkeys(OUTPUT, "N/A"),
    "arrayjobid": "7", "userid": "1000", "username": "ann", "batchflag": "1", "batchhost": "n-0.cluster",
    "name": "a/b", "stdout": "/o/%j", "stderr": "/e/%j",
}  # fmt: skip
TASK = {**ALONE, "arrayjobid": "5", "arraytaskid": "13"}


@pytest.mark.parametrize(
    ("fields", "pattern", "expected"),
    [
        (ALONE, "/x/slurm-7.out", "/x/slurm-7.out"),
        (ALONE, "/x/%j-%A-%5j-%u-%x-%N-%n-%t", "/x/7-7-00007-ann-a/b-n-0-0-0"),
        (TASK, "/x/%A_%a-%j-%b-%4a", "/x/5_13-7-3-0013"),
        (ALONE, "/x/%A_%a-%s", "/x/7_4294967294-batch"),
        (ALONE, "/x/100%%j", "/x/100%j"),
        (ALONE, "/x/%99j", "/x/0000000007"),
        (ALONE, "/x/\\%j\\%", "/x/%j%"),
        (ALONE, "/x/%q%", "/x/%q%"),
        ({**ALONE, "batchhost": "n/a"}, "/x/%N", "/x/%N"),
        # As squeue of 25.11 and later tells them: of a job without --output, of an array's task, and of one
        # whose folder has what would be a pattern in a name.
        ({**ALONE, "workdir": "/home/ann"}, "slurm-%j.out", "/home/ann/slurm-7.out"),
        ({**TASK, "workdir": "/"}, "slurm-%A_%a.out", "/slurm-5_13.out"),
        ({**ALONE, "workdir": "/h/100%j"}, "o/%x", "/h/100%j/o/a/b"),
        ({**ALONE, "workdir": "/h", "name": "/etc/x"}, "%x", "/h//etc/x"),
        ({**ALONE, "workdir": "N/A", "name": "/etc/x"}, "%x", ".//etc/x"),
        (ALONE, "", ""),
        # As squeue of 22.05 tells it of an array's task without --output.
        ({**TASK, "workdir": "/h"}, "/h/slurm-7.out", "/h/slurm-5_13.out"),
    ],
)
def test_a_pattern_becomes_the_path_of_the_job(fields: dict[str, str], pattern: str, expected: str) -> None:
    assert output_path(pattern, 7, fields) == expected


def test_a_release_leaves_the_patterns_that_it_does_not_know() -> None:
    assert output_path("/x/%a-%b", 7, TASK, last_digit=False) == "/x/13-%b"
    releases = ("22.05.8", "24.05.1", "24.11.5", "x")
    assert [knows_last_digit(f"slurm-wlm {release}") for release in releases] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_name_is_no_pattern_again() -> None:
    assert output_path("/x/%x", 7, {**ALONE, "name": "%u%%\\1"}) == "/x/%u%%\\1"


def test_the_files_of_a_job_belong_to_its_user() -> None:
    assert output_files(7, ALONE) == [Output("output", "/o/7", 1000), Output("errors", "/e/7", 1000)]
    assert output_files(7, {**ALONE, "batchflag": "0"}) == []
    assert output_files(7, {**ALONE, "userid": "²"}) == []
    assert output_files(7, {**ALONE, "stdout": "x", "stderr": ""}) == []
    # As squeue of 24.11 tells that errors go to the output.
    here = {**ALONE, "stdout": "/h/slurm-%j.out", "stderr": "(null)", "workdir": "/h"}
    assert output_files(7, here) == [Output("output", "/h/slurm-7.out", 1000)]
