"""Keras `fit` on several workers: TensorFlow finds the others by TF_CONFIG, which the launcher sets.

It runs in the training environment (TensorFlow and tf_keras), so the stack file needs no requirements.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES, CLASSES = 4096, 64, 10


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around ten centres: made here, so that the example needs no download."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    source = np.random.default_rng(seed)
    labels = source.integers(CLASSES, size=EXAMPLES)
    points = centres[labels] + 2 * source.normal(size=(EXAMPLES, FEATURES))
    return points.astype("float32"), labels


class Report(tf.keras.callbacks.Callback):
    """Appends a line of progress after each epoch, which `./cluster up` and `./cluster run` show."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if path := os.environ.get("SLURM_STACKS_PROGRESS"):
            values = {name: float(value) for name, value in (logs or {}).items()}
            line = {"epoch": epoch + 1, "epochs": self.params["epochs"], **values}
            with Path(path).open("a") as file:
                print(json.dumps(line), file=file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="examples for each worker and step")
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    chief = int(os.environ.get("RANK", "0")) == 0
    points, labels = data(seed=1)
    source = tf.data.Dataset.from_tensor_slices((points, labels)).shuffle(EXAMPLES, seed=1)
    source = source.batch(options.batch * workers, drop_remainder=True)
    with strategy.scope():
        layers = [tf.keras.layers.Dense(256, "relu", input_shape=(FEATURES,)), tf.keras.layers.Dense(CLASSES)]
        model = tf.keras.Sequential(layers)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])

    began = time.monotonic()
    model.fit(source, epochs=options.epochs, verbose=0, callbacks=[Report()] if chief else [])
    seconds = time.monotonic() - began
    # Every worker has the same weights: the chief alone looks at data that no worker has trained on.
    if chief:
        held_out, answers = data(seed=2)
        first, second = (layer.get_weights() for layer in layers)
        hidden = np.maximum(held_out @ first[0] + first[1], 0)
        accuracy = float(np.mean((hidden @ second[0] + second[1]).argmax(1) == answers))
        print(f"{workers} workers: {seconds:.1f} s, held-out accuracy {accuracy:.4f}")
        if path := os.environ.get("SLURM_STACKS_RESULT"):
            Path(path).write_text(json.dumps({"seconds_train": seconds, "test_accuracy": accuracy}))


if __name__ == "__main__":
    main()
