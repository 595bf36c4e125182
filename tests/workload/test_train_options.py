"""The command line and the job's variables."""

from pathlib import Path

import pytest

from workload.errors import WorkloadError
from workload.options import parse, read_job


def test_the_published_recipe_is_the_default() -> None:
    options = parse([])
    assert (options.epochs, options.batch, options.profile, options.data) == (8, 64, "sync", "auto")
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
        ("--profile local-sgd", "choose from"),
        ("--data digits", "choose from"),
        ("--epochs 0", "0 is less than 1"),
        ("--gpus-per-node -1", "-1 is negative"),
        ("--ep 3", "unrecognized arguments"),
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
        parse(["--profile", "local-sgd"])
    message = capsys.readouterr().err
    assert "local-sgd" in message
    assert all(name in message for name in ("published", "sync"))


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
            "SLURM_STACKS_STARTED": "1700000001.5",
        },
        now=1700000009.0,
    )
    assert (job.job_id, job.partition, job.restarts, job.stack) == ("12", "compute", 2, "aws-cpu")
    assert (job.machine, job.digest, job.price_hour) == ("c5.xlarge", "ab12", 0.194)
    assert job.start_latency == 1.25


def test_what_is_not_known_is_none_not_zero() -> None:
    job = read_job({}, now=1.0)
    assert (job.job_id, job.stack, job.machine, job.price_hour, job.start_latency) == (None,) * 5
    assert job.restarts == 0


def test_a_script_that_does_not_say_when_it_started() -> None:
    assert read_job({"SLURM_STACKS_SUBMITTED": "100"}, now=103.0).start_latency == 3.0
    set_back = read_job({"SLURM_STACKS_SUBMITTED": "3700"}, now=103.0)
    assert set_back.start_latency is None


def test_a_variable_that_is_no_number() -> None:
    with pytest.raises(WorkloadError, match="SLURM_STACKS_PRICE_HOUR is no number: 'cheap'"):
        read_job({"SLURM_STACKS_PRICE_HOUR": "cheap"}, now=1.0)
