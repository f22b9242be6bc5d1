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


RUN = """
import runpy, sys
from raytrain.user_code import sources

for name in sys.argv[1:]:
    sources._ALL.clear()  # each script is the main one
    try:
        runpy.run_path(name, run_name="__main__")
    except Exception as error:
        print(str(error).splitlines()[-1])
    else:
        print("no error")
"""


def said(folder: Path, *texts: str) -> list[str]:
    """Return the error of each script; a run called `there` exists, so that no training starts."""
    (folder / "runs" / "there").mkdir(parents=True)
    names = [f"script{number}.py" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text)
    command = [sys.executable, "-c", RUN, *names]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_script_that_trains_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    calls = (TAKEN, SWEEP, f"def main():\n    {TAKEN}\nmain()", f"for _ in [0]:\n    {TAKEN}")
    guarded, classless = f"{CLASS}\nif __name__ == '__main__':\n    {TAKEN}", CLASS.replace("Net()", "CNN()") + TAKEN
    *refused, first, second = said(tmp_path, *(f"{CLASS}\n{call}" for call in calls), guarded, classless)
    for number, (call, found) in enumerate(zip(calls, refused, strict=True)):
        what = "the script trains as soon as it is read, and trials and later commands read it for its classes, "
        line = len(f"{CLASS}\n{call}".splitlines())
        place = f"{tmp_path}/script{number}.py:{line}; put that under `if __name__ == '__main__':`"
        assert found == what + place
    assert "a run of that name exists" in first and "a run of that name exists" in second


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (TAKEN, "a run of that name exists"),
        (
            SWEEP,
            "Net is defined in no file, and a sweep's trials read it from one, in this notebook or standard input",
        ),
    ],
)
def test_a_class_in_no_file_may_train_and_not_be_in_a_sweep(tmp_path: Path, call: str, message: str) -> None:
    (tmp_path / "runs" / "there").mkdir(parents=True)
    command, text = [sys.executable, "-"], f"{CLASS}\n{call}"
    done = subprocess.run(command, input=text, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert message in done.stderr.strip().splitlines()[-1]
