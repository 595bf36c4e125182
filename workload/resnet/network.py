"""The network: ResNet with bottleneck blocks, version 1.5, in which the 3×3 convolution has the stride.

Source: He et al., "Deep Residual Learning for Image Recognition" (arXiv:1512.03385), and Goyal et al.,
"Accurate, Large Minibatch SGD" (arXiv:1706.02677) for the zero-initialized scale that ends each block.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

SHAPES: dict[str, tuple[int, tuple[int, ...]]] = {"resnet50": (64, (3, 4, 6, 3)), "tiny": (8, (1, 1))}
"""Network -> the channels of its first group and the number of blocks of each group."""
EXPANSION = 4
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Mean and standard deviation of ImageNet's red, green and blue, on the scale 0 to 255."""


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
    return tf.keras.Model(images, logits)


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
