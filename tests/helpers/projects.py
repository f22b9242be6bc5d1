"""An experiment whose file imports modules of its own in every way, for tests."""

from __future__ import annotations

import textwrap
from pathlib import Path

PROJECT = {
    "exp.py": """
        import enum, functools
        from dataclasses import dataclass
        from raytrain import Classification, Experiment
        from nets import Net
        import source

        class Kind(enum.Enum):
            A = 1

        @functools.lru_cache
        def factor(kind):
            return kind.value

        @dataclass(frozen=True)
        class Outer:
            @dataclass(frozen=True)
            class Scaled(Classification):
                def loss(self, model, batch):
                    import lazy
                    loss, count = super().loss(model, batch)
                    return loss * factor(Kind.A) * lazy.ONE, count

        experiment = Experiment(Net(width=8), source.Mine(), Outer.Scaled())
    """,
    "nets/__init__.py": "from .net import Net\n",
    "nets/net.py": """
        from dataclasses import dataclass
        from raytrain import Model

        @dataclass(frozen=True)
        class Net(Model):
            width: int = 4
            def build(self, sample, classes):
                from torch import nn
                from .layers import block
                import plain.more
                return nn.Sequential(nn.Flatten(), block(64, self.width), nn.Linear(self.width, plain.more.OUT))
    """,
    "nets/layers.py": "from torch import nn\ndef block(a, b):\n    return nn.Sequential(nn.Linear(a, b), nn.ReLU())\n",
    "nets/unused.py": "raise ImportError('nobody imports this')\n",
    "nets/.hidden/x.py": "",
    "nets/__pycache__/x.py": "",
    "nets/venv/pyvenv.cfg": "",
    "nets/venv/x.py": "",
    "nets/lib/site-packages/x.py": "",
    "plain/more.py": "OUT = 10\n",
    "source.py": """
        import functools
        from dataclasses import dataclass
        from raytrain import Digits, Index

        class Mine(Digits):
            pass

        class MyIndex(Index):
            pass

        @functools.lru_cache
        def table():
            return 1
    """,
    "lazy.py": "ONE = 1.0\n",
    "stray.py": "raise ImportError('nobody imports this')\n",
    "data/labels.csv": "a,b\n",
}
COPIED = {
    *("nets/__init__.py", "nets/net.py", "nets/layers.py", "nets/unused.py", "plain/more.py", "source.py", "lazy.py"),
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder
