"""Data sources, and the path from files to batches. A new source is one new file here."""

from raytrain.data.augment import Augment
from raytrain.data.batch import Batch
from raytrain.data.digits import Digits
from raytrain.data.folds import Folds
from raytrain.data.imagefolder import ImageFolder
from raytrain.data.images import Images
from raytrain.data.manifest import Manifest
from raytrain.data.maskfolder import MaskFolder
from raytrain.data.mixed import Mixed
from raytrain.data.mnist import MNIST
from raytrain.data.operation import Operation
from raytrain.data.operations import (
    ColorJitter,
    GaussianBlur,
    HorizontalFlip,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomResizedCrop,
    RandomRotation,
    VerticalFlip,
)
from raytrain.data.packed import Packed
from raytrain.data.policy_operations import AugMix, RandAugment, TrivialAugmentWide
from raytrain.data.progressive import Progressive
from raytrain.data.sampler import Balanced, Sampler, Weighted
from raytrain.data.source import Data, Field, Index
from raytrain.data.torch_data import TorchData
from raytrain.data.webdataset import WebDataset

__all__ = [
    "MNIST",
    "AugMix",
    "Augment",
    "Balanced",
    "Batch",
    "ColorJitter",
    "Data",
    "Digits",
    "Field",
    "Folds",
    "GaussianBlur",
    "HorizontalFlip",
    "ImageFolder",
    "Images",
    "Index",
    "Manifest",
    "MaskFolder",
    "Mixed",
    "Operation",
    "Packed",
    "Progressive",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomResizedCrop",
    "RandomRotation",
    "Sampler",
    "TorchData",
    "TrivialAugmentWide",
    "VerticalFlip",
    "WebDataset",
    "Weighted",
]
