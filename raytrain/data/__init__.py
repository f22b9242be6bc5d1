"""Data sources, and the path from files to batches. A new source is one new file here."""

from raytrain.data.augment import Augment
from raytrain.data.batch import Batch
from raytrain.data.digits import Digits
from raytrain.data.folds import Folds
from raytrain.data.imagefolder import ImageFolder
from raytrain.data.mixed import Mixed
from raytrain.data.mnist import MNIST
from raytrain.data.sampler import Balanced, Sampler, Weighted
from raytrain.data.source import Data, Field, Index
from raytrain.data.torch_data import TorchData

__all__ = [
    "Augment",
    "Balanced",
    "Batch",
    "Data",
    "Digits",
    "Field",
    "Folds",
    "ImageFolder",
    "Index",
    "MNIST",
    "Mixed",
    "Sampler",
    "TorchData",
    "Weighted",
]
