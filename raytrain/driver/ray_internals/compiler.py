"""Import torch without torch.compile's modules."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

TORCH_VERSION = "2.15"
"""The version of torch whose private names are used here."""


def defer_compiler() -> None:
    """Defer torch.compile's imports in this process until something compiles."""
    import torch  # a worker sets first what torch may read

    if torch.__version__.rpartition(".")[0] == TORCH_VERSION and "torch._dynamo" not in sys.modules:
        sys.modules["torch._dynamo"] = torch._dynamo = _Dynamo()


class _Dynamo(ModuleType):
    """What eager code asks of torch._dynamo; for all else the real one takes its place."""

    def __init__(self) -> None:
        super().__init__("torch._dynamo")
        self.utils = _Utils()

    @staticmethod
    def graph_break(*_: object, **__: object) -> None:
        """Nothing is traced."""

    @staticmethod
    def disable(function: Any, *_: object, **__: object) -> Any:
        """Nothing is traced."""
        return function

    def __getattr__(self, name: str) -> Any:
        return getattr(_compiler(), name)


class _Utils:
    """The same of torch._dynamo.utils, where it is reached as an attribute."""

    @staticmethod
    def get_optimize_ddp_mode() -> str:
        """torch._dynamo's default."""
        return "ddp_optimizer"

    def __getattr__(self, name: str) -> Any:
        return getattr(_compiler().utils, name)


def _compiler() -> Any:
    """Return the real torch._dynamo, from here on in its place."""
    if isinstance(sys.modules.get("torch._dynamo"), _Dynamo):
        del sys.modules["torch._dynamo"]
    return importlib.import_module("torch._dynamo")
