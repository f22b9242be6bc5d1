"""Data sources, and the path from files to batches. A new source is one new file here."""

from raytrain.data.augment import Augment
from raytrain.data.digits import Digits
from raytrain.data.imagefolder import ImageFolder
from raytrain.data.mnist import MNIST
from raytrain.data.source import Data, Index

__all__ = ["MNIST", "Augment", "Data", "Digits", "ImageFolder", "Index"]
