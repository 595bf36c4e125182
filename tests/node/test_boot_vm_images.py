"""Tests of the images that a design needs, and of their content."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from infra.clouds import recipes
from node.bootstrap.vm import images
from node.design.accelerators import Accelerator
from node.design.model import AwsPartition, Budget, ClusterDesign, Host, Image, Partition, SlurmSettings
from node.design.storage import Mount
from tests.support.checkout import ROOT
from tests.support.doubles import design
from tests.support.recorded import COMPUTE, NFS, T4, V100

HEAD = Host("controller", "controller", ("controller", "login"), "m5.large", 50)
LOGIN = tuple(Host(f"login-{n}", "login", ("login",), "m5.large", 30 + n) for n in range(2))
A100 = Partition(
    "a100", "p4d.24xlarge", 96, 9, 0, 1, Accelerator("a100", 8), disk_gib=80, aws=AwsPartition(efa=4)
)
LUSTRE = Mount("/fsx", "fsx_lustre", roles=("compute",))


def made(*partitions: Partition, **changes: object) -> ClusterDesign:
    whole = {"hosts": (HEAD,), "mounts": NFS, "image": Image("ubuntu-24.04", bake=True), **changes}
    return design(*partitions, isolation="vm", provider="aws", region="eu-west-1", **whole)


def names(whole: ClusterDesign) -> list[str]:
    return [kind.name for kind in images.kinds(whole)]


def test_what_needs_the_same_has_one_image() -> None:
    big = dataclasses.replace(COMPUTE, name="big", instance_type="c4.2xlarge", spot=True, disk_gib=40)
    small = dataclasses.replace(COMPUTE, disk_gib=60)
    controller, login, compute = images.kinds(made(small, big, hosts=(HEAD, *LOGIN)))
    assert (controller.name, controller.members, controller.partition) == (
        "controller",
        ("controller",),
        None,
    )
    assert (login.name, login.role, login.members, login.disk_gib) == (
        "login", "login", ("login-0", "login-1"), 30,
    )  # fmt: skip
    assert (compute.name, compute.role, compute.members) == ("compute", "compute", ("compute", "big"))
    assert compute.disk_gib == 40, "it has to fit the smallest disk"
    assert (compute.host, controller.host) == ("image-compute", "image-controller")


def test_drivers_tell_images_apart() -> None:
    assert names(made(COMPUTE, V100, T4, A100)) == [
        "controller", "compute", "compute-nvidia-closed-efa", "compute-nvidia-open",
        "compute-nvidia-open-switched-efa",
    ]  # fmt: skip
    one = dataclasses.replace(A100, accelerator=Accelerator("a100", 1), aws=AwsPartition())
    assert names(made(one, T4)) == ["controller", "compute-nvidia-open"], "one GPU needs no fabric"
    counted = dataclasses.replace(T4, accelerator=Accelerator("t4", 1, simulated=True))
    neuron = dataclasses.replace(T4, name="n", accelerator=Accelerator("trainium", 16, gres="neuron"))
    assert names(made(counted, neuron)) == ["controller", "compute", "compute-neuron"]


def test_a_machine_with_an_image_of_its_own_needs_none() -> None:
    own = dataclasses.replace(T4, image="ami-1")
    head = dataclasses.replace(HEAD, image="ami-2")
    assert names(made(COMPUTE, own, hosts=(head,))) == ["compute"]


def test_a_machine_finds_its_kind_by_its_name() -> None:
    whole = made(COMPUTE, T4)
    assert images.named(whole, "image-compute-nvidia-open").partition == T4
    with pytest.raises(SystemExit, match=r"image-other is no image .*known: image-controller, image-comp"):
        images.named(whole, "image-other")


def digests(whole: ClusterDesign) -> dict[str, str]:
    return {recipe.kind.name: recipe.digest for recipe in recipes.recipes(whole)}


def every(whole: ClusterDesign, change: Callable[[Partition], Partition]) -> ClusterDesign:
    return dataclasses.replace(whole, partitions=tuple(change(p) for p in whole.partitions))


FREE: dict[str, Callable[[ClusterDesign], ClusterDesign]] = {
    "nodes": lambda d: every(d, lambda p: dataclasses.replace(p, min=1, max=99)),
    "limits": lambda d: every(d, lambda p: dataclasses.replace(p, time_limit="1:00:00", exclusive=True)),
    "prices": lambda d: every(d, lambda p: dataclasses.replace(p, price_hour=9.0)),
    "machines": lambda d: every(d, lambda p: dataclasses.replace(p, instance_type="other", memory_mib=1)),
    "spot": lambda d: every(d, lambda p: dataclasses.replace(p, spot=True, reservation="cr-1")),
    "zones": lambda d: every(d, lambda p: dataclasses.replace(p, zones=("a",))),
    "names": lambda d: every(d, lambda p: dataclasses.replace(p, name=f"{p.name}x")),
    "budget": lambda d: dataclasses.replace(d, budget=Budget(max_usd=3.0)),
    "slurm": lambda d: dataclasses.replace(d, slurm=SlurmSettings(suspend_time=9)),
    "training": lambda d: dataclasses.replace(d, trains=not d.trains, requirements="r.txt"),
    "head": lambda d: dataclasses.replace(
        d, hosts=tuple(dataclasses.replace(host, instance_type="m5.xlarge") for host in d.hosts)
    ),
    "sizes": lambda d: dataclasses.replace(
        d, mounts=tuple(dataclasses.replace(m, size_gib=999) for m in d.mounts)
    ),
}


@pytest.mark.parametrize("hosts", [(HEAD,), (HEAD, *LOGIN)], ids=["without-login-machines", "with"])
@pytest.mark.parametrize("change", FREE)
def test_what_an_image_does_not_hold_makes_no_new_one(change: str, hosts: tuple[Host, ...]) -> None:
    before = made(COMPUTE, T4, hosts=hosts)
    after = FREE[change](before)
    assert after != before
    assert digests(after) == digests(before)


@pytest.mark.parametrize(
    ("changes", "which"),
    [
        ({"mounts": (*NFS, LUSTRE)}, {"compute", "compute-nvidia-open"}),
        ({"mounts": (*NFS, Mount("/local", "nvme", roles=("compute",)))}, {"compute", "compute-nvidia-open"}),
        ({"slurm": SlurmSettings(accounting=True)}, {"controller"}),
        (
            {"image": Image("ubuntu-24.04", bake=True, revision="2026-11-26")},
            {"controller", "compute", "compute-nvidia-open"},
        ),
    ],
)
def test_a_changed_content_of_an_image_changes_its_digest(
    changes: dict[str, object], which: set[str]
) -> None:
    before, after = digests(made(COMPUTE, T4)), digests(made(COMPUTE, T4, **changes))
    assert {name for name in before if before[name] != after[name]} == which


def test_other_steps_make_new_images_and_other_code_does_not(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "node" / "bootstrap" / "vm"
    folder.mkdir(parents=True)
    for file in (ROOT / "node" / "bootstrap" / "vm").glob("*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    whole = made(COMPUTE)

    def found() -> list[str]:
        return [recipe.digest for recipe in recipes.recipes(whole, Path(str(tmp_path)))]

    before = found()
    assert before == [recipe.digest for recipe in recipes.recipes(whole)]
    for other in {file.stem for file in folder.glob("*.py")} - set(recipes.STEPS):
        (folder / f"{other}.py").write_text("# changed\n")
    assert found() == before
    for name in recipes.STEPS:
        (folder / f"{name}.py").write_text("# changed\n")
        assert found() != before
        before = found()


def test_a_name_is_its_content_and_nothing_else() -> None:
    (recipe, *_) = recipes.recipes(made(COMPUTE))
    name = recipe.name("c", "ami-1")
    assert name == recipe.name("c", "ami-1")
    assert (
        len({name, recipe.name("c", "ami-2"), dataclasses.replace(recipe, digest="x").name("c", "ami-1")})
        == 3
    )
    assert recipe.name("c", "<getParameter.value>") == "c-controller-<digest>", "a plan knows no parent"


def test_a_stack_that_bakes_nothing_has_no_recipe() -> None:
    assert recipes.recipes(made(COMPUTE, image=Image("ubuntu-24.04"))) == []


def test_an_image_has_the_clients_of_its_roles_buckets() -> None:
    bucket = Mount("/data", "s3", roles=("compute",), existing="s3://data", options="ro")
    plain, mounting = digests(made(COMPUTE)), digests(made(COMPUTE, mounts=(*NFS, bucket)))
    assert {name for name in plain if plain[name] != mounting[name]} == {"compute"}
    other = dataclasses.replace(bucket, path="/other", existing="s3://other")
    assert digests(made(COMPUTE, mounts=(*NFS, other))) == mounting, "which bucket it is does not matter"
