"""The structure of the package, enforced by reading the imports of every module, wherever in it they stand."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import raytrain

ROOT = Path(raytrain.__file__).parent
STAGES = (
    "errors",
    "machine",
    "watchdog",
    "order",
    "files",
    "user_code",
    "config",
    "data",
    "models",
    "optim",
    "parallel",
    "tasks",
    "hooks",
    "loggers",
    "experiment",
    "checkpoint",
    "run",
    "training",
    "driver",
    "sweep",
    "tools",
    "cluster",
    "jobs",
    "doctor",
    "report",
    "cli",
)
"""The folders and root modules, each of which imports from earlier ones only."""
PLACE = {stage: number for number, stage in enumerate(STAGES)}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LIGHT = ("errors", "machine", "watchdog", "order", "files", "user_code", "config", "driver.guard", "driver.gpu_errors")
WITHOUT_RAY = (
    *STAGES[: PLACE["driver"]],
    *(f"driver.{name}" for name in ("plan", "first_step", "resumption", "network", "logs", "guard", "gpu_errors")),
    *("tools.lr_range", "tools.micro_batch", "tools.micro_batch_trials", "tools.probe", "cluster", "jobs"),
)


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a module."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> set[str]:
    """The full names of all that a module imports, also inside functions and under TYPE_CHECKING."""
    package = ".".join(("raytrain", *path.relative_to(ROOT).parent.parts))
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return found


def stage(name: str) -> str:
    """The folder or root module of a module of raytrain."""
    return name.split(".")[1]


def among(name: str, stages: tuple[str, ...]) -> bool:
    """Whether a module is one of some, or in a folder that is one of them."""
    return any(f"{name}.".startswith(f"raytrain.{stage}.") for stage in stages)


MODULES = {
    ".".join(("raytrain", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if path != ROOT / "__main__.py"
}
INSIDE = {name: path for name, path in MODULES.items() if name != "raytrain"}


def test_a_module_imports_from_earlier_stages_or_its_own_folder() -> None:
    for name, path in INSIDE.items():
        assert stage(name) in PLACE, f"{name} is in no stage: give it one here and in docs/architecture.md"
        for imported in imports(path):
            if imported.split(".")[0] != "raytrain":
                continue
            other = stage(imported)
            assert other in PLACE, f"{name} imports {imported}: a public name of the package, which comes after all"
            assert PLACE[other] <= PLACE[stage(name)], f"{name} imports {imported}"


def test_the_lists_name_modules_that_exist() -> None:
    for part in (*LIGHT, *WITHOUT_RAY):
        assert any(among(name, (part,)) for name in INSIDE), part


def test_first_stages_import_only_standard_library_and_numpy() -> None:
    for name, path in INSIDE.items():
        if among(name, LIGHT):
            foreign = {imported.split(".")[0] for imported in imports(path)}
            assert foreign - set(sys.stdlib_module_names) <= {"numpy", "raytrain"}, name


def test_training_and_what_describes_a_run_know_nothing_of_ray() -> None:
    wanted = {"raytrain.jobs.client": {"ray.job_submission.JobSubmissionClient"}, "raytrain.data.streaming": {"ray"}}
    for name, path in INSIDE.items():
        if among(name, WITHOUT_RAY):
            found = {imported for imported in imports(path) if imported.split(".")[0] == "ray"}
            assert found == wanted.get(name, set()), name  # streaming reads blocks from Ray's object store


def test_only_ray_internals_imports_private_names_of_ray() -> None:
    for mark in ("TorchTrainer", "ray._private", "ray.train.v2", "ray.autoscaler._private"):
        found = {name.rpartition(".")[0] for name, path in MODULES.items() if mark in path.read_text()}
        assert found == {"raytrain.driver.ray_internals"}


def test_only_sweeps_import_ray_tune() -> None:
    found = {name for name, path in MODULES.items() if any(f"{i}.".startswith("ray.tune.") for i in imports(path))}
    wrappers = {f"raytrain.sweep.tune_{name}" for name in ("search", "scheduler")}
    runs = ("schedulers", "steady", "trial", "tuning", "callbacks", "lockstep", "bandits")
    assert found == {f"raytrain.sweep.{name}" for name in runs} | wrappers


def test_what_describes_a_sweep_knows_nothing_of_ray() -> None:
    values = {f"raytrain.sweep.{name}" for name in ("space", "objective", "search", "tpe", "sweep", "record", "front")}
    assert values <= set(INSIDE)
    assert not {i for name in values for i in imports(INSIDE[name]) if i.split(".")[0] in ("ray", "torch")}


def test_a_file_has_at_most_400_lines_and_a_function_60() -> None:
    for name, path in MODULES.items():
        functions = [node for node in nodes(path) if isinstance(node, FUNCTIONS)]
        assert len(path.read_text().splitlines()) <= 400, name
        assert not [one.name for one in functions if (one.end_lineno or 0) - one.lineno >= 60], name


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports each by its name alone, and so do the processes that unpickle a test's functions."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert [name for name, times in Counter(names).items() if times > 1] == []


def test_the_stages_are_at_most_26_on_12_levels() -> None:
    """The level of a stage is one above the highest of those that it imports from."""
    below: dict[str, set[str]] = {name: set() for name in STAGES}
    for name in INSIDE:
        found = {stage(one) for one in imports(INSIDE[name]) if one.startswith("raytrain.")}
        below[stage(name)] |= found - {stage(name)}
    level: dict[str, int] = {}
    for name in STAGES:
        level[name] = 1 + max((level[one] for one in below[name]), default=0)
    assert len(STAGES) <= 26 and max(level.values()) <= 12, level


def test_at_most_40_imports_in_functions_each_with_a_reason() -> None:
    """The reason is a comment on the import, or the text of a function or a method that does nothing else."""
    found = {
        (path, line.lineno): (path.read_text().splitlines()[line.lineno - 1], function)
        for path in MODULES.values()
        for function in nodes(path)
        if isinstance(function, FUNCTIONS)
        for line in ast.walk(function)
        if isinstance(line, ast.Import | ast.ImportFrom)
    }
    assert len(found) <= 40
    bare = [
        f"{path.relative_to(ROOT)}:{number} {text.strip()}"
        for (path, number), (text, function) in found.items()
        if "  # " not in text and "imported late" not in (ast.get_docstring(function) or "")
    ]
    assert not bare, "\n".join(bare)


def test_the_parser_of_imports_sees_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would pass on an empty set."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.py").write_text(
        "import ray.tune as t\nfrom raytrain import fit\nfrom . import base\nfrom ..run import Run\n"
        "if TYPE_CHECKING:\n    import torch\ndef f():\n    from ray.train.torch import TorchTrainer\n"
        "    importlib.import_module('os')\n"
    )
    assert imports(tmp_path / "models" / "m.py") == {
        *("ray.tune", "raytrain.fit", "raytrain.models.base", "raytrain.run.Run", "torch", "os"),
        "ray.train.torch.TorchTrainer",
    }


LIGHT_COMMANDS = (
    "--help",
    "train experiments/digits.py --help",
    "completion flags train experiments/digits.py",
    "evaluate --help",
    "sweep --help",
    "sweep experiments/sweep_amp_batch.py --help",
    "sweep experiments/sweep_amp_batch.py --objective nonsense",
    "lr --help",
    "pack experiments/digits.py --help",
    "pack experiments x --codec jpg",
    "lr experiments/digits.py --help",
    "lr experiments/digits.py --steps 9",
    "batch experiments/digits.py --help",
    "batch experiments/digits.py --memory 0",
    "train experiments/digits.py --optimizer.lr -1",
    "doctor",
    "serve --help",
    "serve runs/none --port 0",
    "cluster --help",
    "submit --help",
    "submit experiments/digits.py --out /x --address x:6379",
    "status --address http://127.0.0.1:1",
    "cluster check --help",
    "cluster init aws",
    "cluster check raytrain/cluster/files/kuberay.yaml",
)


def test_help_and_mistakes_are_answered_without_torch_or_ray() -> None:
    lines = [
        "import raytrain",
        "from raytrain import CNN, MNIST, SGD, Experiment; Experiment(CNN(), MNIST(), optimizer=SGD())",
        "from raytrain import cli",
        *(f"cli.run({command.split()})" for command in LIGHT_COMMANDS),
    ]
    loaded = "print('LOADED', [name for name in ('torch', 'ray') if name in sys.modules])"
    code = "\n".join(["import sys", *(f"{line}\n{loaded}" for line in lines)])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in done.stderr, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert len(found) == len(lines)
    assert not [line for line, said in zip(lines, found, strict=True) if said != "LOADED []"]


def test_commands_that_start_ray_are_imported_without_it() -> None:
    """Ray reads variables when it is imported, which the session sets first."""
    code = "import sys, raytrain.cli.sweep, raytrain.cli.train, raytrain.cli.predict; sys.exit('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, check=False, timeout=60)
    assert done.returncode == 0
