"""Checks the GPUs of this task, has them take memory on demand, and names them as the published runs do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tensorflow as tf

from workload.errors import WorkloadError


def check_gpus(visible: int, asked_for: int, tasks_on_node: int, node: str) -> None:
    """Refuse to train on fewer or more GPUs than requested: on fewer it would be slow and cost the same.

    Args:
        visible: GPUs that TensorFlow sees in this task.
        asked_for: GPUs requested for a node, which its tasks share evenly.
        tasks_on_node: Tasks of the step on this node.
        node: The node's name, for the message.

    Raises:
        WorkloadError: The numbers differ.
    """
    share, rest = divmod(asked_for, tasks_on_node)
    if rest:
        raise WorkloadError(
            f"GPUs a node, {asked_for}, cannot be shared evenly by its tasks, {tasks_on_node}"
        )
    if visible != share:
        raise WorkloadError(
            f"{share} GPU(s) asked for, but TensorFlow sees {visible} on {node}: "
            "check the driver (nvidia-smi), --gres, and that the GPU environment is installed"
        )


def set_up(asked_for: int, tasks_on_node: int, node: str) -> None:
    """Check the GPUs and let each take memory as it needs it. Call this before anything else uses them."""
    gpus = tf.config.list_physical_devices("GPU")
    check_gpus(len(gpus), asked_for, tasks_on_node, node)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def get_available_devices() -> list[str]:
    """Return `['/device:CPU:0', '/device:GPU:0', …]`, as the published program prints it."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.client import device_lib

    # Without this configuration the listing itself would take all memory of every GPU.
    on_demand = config_pb2.ConfigProto(gpu_options=config_pb2.GPUOptions(allow_growth=True))
    found: list[Any] = device_lib.list_local_devices(session_config=on_demand)
    return [device.name for device in found]


def gpu_versions() -> dict[str, str]:
    """Return the GPUs' model and the versions of driver, CUDA and cuDNN; nothing where there is no GPU.

    CUDA and cuDNN are those that TensorFlow was built for, which its environment installs.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return {}
    build = tf.sysconfig.get_build_info()
    found = {
        "gpu": tf.config.experimental.get_device_details(gpus[0]).get("device_name"),
        "nvidia_driver": driver_version(),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }
    return {name: str(version) for name, version in found.items() if version}


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's kernel driver, or None if it is not loaded."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None
