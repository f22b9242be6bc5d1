"""Packed: samples that `raytrain pack` has written to shards, in a folder or at a URL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raytrain import errors
from raytrain.config import above, check
from raytrain.data.images import CROP, Images
from raytrain.data.late import with_pillow
from raytrain.data.source import Field, Index

if TYPE_CHECKING:
    from raytrain.data.crops import Crops
    from raytrain.data.decode_gpu import Decoder
    from raytrain.data.packs import Pack


@dataclass(frozen=True)
class Packed(Images):
    """The samples of another source, as `raytrain pack SOURCE DEST` has written them: in the same order, with the same
    labels, columns and fields, so that batches are those of the source. What is None or auto is as in the source."""

    root: str = ""
    """The pack's folder, or its URL such as s3://bucket/pack."""
    size: int | None = field(default=None)  # type: ignore[assignment]
    """Side of the stored images: the central square of each image, resized. None takes the source's. A raw pack has the
    size that it was packed with."""
    channels: Literal[1, 3] | None = field(default=None)  # type: ignore[assignment]
    """3 for RGB, 1 for grey; None takes the source's. A raw pack has the channels that it was packed with."""
    fetched: float = field(default=100.0, kw_only=True)
    """GiB that shards of packs at URLs may take in the folder `cache` of each machine. Of a pack that is larger, the
    other shards are read from the URL, sample by sample."""

    def __post_init__(self) -> None:
        check(self, fetched=above(0))
        super().__post_init__()

    @property
    def resizes(self) -> bool:
        """Whether the images can be decoded to any size."""
        return not self.root or not self._pack(first=True).raw

    @property
    def direct(self) -> bool:
        """Whether each rank reads samples by itself, in threads."""
        return type(self).read is Packed.read

    @property
    def raw(self) -> bool:
        """Whether samples are stored as they are used, which the system keeps in memory for all ranks."""
        return self._pack().raw

    @property
    def input_side(self) -> int | None:
        """Side of the square that the model sees; None is the whole stored image."""
        if self.crop != "auto":
            return self.crop
        known = self.source
        if self.size is None and known["crop"] != "auto":
            return known["crop"]
        side = self.size or known["size"]
        return side if self.squashed else min(CROP, side)

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std for images of that many channels: the source's where they are None."""
        default = super().normalisation(channels)
        known = self.source["normalisation"].get(str(channels))
        mean, std = default if known is None else (tuple(known[0]), tuple(known[1]))
        return self.mean or mean, self.std or std

    @property
    def resampling(self) -> Literal["bilinear", "bicubic"]:
        """How images are resized: as the source's where it is auto."""
        return self.source.get("interpolation", "bilinear") if self.interpolation == "auto" else self.interpolation

    @property
    def squashed(self) -> bool:
        """Whether whole images are resized to squares: as the source's where `fit` is auto."""
        return self.source.get("fit") == "squash" if self.fit == "auto" else self.fit == "squash"

    def index(self) -> dict[str, Index]:
        """Return the samples of each split of the source, in its order."""
        if not self.root:
            raise errors.no_root("Packed")
        pack = self._pack(first=True)
        set_here = [name for name in ("size", "channels") if getattr(self, name) is not None]
        set_here += [name for name in ("interpolation", "fit") if getattr(self, name) != "auto"]
        if pack.raw and set_here:
            name = set_here[0]
            how = f"leave {name} out, or pack the data again"
            raise errors.UserError(f"a raw pack has the {name} that it was packed with", "in Packed", how)
        if pack.raw and self.whole:
            what = "a raw pack has the arrays that training reads, such as central squares, and no whole images"
            raise errors.UserError(what, "in Packed.whole", "pack the images with --codec original or jpeg")
        found = {}
        for split, values in pack.values["splits"].items():
            index = pack.table(split).index(split, values, pack.raw)
            settled: Any = self._settled()
            found[split] = index if pack.raw else index.reshaped((settled.channels, settled.size, settled.size))
        return found

    def read(  # type: ignore[override]
        self,
        index: Index,
        samples: np.ndarray,
        out: dict[str, np.ndarray] | None = None,
        crops: Crops | None = None,
        decoder: Decoder | None = None,
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Return the arrays of some samples: those of a raw pack as they are, others decoded, as `Images.read`."""
        pack = self._pack()
        if pack.raw:
            return pack.arrays(index.split, index.rows[samples], index.fields, out)
        more = _further(index, len(samples))
        raws = pack.encoded(index.split, index.rows[samples], more)
        images = self._settled()._decoded(index, samples, raws, out, crops, decoder)
        return {index.input.name: images} | more if more else images

    def at_hand(self, index: Index, samples: np.ndarray, out: dict[str, np.ndarray]) -> int:
        """Fill the arrays of the first samples that the system has in memory; return how many (`Pack.at_hand`)."""
        return self._pack().at_hand(index.split, index.rows[samples], index.fields, out)

    def encoded(self, index: Index, samples: np.ndarray) -> Iterator[bytes]:
        """Yield the bytes of some images, after comparing their checksums."""
        return self._pack().encoded(index.split, index.rows[samples], _further(index, len(samples)))

    def further(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays that are packed beside some images."""
        more = _further(index, len(samples))
        for _ in self._pack().encoded(index.split, index.rows[samples], more) if more else ():
            pass
        return more

    def where(self, index: Index, sample: int) -> str:
        """Return a sample's shard and name."""
        return self._pack().name(index.split, int(index.rows[sample]))

    def size_notes(self, index: Index) -> list[str]:
        """Return what becomes of the images' pixels."""
        return [] if self._pack().raw else Images.size_notes(self._settled(), index)

    def notes(self) -> list[str]:
        """Return notes for the plan: that not all shards can be fetched, and that decoded images cannot be cached."""
        return [*self._pack().notes(), *([] if self._pack().raw else super().notes())]

    def cache_entry(self, index: Index) -> Path | None:
        """Return the cache entry of decoded images, named by the pack's checksum and how they are decoded."""
        pack, settled = self._pack(), self._settled()
        if self.cache == "off" or pack.raw or self.own_code:
            return None
        named = replace(index, times=np.zeros(0, np.int64))
        folder, entry = self._cache_folder(), with_pillow().image_files.cache_entry
        root = f"pack {pack.digest}"
        return entry(folder, named, root, settled.size, settled.channels, settled.resampling, settled.squashed)

    @property
    def decodes(self) -> bool:
        """Whether `read` decodes images."""
        return not self._pack().raw

    def _pack(self, first: bool = False) -> Pack:
        return with_pillow().packs.opened(self.root, self.cache, self.fetched, first)

    @property
    def source(self) -> dict[str, Any]:
        """What the pack tells of its source (`described`)."""
        return self._pack().values["source"]

    def _settled(self) -> Packed:
        """Return the source with nothing of what decides pixels left to the pack."""
        known = self.source
        return replace(
            self,
            size=self.size or known["size"],
            channels=self.channels or known["channels"],
            interpolation=self.resampling,
            fit="squash" if self.squashed else "cut",
        )


def _further(index: Index, count: int) -> dict[str, np.ndarray]:
    """Return room for the arrays of the fields after the image."""
    return {field.name: np.empty((count, *field.shape), field.dtype) for field in index.fields[1:]}


def described(data: Any, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return what a pack tells of its source: how `Packed` prepares samples where it is not told otherwise."""
    images = [one for one in fields if one.kind == "image"]
    counts = {one.shape[0] for one in images}
    encoded = isinstance(data, Images)
    crop = "auto" if encoded and data.crop == "auto" else data.input_side
    if isinstance(data, Packed) and data.size is None and data.crop == "auto":
        crop = data.source["crop"]
    return {
        "class": type(data).__name__,
        "size": min((min(one.shape[-2:]) for one in images), default=None),
        "channels": images[0].shape[0] if encoded and images else None,
        "crop": crop,
        "normalisation": {str(count): [list(part) for part in data.normalisation(count)] for count in sorted(counts)},
        **({"interpolation": data.resampling} if data.resampling != "bilinear" else {}),
        **({"fit": "squash"} if data.squashed else {}),
    }
