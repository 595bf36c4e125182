"""Texts that stand in a configuration for values of other resources, and their replacement.

A component's argument may be an `Output` of another resource, which nobody knows in a preview. The
configuration, the design and all checks are plain data. So there a text stands in for it that has the form of
such a value, such as `vpc-` with digits. Names and counts of resources therefore cannot depend on the value.
What reaches the engine has the `Output` in the text's place: a transformation puts it into every resource's
properties.

The settings that machines read are named by a digest of their content, so they are filled before
(`StandIns.fill`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi import _types

MARK = "1a7e0ff5"
"""The digits by which a stand-in is recognized. An id of a cloud that had them by chance would only be
compared with the stand-ins that there are."""
DIGITS = 17


def is_stand_in(text: object) -> bool:
    """Return whether a value of a configuration or of a design is, or contains, a stand-in."""
    return isinstance(text, str) and MARK in text


def digits(path: str) -> str:
    """Return the digits of the stand-in for the value at a path, always the same."""
    return MARK + hashlib.sha256(path.encode()).hexdigest()[: DIGITS - len(MARK)]


@dataclass(frozen=True, slots=True)
class StandIn:
    """A text that stands for an `Output`.

    Attributes:
        text: The text, in the form of the value.
        value: The `Output`. What it resolves to has that form, too.
    """

    text: str
    value: pulumi.Output[str]

    def is_in(self, text: str) -> bool:
        """Return whether a text has the stand-in, or a part of it."""
        return any(part and part in text for part in self._parts())

    def _parts(self) -> tuple[str, str]:
        """Return the bucket and the folder of the stand-in for a bucket's address, else the whole text."""
        _, slashes, rest = self.text.partition("://")
        bucket, _, folder = rest.partition("/")
        return (bucket, folder) if slashes else (self.text, "")

    def put(self, into: str, value: str) -> str:
        """Return a text with the value in the place of the stand-in.

        The address of a bucket is used as a whole and in its parts: bucket and folder.
        """
        scheme, slashes, rest = self.text.partition("://")
        if not slashes:
            return into.replace(self.text, value)
        bucket, folder = self._parts()
        place = value.removeprefix(f"{scheme}://").rstrip("/")
        value_bucket, _, value_folder = place.partition("/")
        into = into.replace(rest, place).replace(bucket, value_bucket)
        into = into.replace(f"{folder}/", f"{value_folder}/" if value_folder else "")
        return into.replace(f"/{folder}", f"/{value_folder}").replace(folder, value_folder)


@dataclass(frozen=True, slots=True)
class StandIns:
    """The stand-ins of one cluster's configuration."""

    all: tuple[StandIn, ...] = ()

    def output(self, text: str) -> pulumi.Output[str]:
        """Return a text of the design as an `Output`, with the values in it."""
        used = [stand_in for stand_in in self.all if stand_in.is_in(text)]
        if not used:
            return pulumi.Output.from_input(text)

        def put(values: list[str]) -> str:
            filled = text
            for stand_in, value in zip(used, values, strict=True):
                filled = stand_in.put(filled, value)
            return filled

        return pulumi.Output.all(*(stand_in.value for stand_in in used)).apply(put)

    def fill(self, value: Any) -> Any:
        """Return plain data, or an input of a resource, with the values in the place of their stand-ins."""
        if isinstance(value, str):
            return self.output(value) if is_stand_in(value) else value
        if isinstance(value, pulumi.Output):
            return value.apply(self.fill)
        if isinstance(value, Mapping):
            return {key: self.fill(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.fill(inner) for inner in value]
        if _types.is_input_type(type(value)):
            filled = copy.copy(value)
            filled.__dict__.update({key: self.fill(inner) for key, inner in value.__dict__.items()})
            return filled
        return value

    def fill_resource(
        self, args: pulumi.ResourceTransformationArgs
    ) -> pulumi.ResourceTransformationResult | None:
        """Fill the properties of a resource, as a transformation of the component that it is a part of."""
        props = {key: self.fill(value) for key, value in args.props.items()}
        if isinstance(args.opts.id, str) and is_stand_in(args.opts.id):
            # What is there already is read by its id.
            args.opts.id = self.output(args.opts.id)
        return pulumi.ResourceTransformationResult(props, args.opts)


NONE = StandIns()
