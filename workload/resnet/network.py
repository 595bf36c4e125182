"""The network and its recipe: ResNet with bottleneck blocks, and SGD with a learning rate for large batches.

The network is version 1.5, in which the 3×3 convolution has the stride. The recipe is the published one: the
learning rate grows with the batch, over a warm-up of ten epochs, and falls along a polynomial to nothing;
labels are smoothed, and weight decay leaves out biases and normalizations. Source: He et al., "Deep Residual
Learning for Image Recognition" (arXiv:1512.03385); Goyal et al., "Accurate, Large Minibatch SGD"
(arXiv:1706.02677) for the rate and for the zero-initialized scale that ends each block; You et al.
(arXiv:1708.03888) for the polynomial of power 2.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

SHAPES: dict[str, tuple[int, tuple[int, ...]]] = {"resnet50": (64, (3, 4, 6, 3)), "tiny": (8, (1, 1))}
"""Network -> the channels of its first group and the number of blocks of each group."""
EXPANSION = 4
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Mean and standard deviation of ImageNet's red, green and blue, on the scale 0 to 255."""
PUBLISHED_BATCH = 256
"""The images of a step to which the given learning rate belongs."""
POWER = 2.0
MOMENTUM = 0.9
DECAY = 5e-5
SMOOTHING = 0.1
FIRST_SCALE = 2.0**15
"""The first factor of the loss in float16. Without a factor, small gradients would become 0."""


def build(network: str, classes: int, image_size: int) -> Any:
    """Return the network as a Keras model: images of bytes -> logits as float32.

    Args:
        network: A key of `SHAPES`.
        classes: The number of logits.
        image_size: The pixels of an image's side.
    """
    layers = tf.keras.layers
    channels, groups = SHAPES[network]
    images = layers.Input((image_size, image_size, 3), dtype="uint8")
    x = layers.Lambda(_normalized, name="normalized", dtype="float32")(images)
    x = _convolution(x, channels, 7, 2)
    x = layers.ReLU()(_normalization(x))
    x = layers.MaxPool2D(3, 2, padding="same")(x)
    for group, blocks in enumerate(groups):
        for block in range(blocks):
            stride = 2 if group > 0 and block == 0 else 1
            x = _block(x, channels << group, stride, widen=block == 0)
    x = layers.GlobalAveragePooling2D()(x)
    # Softmax and loss need the range of float32 numbers.
    logits = layers.Dense(
        classes,
        kernel_initializer=tf.keras.initializers.RandomNormal(stddev=0.01),
        dtype="float32",
        name="logits",
    )(x)
    return Network(images, logits)


class Network(tf.keras.Model):  # type: ignore[misc]
    """A Keras model whose metrics are read between the calls of `fit`, and not at each step.

    To read a metric takes an all-reduce of all workers for each of its variables.
    """

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
        """Add a step to the metrics, and return its number only."""
        self.compiled_metrics.update_state(y, y_pred, sample_weight)
        return {"step": tf.identity(self.optimizer.iterations)}


def _normalized(images: Any) -> Any:
    return (tf.cast(images, tf.float32) - tf.constant(MEAN)) / tf.constant(DEVIATION)


def _block(x: Any, channels: int, stride: int, *, widen: bool) -> Any:
    layers = tf.keras.layers
    shortcut = x
    if widen:
        shortcut = _normalization(_convolution(x, channels * EXPANSION, 1, stride))
    x = layers.ReLU()(_normalization(_convolution(x, channels, 1, 1)))
    x = layers.ReLU()(_normalization(_convolution(x, channels, 3, stride)))
    x = _normalization(_convolution(x, channels * EXPANSION, 1, 1), scale="zeros")
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _convolution(x: Any, channels: int, size: int, stride: int) -> Any:
    return tf.keras.layers.Conv2D(
        channels, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal"
    )(x)


def _normalization(x: Any, scale: str = "ones") -> Any:
    return tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=scale)(x)


def loss(labels: Any, logits: Any) -> Any:
    """Return the loss of each image, with smoothed labels.

    Args:
        labels: The number of each image's class.
        logits: The network's output.
    """
    classes = logits.shape[-1]
    smoothed = tf.one_hot(tf.cast(labels, tf.int64), classes) * (1 - SMOOTHING) + SMOOTHING / classes
    return tf.nn.softmax_cross_entropy_with_logits(smoothed, logits)


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """The learning rate of each step.

    Args:
        peak: The highest rate.
        steps: The steps of the whole training.
        warmup: The steps until the highest rate.
    """

    def __init__(self, peak: float, steps: int, warmup: int) -> None:
        self._peak, self._steps, self._warmup = peak, steps, min(warmup, steps - 1)

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step. Steps count from 0."""
        done = tf.cast(step, tf.float32)
        rising = self._peak * (done + 1) / max(self._warmup, 1)
        left = 1 - (done - self._warmup) / max(self._steps - self._warmup, 1)
        return tf.where(done < self._warmup, rising, self._peak * tf.maximum(left, 0.0) ** POWER)


class Momentum(tf.keras.optimizers.SGD):  # type: ignore[misc]
    """SGD with momentum, whose weight decay is a part of the gradient.

    The rate multiplies the momentum and is not in it, as Goyal et al. define it. So the momentum needs no
    correction when the rate changes. Keras's own SGD has the rate in its momentum.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule, momentum=MOMENTUM)

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Change one variable by its gradient, which is the mean over the images of all workers."""
        if len(variable.shape) > 1:
            gradient = gradient + DECAY * variable
        momentum = self.momentums[self._index_dict[self._var_key(variable)]]
        momentum.assign(MOMENTUM * momentum + gradient)
        variable.assign_sub(self.learning_rate * momentum)


def optimizer(schedule: Schedule, loss_scale: float | None) -> Any:
    """Return the optimizer. Call this within the strategy's scope.

    Args:
        schedule: The learning rate of each step.
        loss_scale: The factor of the loss with which a training in float16 begins or goes on. It is halved at
            a step whose gradients overflow, which changes no weight, and doubled after 2,000 steps without an
            overflow. `None` means a training in float32.
    """
    momentum = Momentum(schedule)
    if loss_scale is None:
        return momentum
    return tf.keras.mixed_precision.LossScaleOptimizer(momentum, initial_scale=loss_scale)
