"""Host lists, counts and steps in Slurm's notation."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.errors import WorkloadError
from workload.slurm import expand_counts, expand_nodes, read_step, tf_config


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("head", ["head"]),
        ("a,b", ["a", "b"]),
        (
            "compute-0-[0-2,5-6]",
            ["compute-0-0", "compute-0-1", "compute-0-2", "compute-0-5", "compute-0-6"],
        ),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[1,03]", ["n1", "n03"]),
        ("rack[1-2]-node[1-2]-ib", ["rack1-node1-ib", "rack1-node2-ib", "rack2-node1-ib", "rack2-node2-ib"]),
        ("a[1-2]x,b,c[3]", ["a1x", "a2x", "b", "c3"]),
        ("a[1-2][3-4]", ["a13", "a14", "a23", "a24"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize(
    "text", ["", "a,", "a[1", "a1]", "a[2-1]", "a[x]", "a[]", "a[1-2", "a[[1]]", "a[1,]"]
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"host list"):
        expand_nodes(text)


literals = st.text("abz-", min_size=1, max_size=4)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    low = draw(st.integers(0, 120))
    high = low + draw(st.integers(0, 12))
    width = draw(st.integers(1, 4))
    start = f"{low:0{width}d}"
    text = start if high == low else f"{start}-{high:0{width}d}"
    return text, [f"{n:0{len(start)}d}" for n in range(low, high + 1)]


@st.composite
def items(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A name with 0 to 2 bracket groups, and the names that it expands to."""
    text, choices = draw(literals), []
    choices.append([text])
    for _ in range(draw(st.integers(0, 2))):
        chosen = draw(st.lists(ranges(), min_size=1, max_size=3))
        suffix = draw(st.one_of(st.just(""), literals))
        text += "[" + ",".join(part for part, _ in chosen) + "]" + suffix
        choices += [[name for _, names in chosen for name in names], [suffix]]
    return text, ["".join(parts) for parts in itertools.product(*choices)]


@given(st.lists(items(), min_size=1, max_size=4))
def test_any_host_list_expands_to_its_names(parts: list[tuple[str, list[str]]]) -> None:
    text = ",".join(part for part, _ in parts)
    assert expand_nodes(text) == [name for _, names in parts for name in names]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=5))
def test_any_counts_expand(groups: list[tuple[int, int]]) -> None:
    text = ",".join(str(n) if times == 1 else f"{n}(x{times})" for n, times in groups)
    assert expand_counts(text) == [n for n, times in groups for _ in range(times)]


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "2,,1", "-1"])
def test_what_are_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match="count of tasks"):
        expand_counts(text)


def step_env(**changes: str) -> dict[str, str]:
    env = {
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_JOB_NODELIST": "c[0-3]",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "c[0-3]",
        "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
        "SLURM_PROCID": "3",
        "SLURMD_NODENAME": "c1",
    }
    return env | changes


def test_several_tasks_a_node() -> None:
    step = read_step(step_env())
    assert step.nodes == ("c0", "c0", "c1", "c1", "c2", "c2", "c3")
    assert (step.rank, step.size, step.node, step.tasks_on_node) == (3, 7, "c1", 2)
    assert (step.node_count, step.chief) == (4, False)


def test_a_step_on_a_part_of_the_job() -> None:
    changes = {"SLURM_STEP_NODELIST": "c2", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    step = read_step(step_env(SLURM_PROCID="0", SLURMD_NODENAME="c2", **changes))
    assert step.nodes == ("c2",)
    assert step.chief


def test_keys_differ_by_job_step_and_restart() -> None:
    envs = [
        step_env(),
        step_env(SLURM_JOB_ID="18"),
        step_env(SLURM_STEP_ID="1"),
        step_env(SLURM_RESTART_COUNT="1"),
        step_env(SLURM_STACKS_RUN="17.0.1690000000.1"),
        step_env(SLURM_STACKS_RUN="17.0.1690000009.1"),
        step_env(SLURM_STACKS_RUN="17.0.1690000009.1", SLURM_STEP_ID="1"),
    ]
    assert len({read_step(env).key for env in envs}) == len(envs)


def test_alone_without_slurm() -> None:
    step = read_step({})
    assert (step.rank, step.size, step.node) == (0, 1, "localhost")


def test_without_srun_on_several_nodes() -> None:
    with pytest.raises(WorkloadError, match="4 nodes: start the training with srun"):
        read_step({"SLURM_JOB_NUM_NODES": "4", "SLURM_PROCID": "0"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "contradict"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x4)"}, "contradict"),
        ({"SLURM_PROCID": "7"}, "contradict"),
        ({"SLURM_PROCID": "x"}, "invalid literal"),
        ({"SLURM_STEP_NODELIST": "c[0-"}, "host list"),
    ],
)
def test_contradictions(changes: dict[str, str], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        read_step(step_env(**changes))


def test_a_missing_variable_is_named() -> None:
    env = step_env()
    del env["SLURM_PROCID"]
    with pytest.raises(WorkloadError, match="SLURM_PROCID"):
        read_step(env)


def test_tf_config_is_what_tensorflow_reads() -> None:
    assert json.loads(tf_config(["c0:1", "c1:2"], 1)) == {
        "cluster": {"worker": ["c0:1", "c1:2"]},
        "task": {"type": "worker", "index": 1},
    }
