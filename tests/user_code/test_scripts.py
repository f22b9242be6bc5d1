"""Scripts and standard input that call `raytrain.train` and `raytrain.sweep`. No Ray is started."""

import subprocess
import sys
from pathlib import Path

import pytest

CLASS = """
from dataclasses import dataclass
import raytrain
from raytrain import CNN, Digits, Experiment, Grid, Sweep

@dataclass(frozen=True)
class Net(CNN):
    pass

experiment = Experiment(model=Net(), data=Digits())
"""
SWEEP = "raytrain.sweep(Sweep(experiment=experiment, axes=(Grid('epochs', (1, 2)),)))"
TAKEN = "raytrain.train(experiment, name='there')"


def said(folder: Path, text: str, *, as_file: bool) -> str:
    """Return the last line of what a script writes; a run called `there` exists, so that no training starts."""
    (folder / "runs" / "there").mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(text)
    command = [sys.executable, "script.py"] if as_file else [sys.executable, "-"]
    given = None if as_file else text
    done = subprocess.run(command, input=given, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("call", [TAKEN, SWEEP, f"def main():\n    {TAKEN}\nmain()", f"for _ in [0]:\n    {TAKEN}"])
def test_a_script_that_trains_when_it_is_imported_is_refused(tmp_path: Path, call: str) -> None:
    wanted = "the script trains as soon as it is read, and trials and later commands read it for its classes, "
    line = len(f"{CLASS}\n{call}".splitlines())
    place = f"{tmp_path}/script.py:{line}; put that under `if __name__ == '__main__':`"
    assert said(tmp_path, f"{CLASS}\n{call}", as_file=True).endswith(wanted + place)


@pytest.mark.parametrize(
    ("text", "as_file"),
    [
        (f"{CLASS}\nif __name__ == '__main__':\n    {TAKEN}", True),
        (f"{CLASS.replace('Net()', 'CNN()')}\n{TAKEN}", True),
        (f"{CLASS}\n{TAKEN}", False),
    ],
)
def test_other_scripts_get_as_far_as_the_name_of_the_run(tmp_path: Path, text: str, as_file: bool) -> None:
    assert "a run of that name exists" in said(tmp_path, text, as_file=as_file)


def test_a_sweep_of_a_class_in_no_file_is_refused(tmp_path: Path) -> None:
    wanted = "Net is defined in no file, and a sweep's trials read it from one, in this notebook or standard input"
    assert f"{wanted}; import it from a .py file" in said(tmp_path, f"{CLASS}\n{SWEEP}", as_file=False)
