"""The published model, exactly. It has 2,770,634 parameters, so the gradient of a step has 11.1 MB."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

PARAMETERS = 2_770_634


def build() -> Any:
    """Return the model without an optimizer. Call this within the strategy's scope.

    `tf.keras` is tf_keras (Keras 2) here, by TF_USE_LEGACY_KERAS: Keras 3 cannot `fit` under
    MultiWorkerMirroredStrategy.
    """
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def held_out_hits(model: Any, images: Any, labels: Any, batch: int = 1000) -> Any:
    """Return which of the held-out images the model gets right, (n,) bool. It runs on this worker alone."""
    forward = tf.function(lambda x: tf.argmax(model(x, training=False), axis=1), autograph=False)
    guesses = [
        forward(tf.cast(images[start : start + batch], tf.float32) / 255.0).numpy()
        for start in range(0, len(images), batch)
    ]
    return np.concatenate(guesses) == labels


def held_out_accuracy(model: Any, images: Any, labels: Any, batch: int = 1000) -> float:
    """Return the share of held-out images that the model gets right. It runs on this worker alone."""
    return float(held_out_hits(model, images, labels, batch).mean())
