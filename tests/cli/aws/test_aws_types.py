"""Questions to EC2 about unknown instance types; moto answers with EC2's own descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cli.commands.doctor.general import machine_types
from cli.findings import Severity
from cli.providers import instance_type_lookup
from cli.providers.aws.types import ask
from infra.config import ConfigError, load_file
from infra.config.advice import warnings
from infra.cost import cost, sentence
from infra.design import design
from infra.instance_types import cache
from infra.instance_types import catalog as catalog_module
from infra.instance_types.catalog import InstanceType, Table, catalog, tables
from infra.program.stack import Stack
from tests.support import sentences
from tests.support.aws_account import REGION, Account, account, moto, nobody

__all__ = ["account", "moto", "nobody"]

UNKNOWN = ("c7i.8xlarge", "g6.12xlarge", "p5en.48xlarge", "trn2.48xlarge", "i4i.large")


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """moto's data, with some types removed and g6f added."""
    whole = tables()
    table = whole.machines
    assert isinstance(table, Table)
    there: dict[str, InstanceType] = {name: table[name] for name in ("m5.large", "m7i.xlarge", "m4.large")}
    less = whole.model_copy(update={"machines": there, "unusable": {}})
    monkeypatch.setattr("infra.instance_types.catalog.tables", lambda: less)
    catalog_module._catalog.cache_clear()
    yield
    catalog_module._catalog.cache_clear()


def stack(folder: Path, machine: str, region: str = REGION, **more: object) -> Path:
    cluster = {
        "name": "c",
        "provider": "aws",
        "partitions": [{"name": "new", "instance_type": machine, "nodes": {"max": 2}}],
        **more,
    }
    values = {"aws:region": region, "slurm-stacks:cluster": cluster}
    path = folder / "Pulumi.t.yaml"
    path.write_text(yaml.safe_dump({"config": values}))
    return path


@pytest.mark.usefixtures("older")
def test_what_ec2_says_is_what_the_table_would(account: Account) -> None:
    said = ask(account.ec2, REGION, UNKNOWN)
    assert set(said.machines) == set(UNKNOWN)
    for name, machine in said.machines.items():
        of_table = WHOLE.machines[name].model_copy(update={"regions": (REGION,), "price": {}})
        assert machine == of_table


WHOLE = tables()


@pytest.mark.usefixtures("older", "account")
def test_up_learns_a_type_that_plan_then_knows(tmp_path: Path) -> None:
    path = stack(tmp_path, "g6.12xlarge")
    with pytest.raises(ConfigError, match=r"`\./cluster doctor --stack t` asks AWS about it"):
        load_file(path)
    answer = instance_type_lookup.look_up_missing(Stack(tmp_path, "t"))
    assert answer.unknown == ()
    assert answer.known == (
        "AWS says of g6.12xlarge: 48 vCPUs, 196608 MiB, 4 × l4, 1 EFA interface on 1 network card, "
        "3501 GiB of NVMe; its price is not known",
    )
    config = load_file(path)
    cluster_design = design(config, catalog())
    (partition,) = cluster_design.partitions
    assert (partition.cpus, partition.price_hour) == (48, None)
    assert partition.accelerator is not None
    assert (partition.accelerator.type, partition.accelerator.count) == ("l4", 4)
    assert "price of g6.12xlarge unknown" in sentence(cost(cluster_design, catalog()))
    assert isinstance(warnings(config, cluster_design, catalog()), list)
    assert instance_type_lookup.look_up_missing(Stack(tmp_path, "t")) == instance_type_lookup.Answer(), (
        "it is known now: nobody is asked"
    )


@pytest.mark.usefixtures("older", "account")
def test_what_is_known_of_one_region_is_asked_again_in_another(tmp_path: Path) -> None:
    stack(tmp_path, "p5en.48xlarge", "us-east-1")
    assert len(instance_type_lookup.look_up_missing(Stack(tmp_path, "t")).known) == 1
    path = stack(tmp_path, "p5en.48xlarge", "us-west-2")
    with pytest.raises(ConfigError, match="its facts are kept of us-east-1 only"):
        load_file(path)
    assert len(instance_type_lookup.look_up_missing(Stack(tmp_path, "t")).known) == 1
    assert load_file(path).region == "us-west-2"
    assert catalog().machines["p5en.48xlarge"].regions == ("us-east-1", "us-west-2")


@pytest.mark.usefixtures("older", "account")
def test_a_stack_files_own_facts_are_never_asked_for_and_win(tmp_path: Path) -> None:
    own = {"g6.12xlarge": {"vcpus": 40, "memory_mib": 1000 * 100}}
    path = stack(tmp_path, "g6.12xlarge", instance_types=own)
    assert (
        instance_type_lookup.look_up_missing(Stack(tmp_path, "t"), again=True)
        == instance_type_lookup.Answer()
    )
    stack(tmp_path, "g6.12xlarge")
    instance_type_lookup.look_up_missing(Stack(tmp_path, "t"))
    path = stack(tmp_path, "g6.12xlarge", instance_types=own)
    assert design(load_file(path), catalog()).partitions[0].cpus == 40


@pytest.mark.usefixtures("older", "account")
def test_what_cannot_be_used_is_refused_with_its_reason_and_asked_once(tmp_path: Path) -> None:
    path = stack(tmp_path, "g6f.large")
    (why,) = instance_type_lookup.look_up_missing(Stack(tmp_path, "t")).unknown
    assert "a part of a GPU" in why
    with pytest.raises(ConfigError, match="a part of a GPU"):
        load_file(path)
    assert instance_type_lookup.look_up_missing(Stack(tmp_path, "t")) == instance_type_lookup.Answer()
    assert instance_type_lookup.look_up_missing(Stack(tmp_path, "t"), again=True).unknown == (why,)


@pytest.mark.usefixtures("older", "account")
def test_a_type_that_ec2_does_not_have(tmp_path: Path) -> None:
    stack(tmp_path, "m5.lagre")
    (finding,) = machine_types(Stack(tmp_path, "t"))
    sentences.finding(finding, "machines.types", Severity.WARNS, REGION, "m5.lagre")
    assert not cache.path().exists() or cache.read() == {"machines": {}, "unusable": {}}


@pytest.mark.usefixtures("older", "account")
def test_doctor_asks_again_and_replaces_what_is_kept(tmp_path: Path) -> None:
    stack(tmp_path, "c7i.8xlarge")
    instance_type_lookup.look_up_missing(Stack(tmp_path, "t"))
    content = json.loads(cache.path().read_text())
    content["machines"]["c7i.8xlarge"]["vcpus"] = 8
    cache.path().write_text(json.dumps(content))
    assert catalog().machines["c7i.8xlarge"].vcpus == 8
    (finding,) = machine_types(Stack(tmp_path, "t"))
    sentences.finding(finding, "machines.types", Severity.FINE)
    assert catalog().machines["c7i.8xlarge"].vcpus == 32


@pytest.mark.usefixtures("account")
def test_the_table_wins_over_what_was_kept_before_it_knew_the_type(tmp_path: Path) -> None:
    cache.keep({"machines": {"c7i.8xlarge": {"provider": "aws", "vcpus": 8, "memory_mib": 9}}})
    assert catalog().machines["c7i.8xlarge"].vcpus == 32
    for damaged in ("", "[]", '{"format": 1, "machines": {"x.y": {"vcpus": "?"}}, "unusable": 3}'):
        cache.path().write_text(damaged)
        assert catalog().instance_type("x.y") is None


@pytest.mark.usefixtures("older", "nobody")
def test_without_credentials_nobody_is_asked_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stack(tmp_path, "g6.12xlarge")
    (why,) = instance_type_lookup.look_up_missing(Stack(tmp_path, "t")).unknown
    assert why.startswith("AWS could not be asked about g6.12xlarge: there are no credentials for AWS here")
    assert not cache.path().exists()


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("text", ["", "config: 3", "config: {slurm-stacks:cluster: {provider: aws}}", "a: ["])
def test_a_stack_file_with_mistakes_asks_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "Pulumi.t.yaml").write_text(text)
    assert instance_type_lookup.look_up_missing(Stack(tmp_path, "t")) == instance_type_lookup.Answer()
    assert instance_type_lookup.look_up_missing(Stack(tmp_path, "missing")) == instance_type_lookup.Answer()
