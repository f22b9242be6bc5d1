"""The commands, and the reading of their arguments."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain.cli.flags.arguments import first_argument
from raytrain.files import is_url


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        module: the module of its flags in `raytrain.cli.flags`, and of what runs it in `raytrain.cli`; both have a
            function named as the command.
        purpose: what the command is for, a few words.
        usage: its arguments.
    """

    module: str
    purpose: str
    usage: str


COMMANDS = {
    "new": Command("new", "Write an experiment", "FOLDER|TABLE [--path COLUMN] [--label COLUMN] [--out FILE]"),
    "data": Command("data", "Describe data", "EXPERIMENT|PLACE [--sheet FILE] [--json]"),
    "pack": Command("pack", "Pack data into shards", "EXPERIMENT|FOLDER DEST [--codec jpeg] [--size N]"),
    "train": Command("train", "Train an experiment", "EXPERIMENT [--field value ...]"),
    "lr": Command("tools", "Find a learning rate", "EXPERIMENT|RUN [--field value ...] [--out FILE]"),
    "batch": Command("tools", "Find a micro-batch", "EXPERIMENT|RUN [--field value ...] [--memory GIB] [--json]"),
    "profile": Command("profile", "Find the bottleneck", "EXPERIMENT [--steps 20] [--field value ...]"),
    "resume": Command("train", "Resume a run", "RUN [--epochs N] [--steps N] [--scaling.workers N] [--experiment F]"),
    "sweep": Command("sweep", "Run a sweep", "SWEEP | --precision_and_batch EXPERIMENT [--field value ...]"),
    "folds": Command("sweep", "Cross-validate", "EXPERIMENT [--folds 5] [--field value ...] [--out runs] [--name N]"),
    "runs": Command("runs", "List runs and sweeps", "[DIR] [--sort KEY] [--json]"),
    "report": Command("report", "Write an HTML report", "RUN ... [--out FILE] [--evaluate] | SWEEP"),
    "evaluate": Command("tools", "Evaluate a run", "RUN [--data.root DIR] [--json]"),
    "predict": Command("predict", "Predict images", "RUN PATH ... [--out FILE|FOLDER] [--features]"),
    "export": Command("tools", "Write the model", "RUN FILE (.pth .safetensors .pt2 .onnx)"),
    "serve": Command("serve", "Serve a model", "RUN [--port 8000] [--replicas 1] [--address ADDRESS]"),
    "cluster": Command("cluster", "Start a cluster", "init KIND [--out FILE] | check FILE | up FILE"),
    "submit": Command("jobs", "Train on a cluster", "EXPERIMENT|SWEEP --address URL [--field value ...] [--no_wait]"),
    "status": Command("jobs", "Look at jobs", "[JOB] --address URL [--json]"),
    "logs": Command("jobs", "Read a job's log", "JOB --address URL [--follow]"),
    "stop": Command("jobs", "Stop a job", "JOB --address URL"),
    "doctor": Command("doctor", "Check the machines", "[--address ADDR] [--out DIR] [--json]"),
    "completion": Command("completion", "Complete in a shell", "bash|zsh|fish"),
}


def read(name: str, arguments: list[str]) -> tuple[str, Any]:
    """Read the arguments of a command.

    The module of its flags imports neither torch nor Ray, so that help and a mistake are answered at once.

    Returns:
        The command, `sweep` for a resumed sweep, and what it is called with; None after it has printed help.
    """
    if "--resume" in arguments and name in ("train", "sweep", "folds"):
        again = importlib.import_module("raytrain.cli.flags.again")
        if resumed := again.again(arguments):
            name, arguments = "resume", resumed
    path = first_argument(arguments)
    if path is not None and is_url(path) and name in ("resume", "sweep", "folds", "report"):
        at_url = importlib.import_module("raytrain.sweep.at_url")
        if found := at_url.opened(path):
            path, arguments = str(found), [str(found), *arguments[1:]]
    if name == "resume" and path is not None and Path(path, "sweep.json").is_file():
        name = "sweep"
    flags = importlib.import_module(f"raytrain.cli.flags.{COMMANDS[name].module}")
    return name, getattr(flags, name)(arguments)
