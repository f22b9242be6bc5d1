"""Models: each a frozen dataclass that builds a plain `torch.nn.Module`. A new one is one new file here."""

from raytrain.models.base import Model
from raytrain.models.cnn import CNN
from raytrain.models.mlp import MLP, SimpleModel
from raytrain.models.timm import Timm
from raytrain.models.torch_model import TorchModel
from raytrain.models.torchvision import Torchvision

__all__ = ["CNN", "MLP", "Model", "SimpleModel", "Timm", "TorchModel", "Torchvision"]
