"""Augmentation as an author declares it. `prepare.py` applies it: `operations` by `changes.py`, in their order; crop,
padding, flip, policy and erase, which are older, by `transforms.py`, in one order."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from raytrain import errors
from raytrain.config import SHARE, at_least, check, within
from raytrain.data.operation import Operation
from raytrain.data.operations import RATIO, SCALE, RandomResizedCrop
from raytrain.data.progressive import Progressive

if TYPE_CHECKING:
    from raytrain.data.source import Index

_FLAT = {"crop": "center", "padding": 0, "flip": 0.0, "policy": "none", "erase": 0.0}
"""The fields that have operations of their own, and their defaults."""
_PARTS = {
    "padding": ("crop", "random"),
    "scale": ("crop", "random_resized"),
    "ratio": ("crop", "random_resized"),
    "policy_ops": ("policy", "randaugment"),
    "policy_magnitude": ("policy", "randaugment"),
}
"""The fields that belong to a value of another one."""


@dataclass(frozen=True)
class Augment:
    """Random changes of training images. They depend on (seed, epoch, sample) only, so they are the same for any number
    of workers and after a resume."""

    crop: Literal["center", "random", "random_resized"] = "center"
    """The part of the image that the model sees: the centre, a random place, or a random place, area and aspect ratio,
    resized (Szegedy et al., 2015)."""
    padding: int = 0
    """Black pixels added on each side before a random crop."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Range of the area of a random_resized crop, as a share of the image's."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """Range of the aspect ratio of a random_resized crop."""
    flip: float = 0.0
    """Probability of a horizontal flip."""
    policy: Literal["none", "randaugment", "trivialaugment"] = "none"
    """Changes of colour and shape of every image of 1 or 3 channels: policy_ops changes (Cubuk et al., 2020), or one of
    random strength (Müller and Hutter, 2021), which moves the image by up to 32 pixels."""
    policy_ops: int = 2
    """Number of changes that randaugment makes in sequence."""
    policy_magnitude: int = 9
    """Strength of randaugment's changes, from 0 to 30."""
    erase: float = 0.0
    """Probability that a rectangle of the normalised image becomes 0 (Zhong et al., 2020)."""
    mixup: float = 0.0
    """Blend images and labels, or numbers, of two samples with a share from Beta(mixup, mixup) (Zhang et al., 2018); 0
    is off. Samples 2k and 2k + 1 of a global batch are a pair, for any number of workers: a worker's micro-batch must
    be even, and a smaller last batch of an epoch is not mixed."""
    cutmix: float = 0.0
    """Put a rectangle of one image into the other, with a share from Beta(cutmix, cutmix) (Yun et al., 2019). Pairs,
    micro-batches and last batches are as for mixup. With both, each pair gets one of the two with equal probability."""
    operations: tuple[Operation, ...] = ()
    """Changes of images and masks in this order, in place of crop, padding, flip, policy and erase. What they leave
    larger than the model sees is cut to its centre."""
    progressive: Progressive = field(default_factory=Progressive)
    """Smaller images in the first epochs, resized after all other changes of shape."""

    def __post_init__(self) -> None:
        if any(isinstance(one, Operation) for one in (self.crop if isinstance(self.crop, tuple) else (self.crop,))):
            raise errors.UserError(
                "operations are given by name", "in Augment", "write operations=(HorizontalFlip(p=0.5), ...)"
            )
        for one in self.operations if isinstance(self.operations, tuple) else (self.operations,):
            if not isinstance(one, Operation):
                got = f"the class {one.__name__}" if isinstance(one, type) else f"{one!r}"[:60]
                what = f"operations must be a tuple of raytrain's operations, got {got}"
                name = (one if isinstance(one, type) else type(one)).__name__
                near = "" if name in (known := _names(Operation)) else errors.nearest(name, known)
                how = f"{near}write operations=(HorizontalFlip(p=0.5), ColorJitter(hue=0.1))"
                raise errors.UserError(what, "in Augment", how)
        check(
            self,
            padding=at_least(0),
            flip=SHARE,
            policy_ops=at_least(1),
            policy_magnitude=within(0, 31),
            erase=SHARE,
            mixup=at_least(0),
            cutmix=at_least(0),
            scale=SCALE,
            ratio=RATIO,
        )
        mixed = [name for name, default in _FLAT.items() if self.operations and getattr(self, name) != default]
        if mixed:
            raise errors.UserError(
                f"operations take the place of {mixed[0]}, and both are given",
                "in Augment",
                f"leave {mixed[0]} out, and write what it does into operations",
            )
        late = [one.normalised for one in self.operations]
        if late != sorted(late):
            name = type(self.operations[late.index(True)]).__name__
            raise errors.UserError(
                f"{name} changes normalised images, and another operation follows", "in Augment", f"put {name} last"
            )

    def idle(self) -> list[str]:
        """Return a line for the plan for each value that does nothing beside the others."""
        given = {one.name: getattr(self, one.name) != one.default for one in fields(self)}
        return [
            f"data.augment.{name} does nothing: it is for {of}={wanted!r}, and {of} is {getattr(self, of)!r}"
            for name, (of, wanted) in _PARTS.items()
            if given[name] and getattr(self, of) != wanted
        ]

    @property
    def alters(self) -> bool:
        """Whether an image is changed by itself, at random."""
        flat = self.crop != "center" or self.flip > 0 or self.policy != "none" or self.erase > 0
        return flat or bool(self.operations)

    @property
    def random(self) -> bool:
        """Whether any change is random."""
        return self.alters or self.mixes

    @property
    def changes(self) -> bool:
        """Whether training images are anything but those of validation."""
        return self.random or self.progressive.on

    @property
    def first_crop(self) -> RandomResizedCrop | None:
        """The random resized crop that comes before all other changes, if one does: `data.whole` takes it from whole
        images."""
        if self.crop == "random_resized":
            return RandomResizedCrop(scale=self.scale, ratio=self.ratio)
        first = self.operations[0] if self.operations else None
        return first if type(first) is RandomResizedCrop else None

    @property
    def after_crop(self) -> Augment:
        """What follows `first_crop`."""
        return replace(self, crop="center", operations=self.operations[1:])

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed in pairs."""
        return self.mixup > 0 or self.cutmix > 0


def mixed_field(index: Index) -> str | None:
    """Return the name of the only field besides the image, whose numbers mixup and cutmix mix as the images; an empty
    string where they mix labels; None where samples have neither, or more."""
    image, *others = index.fields
    if image.kind != "image":
        return None
    if index.labels is not None:
        return None if others else ""
    return others[0].name if len(others) == 1 and others[0].kind == "plain" else None


def _names(kind: type) -> list[str]:
    """Return the names of the public subclasses of a class."""
    found = [name for one in kind.__subclasses__() for name in (one.__name__, *_names(one))]
    return [name for name in found if not name.startswith("_")]
