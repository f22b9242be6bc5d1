"""docs/pytorch.md: the plain script and the experiment that replaces it both run, on a few images."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from helpers.scripts import changed, succeeds, write_shapes

from raytrain import Run

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def block_after(sentence: str) -> str:
    """The indented block that follows a sentence of the page."""
    _, _, rest = PAGE.read_text().partition(sentence)
    lines = rest.splitlines()[1:]
    after = [place for place, line in enumerate(lines) if line and not line.startswith("    ")]
    end = after[0] if after else len(lines)  # the last block ends with the page
    return textwrap.dedent("\n".join(lines[:end])).strip() + "\n"


@pytest.mark.slow
def test_the_script_and_its_experiment_both_train(tmp_path: Path) -> None:
    write_shapes(tmp_path, 4, 150)
    script = block_after("A training script for a folder of images:\n")
    experiment, _, _ = block_after("resumes, exports and is swept:\n").partition("\nraytrain train ")
    assert len(experiment.splitlines()) <= 25 and len(script.splitlines()) > 2 * len(experiment.splitlines())
    script = changed(changed(script, "range(20)", "range(1)"), "DataLoader(train, 32, shuffle=True, num_workers=4)",
                     "DataLoader(train, 32, shuffle=True)")  # fmt: skip
    (tmp_path / "script.py").write_text(changed(script, "DataLoader(val, 64, num_workers=4)", "DataLoader(val, 64)"))
    (tmp_path / "shapes.py").write_text(experiment)
    assert succeeds(tmp_path, "script.py").startswith("epoch 1: F1 ") and (tmp_path / "best.pth").is_file()
    flags = ("--epochs", "1", "--scaling.workers", "0", "--model.hidden", "128", "--name", "run")
    succeeds(tmp_path, "-m", "raytrain.cli", "train", "shapes.py", *flags)
    summary = Run(tmp_path / "runs" / "run").summary
    assert summary["status"] == "completed" and "val_macro_f1" in summary


@pytest.mark.slow
def test_a_loop_of_ones_own_has_the_same_losses(tmp_path: Path) -> None:
    script = block_after("save this as `check.py` and run `python check.py`:\n")
    for workers in (1, 2):
        place = tmp_path / str(workers)
        place.mkdir()
        text = changed(script, "epochs=2\n", f"epochs=2, scaling=Scaling(workers={workers})\n")
        (place / "check.py").write_text(changed(text, "Experiment, TorchModel", "Experiment, Scaling, TorchModel"))
        said = succeeds(place, "check.py")
        assert said.startswith("46 steps, greatest difference of a loss: ") and float(said.split()[-1]) < 1e-5
