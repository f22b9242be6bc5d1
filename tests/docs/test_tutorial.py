"""The page "From your ImageFolder script to raytrain": its script, its experiment and its commands, on few images."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
SCRIPT, EXPERIMENT = re.findall(r"^```python\n(import torch.*?|from raytrain.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    (raytrain .*)$", PAGE, re.MULTILINE)
SHORT = " --scaling.workers 0 --epochs 1 --model.weights none --data.size 64 --data.crop 56"


def run(command: str, folder: Path) -> str:
    words = command.replace("raytrain", f"{sys.executable} -m raytrain.cli", 1)
    done = subprocess.run(words, shell=True, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_page_has_one_script_and_shorter_experiment() -> None:
    assert compile(SCRIPT, "train.py", "exec") and compile(EXPERIMENT, "flowers.py", "exec")
    assert SCRIPT.count("\n") > 4 * EXPERIMENT.count("\n") and len(COMMANDS) == 10


@pytest.mark.slow
def test_the_script_the_experiment_and_the_commands_work(tmp_path: Path, data_root: Path) -> None:
    for split in ("train", "val"):
        for kind in ("ants", "bees"):
            (folder := tmp_path / "flowers" / split / kind).mkdir(parents=True)
            for file in sorted((data_root / "hymenoptera" / split / kind).glob("*.jpg"))[:8]:
                (folder / file.name).symlink_to(file)
    script = SCRIPT.replace("EPOCHS = 10", "EPOCHS = 1").replace("ResNet18_Weights.DEFAULT", "None")
    (tmp_path / "train.py").write_text(script.replace("num_workers=4", "num_workers=0"))
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "epoch 1: accuracy 0." in done.stdout, done.stderr
    for number, command in enumerate(COMMANDS):
        if number == 3:  # the page goes on with its own experiment
            assert "Augment(" in (tmp_path / "flowers.py").read_text()
            (tmp_path / "flowers.py").write_text(EXPERIMENT)
        run(command + SHORT if " train " in command else command, tmp_path)
    assert (tmp_path / "best.pth").stat().st_size > 40_000_000
    assert (tmp_path / "predictions.csv").read_text().count("\n") == 17
    assert (tmp_path / "runs" / "flowers" / "comparison.html").is_file()
