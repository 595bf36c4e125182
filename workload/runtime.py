"""TensorFlow in a task: its variables, its import, and the GPUs that it sees.

Nothing here imports TensorFlow before a function needs it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workload.errors import WorkloadError


def set_variables(log_level: str) -> None:
    """Set the variables that TensorFlow reads when it is imported.

    Args:
        log_level: The level of messages, if the environment sets none.
    """
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", log_level)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Import packages in the `with` block without the garbage collector.

    TensorFlow makes millions of objects that live as long as the process. The collector would examine them
    again and again and find nothing, which takes a fifth of the import's time; afterwards it leaves them out.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def log_level(gpus_per_node: int) -> str:
    """Return TensorFlow's level of messages.

    On GPUs its own lines name the devices, as in the published outputs. On CPUs they say nothing of use.
    """
    return "0" if gpus_per_node else "1"


def grow_memory() -> list[Any]:
    """Let each GPU take memory as it needs it, and return the GPUs. Call this before anything uses them."""
    import tensorflow as tf

    gpus: list[Any] = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return gpus


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


def set_up_gpus(asked_for: int, tasks_on_node: int, node: str) -> None:
    """Check the number of GPUs. Call this before anything else uses them."""
    check_gpus(len(grow_memory()), asked_for, tasks_on_node, node)


def get_available_devices() -> list[str]:
    """Return `['/device:CPU:0', '/device:GPU:0', …]`, as the published program prints it."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.client import device_lib

    # Without this configuration the listing itself would take all memory of every GPU.
    on_demand = config_pb2.ConfigProto(gpu_options=config_pb2.GPUOptions(allow_growth=True))
    devices: list[Any] = device_lib.list_local_devices(session_config=on_demand)
    return [device.name for device in devices]


def gpu_versions() -> dict[str, str]:
    """Return the GPUs' model and the versions of driver, CUDA and cuDNN; nothing where there is no GPU.

    CUDA and cuDNN are those that TensorFlow was built for, which its environment installs.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return {}
    build = tf.sysconfig.get_build_info()
    versions = {
        "gpu": tf.config.experimental.get_device_details(gpus[0]).get("device_name"),
        "nvidia_driver": driver_version(),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }
    return {name: str(version) for name, version in versions.items() if version}


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's kernel driver, or None if it is not loaded."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None
