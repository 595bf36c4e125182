"""The published training as its articles describe it, in our words. Made-up images stand in for MNIST.

Where the launcher has not set TF_CONFIG, the program makes it from Slurm's variables with the published port:
`same` is that port for all workers, as printed, and `rank` one for each.
"""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import tensorflow as tf

PORT = 22222
EACH = 64
EXAMPLES = 1280
EPOCHS = 2


def set_up(ports: str) -> int:
    """Set TF_CONFIG, and return the number of workers."""
    if "TF_CONFIG" not in os.environ:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
            capture_output=True,
            text=True,
            check=True,
        )
        names = listed.stdout.split()
        workers = [f"{name}:{PORT + (index if ports == 'rank' else 0)}" for index, name in enumerate(names)]
        task = {"type": "worker", "index": names.index(os.environ["SLURMD_NODENAME"])}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])


def images(batch: int) -> tf.data.Dataset:
    """Return batches of grey images, each as bright as its number."""
    labels: Any = np.arange(EXAMPLES, dtype=np.int64) % 10
    noise = np.random.default_rng(0).random((EXAMPLES, 28, 28), dtype=np.float32)
    pixels = (noise * 20 + labels[:, None, None] * 23).astype(np.float32) / np.float32(255)
    return tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(EXAMPLES).repeat().batch(batch)


def network() -> tf.keras.Model:
    """Return the published network, compiled."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input(shape=(28, 28)),
            layers.Reshape(target_shape=(28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Train, and print what the articles' output has."""
    workers = set_up(sys.argv[1] if len(sys.argv) > 1 else "same")
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    batch = EACH * workers
    with strategy.scope():
        model = network()
    done = model.fit(images(batch), epochs=EPOCHS, steps_per_epoch=EXAMPLES // batch)
    print(f"\ntrained by {workers} workers, loss {done.history['loss'][-1]:.4f}", flush=True)


main()
