"""Progressive resizing: training begins with small images."""

from __future__ import annotations

from dataclasses import dataclass

from raytrain import errors
from raytrain.config import Rule, at_least, check

_SHARE: Rule = (lambda share: 0 < share <= 1, "above 0 and at most 1")


@dataclass(frozen=True)
class Progressive:
    """Train on images that grow from epoch to epoch (Howard et al., 2018). Validation sees whole ones."""

    start: int | None = None
    """Side of the images in the first epoch, such as 128; None trains on whole ones throughout."""
    end: int | None = None
    """Side of the images in the end; None is what the model sees in validation."""
    until: float = 0.7
    """Share of all epochs after which images have their last side."""
    multiple: int = 32
    """Sides between start and end are multiples of it."""

    def __post_init__(self) -> None:
        check(self, start=at_least(1), end=at_least(1), until=_SHARE, multiple=at_least(1))

    @property
    def on(self) -> bool:
        """Whether any images are smaller."""
        return self.start is not None

    def side(self, epoch: int, epochs: int, full: int) -> int:
        """Return the side of the images in an epoch, from 0.

        Args:
            epochs: the number of epochs.
            full: the side of the images in validation.
        """
        end, share = self.end or full, epoch / (self.until * epochs)
        start = end if self.start is None else self.start
        if share >= 1:
            return end
        grown = start + (end - start) * share
        return min(end, max(start, round(grown / self.multiple) * self.multiple))

    def sides(self, epochs: int, full: int) -> dict[int, int]:
        """Return each side with the first epoch that has it, from 0."""
        found: dict[int, int] = {}
        for epoch in range(epochs):
            found.setdefault(self.side(epoch, epochs, full), epoch)
        return found

    def check_full(self, height: int, width: int) -> None:
        """Check that images of validation are squares, of at least the last side.

        Raises:
            UserError: they are not.
        """
        if height != width:
            what = f"progressive resizing is for squares, and the model sees {height} x {width} pixels"
            raise errors.UserError(what, "in data.augment.progressive", "set --data.crop")
        end, start = self.end or width, self.start or 1
        if end > width or start > end:
            name, value, most = ("end", end, width) if end > width else ("start", start, end)
            raise errors.out_of_range(name, value, f"of at most {most}", "Progressive")
