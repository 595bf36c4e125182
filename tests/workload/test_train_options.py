"""The command line and the job's variables."""

from pathlib import Path

import pytest

from workload.errors import WorkloadError
from workload.options import parse
from workload.script import Job, Pool
from workload.slurm import read_job


def test_the_published_recipe_is_the_default() -> None:
    options = parse([])
    assert (options.epochs, options.batch, options.profile, options.data) == (8, 64, "local-sgd", "auto")
    assert options.gpus_per_node == 0


def test_everything_given() -> None:
    text = (
        "--profile published --epochs 2 --data mnist --mnist /d/mnist.npz --batch 32 --gpus-per-node 4 "
        "--result /r/x.json --cache /c --seed 3 --parts 4 --rendezvous-timeout 5 --steps-per-epoch 7 "
        "--weights /w --checkpoint-seconds 2.5"
    )
    options = parse(text.split())
    assert options.mnist_file == Path("/d/mnist.npz")
    assert (options.result, options.cache, options.weights) == (Path("/r/x.json"), Path("/c"), Path("/w"))
    assert (options.steps_per_epoch, options.rendezvous_timeout, options.seed) == (7, 5.0, 3)
    assert (options.parts, options.checkpoint_seconds) == (4, 2.5)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [("", 1), ("--batch 128", 2), ("--batch 96", 1), ("--batch 32", 1), ("--batch 128 --gpus-per-node 1", 1)],
)
def test_parts_of_the_published_batch(arguments: str, parts: int) -> None:
    assert parse(arguments.split()).parts == parts


def test_the_cache_lies_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert parse([]).cache == Path("/somewhere/slurm-stacks")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--profile local", "choose from"),
        ("--data digits", "choose from"),
        ("--epochs 0", "0 is less than 1"),
        ("--gpus-per-node -1", "-1 is negative"),
        ("--ep 3", "unrecognized arguments"),
        ("--learning-rate 0", "0 is not a positive number"),
        ("--learning-rate nan", "nan is not a positive number"),
        ("--average-every 0", "0 is less than 1"),
    ],
)
def test_refused_with_what_is_allowed(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_profile_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--profile", "local"])
    message = capsys.readouterr().err
    assert all(name in message for name in ("published", "sync", "local-sgd"))


def test_a_job_on_a_cluster() -> None:
    job = read_job(
        {
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_PARTITION": "compute",
            "SLURM_RESTART_COUNT": "2",
            "SLURM_STACKS_STACK": "aws-cpu",
            "SLURM_STACKS_MACHINE": "c5.xlarge",
            "SLURM_STACKS_WORKLOAD_DIGEST": "ab12",
            "SLURM_STACKS_PRICE_HOUR": "0.194",
            "SLURM_STACKS_SUBMITTED": "1700000000.25",
            "SLURM_STACKS_ELIGIBLE": "1700000000",
            "SLURM_STACKS_STARTED": "1700000001.5",
        },
        now=1700000009.0,
    )
    assert (job.job_id, job.partition, job.restarts, job.stack) == ("12", "compute", 2, "aws-cpu")
    assert (job.machine, job.digest, job.price_hour) == ("c5.xlarge", "ab12", 0.194)
    assert job.start_latency == 1.25


@pytest.mark.parametrize(
    ("nodes", "pool", "machine", "price"),
    [
        ("train-spot-[0-1]", "spot", "c5.xlarge", 0.1),
        ("train-on-demand-3", "on-demand", "c5.4xlarge", 0.4),
        ("train-on-demand-0,train-spot-[0-2]", "on-demand,spot", "c5.4xlarge,c5.xlarge", 0.175),
        ("train-free-0", "free", "own", None),
        ("train-newer-0", None, None, None),
    ],
)
def test_a_run_says_which_pool_it_got(
    nodes: str, pool: str | None, machine: str | None, price: float | None
) -> None:
    pools = (
        Pool("train-spot", "spot", "c5.xlarge", 0.1),
        Pool("train-on-demand", "on-demand", "c5.4xlarge", 0.4),
        Pool("train-free", "free", "own", None),
    )
    exports = Job("train", 1, "/py", "/code", pools=pools).exports
    job = read_job({**dict(exports), "SLURM_JOB_NODELIST": nodes}, now=1.0)
    assert (job.pool, job.machine) == (pool, machine)
    assert job.price_hour == (None if price is None else pytest.approx(price))


def test_what_is_not_known_is_none_not_zero() -> None:
    job = read_job({}, now=1.0)
    assert (job.job_id, job.stack, job.machine, job.price_hour, job.start_latency) == (None,) * 5
    assert job.restarts == 0


@pytest.mark.parametrize(
    ("submitted", "eligible", "started", "latency"),
    [
        # Slurm's time is of whole seconds: in the second of its submission the submission is the later one.
        ("100.25", "100", "102.5", 2.25),
        ("100.25", "250", "252.5", 2.5),  # the jobs that it waited for ended then, or its requeue's pause
        ("100.25", "", "102.5", None),  # slurmctld did not say: whether it waited for others is not known
        ("100.25", None, "102.5", None),
        (None, "250", "252.5", 2.5),  # submitted by hand
        ("3700", "3700", "103", None),  # a clock was set between the two moments
        ("100.25", "100", None, 3.75),  # a script that does not say when it started: this moment
    ],
)
def test_a_start_counts_from_when_the_job_could_start(
    submitted: str | None, eligible: str | None, started: str | None, latency: float | None
) -> None:
    variables = {"SUBMITTED": submitted, "ELIGIBLE": eligible, "STARTED": started}
    env = {f"SLURM_STACKS_{name}": value for name, value in variables.items() if value is not None}
    assert read_job(env, now=104.0).start_latency == latency


def test_a_variable_that_is_no_number() -> None:
    with pytest.raises(WorkloadError, match="SLURM_STACKS_PRICE_HOUR is not a number: 'cheap'"):
        read_job({"SLURM_STACKS_PRICE_HOUR": "cheap"}, now=1.0)
