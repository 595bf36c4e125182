"""The GPUs of this task: the right number, with memory on demand, and named as in the published runs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from workload.errors import WorkloadError


def check_gpus(visible: int, asked_for: int, tasks_on_node: int, node: str) -> None:
    """Refuse to train on other GPUs than those asked for: it would run, slowly, and cost the same.

    Args:
        visible: GPUs that TensorFlow sees in this task.
        asked_for: GPUs of a whole node, which its tasks share evenly.

    Raises:
        WorkloadError: the numbers differ.
    """
    share, rest = divmod(asked_for, tasks_on_node)
    if rest:
        raise WorkloadError(f"GPUs a node, {asked_for}, cannot be shared evenly by {tasks_on_node} tasks")
    if visible != share:
        raise WorkloadError(
            f"{share} GPU(s) asked for, but TensorFlow sees {visible} on {node}: "
            "check the driver (nvidia-smi), --gres, and that the GPU environment is installed"
        )


def set_up(asked_for: int, tasks_on_node: int, node: str) -> None:
    """Check the GPUs and let each take memory as it needs it; before anything else touches them."""
    gpus = tf.config.list_physical_devices("GPU")
    check_gpus(len(gpus), asked_for, tasks_on_node, node)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def get_available_devices() -> list[str]:
    """`['/device:CPU:0', '/device:GPU:0', …]`, as the published program prints it."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.client import device_lib

    # Without this configuration the mere listing would take all memory of every GPU.
    on_demand = config_pb2.ConfigProto(gpu_options=config_pb2.GPUOptions(allow_growth=True))
    found: list[Any] = device_lib.list_local_devices(session_config=on_demand)
    return [device.name for device in found]
