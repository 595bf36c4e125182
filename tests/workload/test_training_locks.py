"""The two training environments: what their locks must and must not contain."""

import tomllib
from pathlib import Path

import pytest

ENVS = Path(__file__).resolve().parents[2] / "workload" / "envs"


def locked(name: str) -> dict[str, list[str]]:
    lock = tomllib.loads((ENVS / name / "uv.lock").read_text(encoding="utf-8"))
    versions: dict[str, list[str]] = {}
    for package in lock["package"]:
        versions.setdefault(package["name"], []).append(package["version"])
    return versions


def test_cpu_nodes_get_no_second_tensorflow() -> None:
    packages = locked("cpu")
    assert packages["tensorflow-cpu"] == ["2.21.0"]
    assert "tensorflow" not in packages
    assert not [name for name in packages if name.startswith("nvidia-")]


def test_gpu_nodes_get_cuda_that_knows_the_v100() -> None:
    packages = locked("gpu")
    assert packages["tensorflow"] == ["2.21.0"]
    assert "tensorflow-cpu" not in packages
    (cudnn,) = packages["nvidia-cudnn-cu12"]
    assert tuple(map(int, cudnn.split(".")[:2])) < (9, 11)
    assert all(
        version.startswith("12.")
        for name in ("nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12")
        for version in packages[name]
    )


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_both_have_what_the_workload_imports(name: str) -> None:
    packages = locked(name)
    assert {"numpy", "scikit-learn", "tf-keras"} <= packages.keys()
    project = tomllib.loads((ENVS / name / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["requires-python"] == ">=3.11,<3.14"
