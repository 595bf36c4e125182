"""The secret of the munge key is made empty and is deleted with the cluster."""

from __future__ import annotations

import pytest

from infra.aws.identity import AwsSecrets
from tests.support.aws_mocks import aws_design, declare
from tests.support.recorder import counts, unknown


@pytest.mark.parametrize("preview", [False, True])
def test_the_secret_is_empty_and_leaves_nothing_behind(preview: bool) -> None:
    made = declare(lambda: AwsSecrets("s", aws_design()), preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:AwsSecrets": 1,
        "aws:secretsmanager/secret:Secret": 1,  # and no version: its value is the head's to make
    }
    secret = made.inputs("s-munge")
    assert secret["name"] == "c-munge"
    assert secret["recoveryWindowInDays"] == 0
    assert "kmsKeyId" not in secret, "the account's own key of the service encrypts it"
    assert secret["tags"]["slurm-stacks:cluster"] == "c"
    assert unknown(made, "s-munge") == set()
    assert made.parents()["s-munge"] == "s"
    assert made.closed.count("s") == 1


def test_its_arn_is_known_only_when_it_is_there() -> None:
    for preview, expected in ((False, ["arn:s-munge"]), (True, [])):
        seen: list[str] = []
        declare(lambda found=seen: AwsSecrets("s", aws_design()).munge.apply(found.append), preview=preview)  # type: ignore[misc]
        assert seen == expected
