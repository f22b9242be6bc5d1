"""sources: an experiment's own modules, from the user's files into runs and other processes."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.projects import COPIED, PROJECT, write

from raytrain import Digits, Experiment, Run, UserError, config
from raytrain.checkpoint.location import mirror
from raytrain.checkpoint.remote import publish
from raytrain.checkpoint.storage import Storage
from raytrain.run import copies, experiment_file
from raytrain.user_code import sources
from raytrain.user_code.shipping import Shipped
from raytrain.user_code.sources import Sources


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of a test's modules is left in this process."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sources.activate(None)
    assert not {
        name for name in set(sys.modules) - before if name.partition(".")[0] in ("nets", "source", "net", "exp")
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path / "project", PROJECT)


def saved(value: Experiment, source: Path | None, run: Path) -> Path:
    """A run's directory, as far as its experiment goes."""
    run.mkdir(parents=True)
    copies.keep(value, source, run)
    experiment_file.save(value, run / "experiment.json")
    return run


def elsewhere(code: str, cwd: Path) -> str:
    """What another process prints that has none of the user's files."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_run_keeps_modules_and_works_without_the_users_files(project: Path, tmp_path: Path) -> None:
    value, source = experiment_file.load(project / "exp.py")
    assert source == project / "exp.py" and "stray" not in sys.modules
    run = saved(value, source, tmp_path / "run")
    assert {path.relative_to(run / "modules").as_posix() for path in (run / "modules").rglob("*.*")} == COPIED
    for name in COPIED:
        assert (run / "modules" / name).read_bytes() == (project / name).read_bytes()
    assert (run / "experiment.py").read_bytes() == (project / "exp.py").read_bytes()
    shutil.rmtree(project)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    said = elsewhere(
        f"""
        from raytrain import Run
        value = Run({str(run)!r}).experiment
        print(type(value.model).__module__, value.model.width, type(value.data).__module__)
        print(sum(p.numel() for p in value.model.build((1, 8, 8), 10).parameters()), type(value.task).__qualname__)
        import lazy
        print(lazy.__file__, lazy.ONE)
        """,
        tmp_path,
    )
    assert said.splitlines() == [
        "nets.net 8 source",
        f"{64 * 8 + 8 + 80 + 10} Outer.Scaled",
        f"{project}/lazy.py 1.0",
    ]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before, "no bytecode is written into a run"


def test_experiment_travels_with_what_is_pickled_by_name(project: Path, tmp_path: Path) -> None:
    value, _ = experiment_file.load(project / "exp.py")
    found = sys.modules[config.EXPERIMENT_MODULE]
    index = sys.modules["source"].MyIndex(np.zeros(3, np.int64), ("a",), (1, 2, 3))
    things = (Shipped(value), found.factor, found.Kind.A, sys.modules["source"].table, index)
    (tmp_path / "value.pickle").write_bytes(pickle.dumps(things))
    shutil.rmtree(project)
    said = elsewhere(
        """
        import pickle, sys
        shipped, factor, kind, table, index = pickle.load(open("value.pickle", "rb"))
        value = shipped.value
        print(type(value).__name__, value.model, factor(kind), table(), type(index).__name__, len(index))
        print(value.model.build((1, 8, 8), 10)(__import__("torch").zeros(2, 1, 8, 8)).shape[1])
        again = pickle.loads(pickle.dumps(shipped)).value
        print(again == value and type(again.model) is type(value.model))
        """,
        tmp_path,
    )
    assert said.splitlines() == ["Experiment Net(weights='none', new_head=False, width=8) 1 1 MyIndex 3", "10", "True"]


def test_what_a_source_has_opened_does_not_travel(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "exp.py": """
            import functools
            from dataclasses import dataclass
            from raytrain import *
            @dataclass(frozen=True)
            class Opened(Digits):
                @functools.cached_property
                def file(self):
                    return open(__file__)
            experiment = Experiment(MLP(), Opened())
            """
        },
    )
    value, _ = experiment_file.load(tmp_path / "exp.py")
    with value.data.file:  # type: ignore[attr-defined]
        there = pickle.loads(pickle.dumps(Shipped(value))).value
    assert "file" not in vars(there.data) and there == value


def test_two_versions_of_a_module_are_open_in_one_process(tmp_path: Path) -> None:
    runs = []
    for width in (3, 5):
        folder = tmp_path / f"v{width}"
        write(
            folder,
            {
                "exp.py": "from raytrain import *\nfrom net import Net\nexperiment = Experiment(Net(), Digits())\n",
                "net.py": """
                from dataclasses import dataclass
                from raytrain import Model
                @dataclass(frozen=True)
                class Net(Model):
                    def build(self, sample, classes):
                        from widths import WIDTH
                        return WIDTH
                """,
                "widths.py": f"WIDTH = {width}\n",
            },
        )
        value, source = experiment_file.load(folder / "exp.py")
        runs.append(Run(saved(value, source, tmp_path / f"run{width}")))
    write(tmp_path / "v5", {"widths.py": "WIDTH = 7\n"})  # the user's present file is another one
    sources.activate(None)
    three, five = runs
    models = [run.experiment.model for run in (three, five, three)]
    assert models[0] is models[2] and type(models[0]) is not type(models[1])
    for run, width in ((three, 3), (five, 5), (five, 5), (three, 3)):
        assert run.experiment.model.build((1, 8, 8), 10) == width
    assert experiment_file.load(tmp_path / "v5" / "exp.py")[0].model.build((1, 8, 8), 10) == 7
    assert five.experiment.model.build((1, 8, 8), 10) == 5


def test_module_of_the_same_name_comes_back(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "other", {"source.py": "OTHER = True\n"})
    monkeypatch.syspath_prepend(tmp_path / "other")
    theirs = __import__("source")
    value, _ = experiment_file.load(project / "exp.py")
    assert sys.modules["source"] is not theirs and type(value.data).__module__ == "source"
    sources.activate(None)
    assert sys.modules["source"] is theirs
    sources.use(value)
    assert vars(sys.modules["source"])["Mine"] is type(value.data)
    sources.activate(None)
    monkeypatch.delitem(sys.modules, "source")


def test_standard_library_and_raytrain_are_never_shadowed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "exp.py": """
            import json, colorsys
            from raytrain import *
            import raytrain.models
            assert not hasattr(colorsys, "MINE")
            experiment = Experiment(MLP(), Digits())
            """,
            "colorsys.py": "MINE = True\n",
            "json.py": "MINE = True\n",
            "raytrain/__init__.py": "MINE = True\n",
        },
    )
    sys.modules.pop("colorsys", None)
    experiment_file.load(tmp_path / "exp.py")
    assert not Sources.of_file(tmp_path / "exp.py").modules
    write(tmp_path, {"exp.py": "from colorsys import MINE\n"})
    with pytest.raises(
        UserError, match=r"cannot import name 'MINE'.*; rename colorsys.py: Python's own module has that"
    ):
        experiment_file.load(tmp_path / "exp.py")


def test_module_imported_by_a_computed_name_is_kept(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "project",
        {
            "exp.py": """
            import importlib, sys
            from raytrain import *
            from pathlib import Path
            sys.path.append(str(Path(__file__).parent / "src"))
            Net = importlib.import_module("".join(["n", "et"])).Net
            from deep.er import DEPTH
            experiment = Experiment(Net(), Digits())
            """,
            "net.py": """
            from dataclasses import dataclass
            from raytrain import CNN
            import other
            @dataclass(frozen=True)
            class Net(CNN):
                pass
            """,
            "other.py": "",
            "src/deep/__init__.py": "",
            "src/deep/er.py": "DEPTH = 3\ndef lazy():\n    import shallow\n",
            "src/shallow.py": "",
        },
    )
    value, source = experiment_file.load(folder / "exp.py")
    run = saved(value, source, tmp_path / "run")
    kept = {path.relative_to(run / "modules").as_posix() for path in (run / "modules").rglob("*.py")}
    assert kept == {"net.py", "other.py", "deep/__init__.py", "deep/er.py", "shallow.py"}
    shutil.rmtree(folder)
    code = f"from raytrain import Run; e = Run({str(run)!r}).experiment; print(e.model); import deep.er; deep.er.lazy()"
    assert elsewhere(code, tmp_path).startswith("Net(")


def test_too_large_package_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"exp.py": "import big\n", "big/__init__.py": "", "big/a.py": "", "big/b.py": "#" * 3000})
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    with pytest.raises(
        UserError, match=r"have 3 files or more, of 0.0 MiB, and 2 files of 20 MiB may be copied .*b.py"
    ):
        experiment_file.load(tmp_path / "exp.py")
    monkeypatch.setattr(sources, "MOST_FILES", 2000)
    monkeypatch.setattr(sources, "MOST_BYTES", 2999)
    with pytest.raises(UserError, match=r"the largest file is big/b.py"):
        experiment_file.load(tmp_path / "exp.py")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"net.py": "x = 1\nraise ValueError('my\\nreason')\n"},
            r"ValueError: my reason, .*/project/net.py:2; correct that",
        ),
        ({"net.py": "x = 1\nx = (\n"}, r"'\(' was never closed, .*/project/net.py:2; correct that line"),
        ({"net.py": "import no_such_module\n"}, r"No module named 'no_such_module', .*/project/net.py:1; correct that"),
        (
            {"net/__init__.py": "from .gone import x\n"},
            r"No module named 'net.gone', .*/project/net/__init__.py:1; correct",
        ),
        ({}, r"No module named 'net', .*/project/exp.py:1; correct that line"),
    ],
)
def test_a_module_that_does_not_load_is_named_with_its_line(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    write(tmp_path / "project", {"exp.py": "import net\n", **files})
    with pytest.raises(UserError, match="the experiment file does not load: .*" + message) as caught:
        experiment_file.load(tmp_path / "project" / "exp.py")
    assert "\n" not in str(caught.value)


def test_missing_file_of_an_experiment_is_named(project: Path, tmp_path: Path) -> None:
    exp = project / "exp.py"
    exp.write_text(
        "from pathlib import Path\nCLASSES = (Path(__file__).parent / 'data/labels.csv').read_text()\n"
        + (textwrap.dedent(PROJECT["exp.py"]))
    )
    value, source = experiment_file.load(exp)
    run = saved(value, source, tmp_path / "run")
    assert (
        elsewhere(f"from raytrain import Run; print(Run({str(run)!r}).experiment.model)", tmp_path)
        == "Net(weights='none', new_head=False, width=8)"
    )
    shutil.rmtree(project)
    code = f"""
        from raytrain import Run, UserError
        try:
            Run({str(run)!r}).experiment
        except UserError as error:
            print(error)
        """
    said = elsewhere(code, tmp_path)
    assert f"FileNotFoundError: [Errno 2] No such file or directory: '{project}/data/labels.csv', {run}/exper" in said
    assert said.endswith("experiment.py:2; a run keeps copies of Python files only: restore the file that it reads")


def test_error_names_the_users_file_while_it_is_unchanged(
    tmp_path: Path,
) -> None:
    files = {"exp.py": "from raytrain import *\nfrom net import Net\nexperiment = Experiment(Net(), Digits())\n"}
    files["net.py"] = """
        from dataclasses import dataclass
        from raytrain import Model
        @dataclass(frozen=True)
        class Net(Model):
            def build(self, sample, classes):
                return 1 / 0
    """
    folder = write(tmp_path / "project", files)
    value, source = experiment_file.load(folder / "exp.py")
    run = saved(value, source, tmp_path / "run")
    for edited, expected in ((False, folder / "net.py"), (True, run / "modules" / "net.py")):
        if edited:
            (folder / "net.py").write_text("# moved down\n" + (folder / "net.py").read_text())
        code = f"""
            import traceback
            from raytrain import Run
            from raytrain.user_code import places
            model = Run({str(run)!r}).experiment.model
            try:
                model.build(None, 1)
            except ZeroDivisionError as error:
                print(places.line_of(error), places.place(type(model)))
                print("return 1 / 0" in traceback.format_exc())
            """
        said = elsewhere(code, tmp_path).splitlines()
        assert said[0] == f"{expected}:7 Net ({expected}:5)" and said[1] == "True"


def test_scripts_modules_are_kept_and_its_classes_unchanged(project: Path, tmp_path: Path) -> None:
    script = """
        import pathlib, pickle, sys
        from raytrain import Classification, Experiment, Run; from raytrain.run import copies, experiment_file
        from dataclasses import dataclass
        from nets import Net
        import source

        @dataclass(frozen=True)
        class Local(Classification):
            pass

        if __name__ == "__main__":
            value = Experiment(Net(), source.Mine(), Local())
            run = pathlib.Path(sys.argv[1])
            run.mkdir()
            copies.keep(value, None, run)
            experiment_file.save(value, run / "experiment.json")
            again = Run(run).experiment
            print(again == value, type(again.model) is Net, type(again.task) is Local)
    """
    write(project, {"script.py": script})
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, project / "script.py", run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True True True\n", done.stderr
    shutil.rmtree(project)
    code = f"from raytrain import Run; e = Run({str(run)!r}).experiment; print(e.model, e.data, e.task)"
    assert elsewhere(code, tmp_path).startswith("Net(weights='none', new_head=False, width=4) Mine(")


def test_class_of_another_module_survives_a_load(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "mine", {"own_net.py": PROJECT["nets/net.py"]})
    monkeypatch.syspath_prepend(folder)
    experiment_file.load(project / "exp.py")  # whose modules are active from here on
    value = Experiment(__import__("own_net").Net(), Digits())
    run = saved(value, None, tmp_path / "run")
    assert (run / "modules" / "own_net.py").is_file() and not (run / "experiment.py").exists()
    sys.modules.pop("own_net")


def test_second_experiment_of_a_script_has_its_own_modules(project: Path, tmp_path: Path) -> None:
    script = """
        import pickle, subprocess, sys
        from raytrain import MLP, Digits, Experiment
        from raytrain.user_code.shipping import Shipped
        from nets import Net
        pickle.dumps(Shipped(Experiment(Net(), Digits())))
        import source
        for value in (Experiment(MLP(), source.Mine()), Experiment(Net(), source.Mine())):
            code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).value.data)"
            subprocess.run([sys.executable, "-P", "-c", code], input=pickle.dumps(Shipped(value)), check=True, cwd="/")
    """
    write(project, {"script.py": script})
    done = subprocess.run([sys.executable, project / "script.py"], capture_output=True, text=True, check=False)
    assert done.stdout.count("Mine(") == 2, done.stderr


def test_an_installed_package_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "site-packages", {"installed_net.py": PROJECT["nets/net.py"]})
    monkeypatch.syspath_prepend(folder)
    value = Experiment(__import__("installed_net").Net(), Digits())
    (tmp_path / "run").mkdir()
    copies.keep(value, None, tmp_path / "run")
    assert not [*(tmp_path / "run").iterdir()] and sources.use(value) is None
    monkeypatch.delitem(sys.modules, "installed_net")


def test_a_trial_s_directory_has_the_sweeps_sources(project: Path, tmp_path: Path) -> None:
    value, source = experiment_file.load(project / "exp.py")
    sweep, trial = saved(value, source, tmp_path / "sweep"), tmp_path / "sweep" / "trials" / "0000"
    trial.mkdir(parents=True)
    for _ in range(2):
        copies.link(sweep, trial)
    for name in ("experiment.py", "sources.json", *(f"modules/{name}" for name in COPIED)):
        assert (trial / name).read_bytes() == (sweep / name).read_bytes()
    assert copies.read(trial) is copies.read(sweep) is sources.use(value), "one set of modules in a process"


def test_damaged_copies_of_the_sources_are_an_error_in_a_line(project: Path, tmp_path: Path) -> None:
    value, source = experiment_file.load(project / "exp.py")
    run = saved(value, source, tmp_path / "run")
    sources.activate(None)
    for text in ("", "[]", "{", '{"": 3, "nets/net.py": []}', "\0"):
        (run / "sources.json").write_text(text)
        found = Run(run).experiment
        assert config.to_dict(found) == config.to_dict(value) and type(found.model).__name__ == "Net"
    shutil.rmtree(run / "modules" / "nets")
    with pytest.raises(
        UserError, match=r"No module named 'nets', .*copy the file or the folder nets into .*run/modules"
    ):
        _ = Run(run).experiment
    shutil.rmtree(run / "modules")
    (run / "modules").write_text("a file")
    with pytest.raises(UserError, match=r"No module named 'nets'"):
        _ = Run(run).experiment


def test_the_modules_of_a_run_at_a_url_come_down_with_it(project: Path, tmp_path: Path) -> None:
    value, source = experiment_file.load(project / "exp.py")
    url = f"file://{tmp_path}/bucket/run"
    (tmp_path / "bucket").mkdir()
    here = saved(value, source, mirror(url))
    (here / "url").write_text(url)
    publish(here)
    assert {name for name in Storage(url).names("modules")} == {f"modules/{name}" for name in COPIED}
    shutil.rmtree(here)
    shutil.rmtree(project)
    sources.activate(None)
    assert type(Run(url).experiment.model).__name__ == "Net"
    (here / "modules" / "stale.py").write_text("")
    assert config.to_dict(Run(url).experiment.model) == config.to_dict(value.model)
    assert not (here / "modules" / "stale.py").exists()
