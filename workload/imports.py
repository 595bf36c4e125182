"""Makes the import of large packages faster, and says how much TensorFlow writes about it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
