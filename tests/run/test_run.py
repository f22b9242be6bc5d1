"""run: the run directory, its metrics file and its lock."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from raytrain import CNN, Digits, Experiment, Run, UserError
from raytrain.checkpoint import checkpoints
from raytrain.checkpoint.rows import check_rows
from raytrain.run import experiment_file
from raytrain.run.begin import begin, check_writable, discard, stem_of
from raytrain.run.lock import Lock, LockHeld
from raytrain.run.metrics_log import MetricsLog, read_metrics

VALUE = Experiment(model=CNN(channels=(2,)), data=Digits(), epochs=2)


@pytest.mark.parametrize(
    ("file", "of_a_run", "of_a_sweep"),
    [
        ("digits.py", "digits", "digits"),
        ("experiment.py", "experiment", "experiment"),
        ("digits-3/experiment.py", "digits", "digits-3"),
        ("named/experiment.py", "named", "named"),
        ("lrs-2/experiment.py", "lrs-2", "lrs"),
    ],
)
def test_a_new_directory_is_called_as_the_file_or_as_what_it_is_a_copy_of(
    tmp_path: Path, file: str, of_a_run: str, of_a_sweep: str
) -> None:
    for name, record in (("digits-3", "experiment"), ("named", "experiment"), ("lrs-2", "sweep")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{record}.json").touch()
    assert stem_of(tmp_path / file, "experiment.json", "run") == of_a_run
    assert stem_of(tmp_path / file, "sweep.json", "sweep") == of_a_sweep
    assert stem_of(None, "sweep.json", "sweep") == "sweep"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with checkpoints at steps 1 to 3, of which 2 is the best."""
    path, lock = begin(tmp_path, "r", "x", lambda folder: experiment_file.save(VALUE, folder / "experiment.json"))
    lock.release()
    for step in (1, 2, 3):
        torch.manual_seed(step)
        state = {"sample": (1, 8, 8), "stored": (1, 8, 8), "classes": [str(digit) for digit in range(10)]}
        checkpoints.save(path / "checkpoints", step, VALUE.model.build((1, 8, 8), 10).state_dict(), {}, state)
    (path / "best.json").write_text('{"checkpoint": "step_00000002", "val_accuracy": 0.5}')
    (path / "last.json").write_text('{"checkpoint": "step_00000003", "step": 3}')
    return Run(path)


# begin


def create(out: Path, name: str | None, stem: str) -> Path:
    path, lock = begin(out, name, stem, lambda folder: (folder / "experiment.json").touch())
    lock.release()
    return path


def test_runs_are_numbered_from_one_and_numbers_are_not_reused(tmp_path: Path) -> None:
    out = tmp_path / "new" / "runs"
    assert [create(out, None, "mnist").name for _ in range(3)] == ["mnist-1", "mnist-2", "mnist-3"]
    shutil.rmtree(out / "mnist-1")
    (out / "mnist-x").mkdir()
    (out / "mnist-7").touch()
    assert create(out, None, "mnist").name == "mnist-8"
    assert create(out, None, "mni").name == "mni-1" and create(out, "named", "mnist").name == "named"


def test_two_that_start_at_once_get_different_numbers(tmp_path: Path) -> None:
    code = "from raytrain.run.begin import begin; fill = lambda folder: (folder / 'experiment.json').touch(); "
    code += f"print([begin({str(tmp_path)!r}, None, 'm', fill)[0].name for _ in range(20)])"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0].replace("'", '"') for process in started]
    names = [name for text in printed for name in json.loads(text)]
    assert len(names) == 40 and len(set(names)) == 40


def test_a_name_that_is_taken_offers_to_resume(tmp_path: Path) -> None:
    taken = create(tmp_path, "mine", "x")
    for attempt in (lambda: create(tmp_path, "mine", "x"), lambda: check_writable(tmp_path, "mine")):
        with pytest.raises(UserError, match=f"name exists, {taken}; use another --name, .*`raytrain resume {taken}`"):
            attempt()


FILL_AND_WAIT = "import sys, time; from pathlib import Path; from raytrain.run.begin import begin\n"
FILL_AND_WAIT += "def fill(folder): (folder / 'experiment.py').touch(); print('filling', flush=True); time.sleep(60)\n"
FILL_AND_WAIT += "begin(sys.argv[1], 'mine', 'x', fill)"


def test_command_killed_at_the_start_leaves_the_name_free(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", FILL_AND_WAIT, tmp_path], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None and killed.stdout.readline() == "filling\n"
    killed.kill()
    killed.wait()
    killed.stdout.close()
    (aside,) = tmp_path.iterdir()
    check_writable(tmp_path, "mine")
    assert create(tmp_path, "mine", "x") == tmp_path / "mine"
    os.utime(aside, (0, 0))
    alive, lock = begin(tmp_path, None, "x", lambda folder: None)
    assert not aside.exists(), "what a killed command left goes with the next run"
    alive.rename(tmp_path / ".beginning-slow")
    os.utime(tmp_path / ".beginning-slow", (0, 0))
    create(tmp_path, None, "x")
    assert (tmp_path / ".beginning-slow").is_dir(), "a command that is alive keeps its own"
    lock.release()


def test_a_run_that_cannot_be_filled_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        (folder / "experiment.py").touch()
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        begin(tmp_path, None, "x", full)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["metrics.jsonl", "checkpoints"])
def test_run_with_a_row_or_checkpoint_is_never_discarded(tmp_path: Path, what: str) -> None:
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / what).touch()
    assert discard(tmp_path / "empty") and not discard(tmp_path / "full")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/tmp/x", "a\nb"])
def test_a_name_is_the_name_of_one_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a run's folder"):
        check_writable(tmp_path, name)


def test_a_name_that_no_folder_can_have_is_refused_by_its_length(tmp_path: Path) -> None:
    check_writable(tmp_path, "ü" * 127)
    with pytest.raises(UserError, match="256 bytes, and a folder's name at most 255, in --name; give a shorter one"):
        check_writable(tmp_path, "ü" * 128)


def test_places_that_cannot_hold_runs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for out, message in (
        (file, "is a file"),
        (file / "below" / "it", "is a file"),
    ):
        with pytest.raises(UserError, match=message):
            check_writable(out, None)
        with pytest.raises(UserError, match=r"the output cannot be written: .*(is a file|Not a directory)"):
            create(out, None, "x")
    check_writable(tmp_path / "a" / "b", "name")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(UserError, match="File name too long"):
        create(tmp_path, "x" * 300, "x")


# Run


def test_a_folder_without_an_experiment_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / ("x" * 300)):
        with pytest.raises(UserError, match=r"no run there \(it has no experiment.json\)"):
            Run(path)


def test_run_gives_experiment_and_best_or_last_model(run: Run) -> None:
    assert run.experiment == VALUE and run.summary == {"status": "unfinished"}
    for which, step in (("best", 2), ("last", 3)):
        torch.manual_seed(step)
        expected = VALUE.model.build((1, 8, 8), 10).state_dict()
        model = run.model(which)
        assert not model.training and run.classes(which) == tuple("0123456789")
        assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_a_broken_checkpoint_is_named_and_the_remedy_works(run: Run) -> None:
    file = run.checkpoint() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00\x00")
    with pytest.raises(UserError, match=r"does not verify: model.safetensors has .* bytes .*; remove that folder"):
        run.model()
    assert run.checkpoint("last").name == "step_00000003"
    for rest in file.parent.iterdir():
        rest.unlink()
    file.parent.rmdir()
    assert run.checkpoint().name == "step_00000003"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"checkpoint": 5}', '{"checkpoint": "step_00000009"}'])
def test_a_damaged_pointer_is_no_obstacle(run: Run, text: str) -> None:
    (run.path / "best.json").write_text(text)
    (run.path / "summary.json").write_text(text[:1])
    assert run.checkpoint().name == "step_00000003" and run.summary == {"status": "unfinished"}


def test_a_pointer_does_not_lead_out_of_the_run(run: Run, tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 2, {"w": torch.zeros(1)}, {}, {})
    (run.path / "best.json").write_text('{"checkpoint": "../../step_00000002"}')
    assert run.checkpoint() == run.checkpoints / "step_00000002"


def test_a_run_without_checkpoints_says_so(tmp_path: Path) -> None:
    experiment_file.save(VALUE, tmp_path / "experiment.json")
    run = Run(tmp_path)
    with pytest.raises(UserError, match=r"the run ended before its first checkpoint.*`raytrain resume .*` goes on"):
        run.model()
    with Lock(tmp_path), pytest.raises(UserError, match="the run is going on and has no checkpoint yet"):
        run.model()
    (tmp_path / "summary.json").write_text('{"status": "completed", "epochs": 2}')
    with pytest.raises(UserError, match="the run has no checkpoint that verifies"):
        run.model()


def test_a_run_without_checkpoints_is_named_by_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    there, url = tmp_path / "0001", f"file://{tmp_path}/0001"
    there.mkdir()
    experiment_file.save(VALUE, there / "experiment.json")
    (there / "summary.json").write_text('{"status": "completed", "epochs": 2}')
    with pytest.raises(UserError, match=f"the run has no checkpoint that verifies, {url};"):
        Run(url).checkpoint()
    (there / "trial.json").write_text("{}")
    with pytest.raises(UserError, match=f"a sweep keeps the weights of its best trial alone, .*, {url};"):
        Run(url).checkpoint()


# metrics.jsonl

ROWS = [{"kind": "step", "step": step, "loss": 0.1 * step} for step in range(5)] + [{"kind": "epoch", "epoch": 1}]


def test_metrics_come_back_exactly_and_from_an_offset(tmp_path: Path) -> None:
    log, file = MetricsLog(tmp_path / "m.jsonl", 0), tmp_path / "m.jsonl"
    log.write(ROWS[:2])
    half = log.size
    log.write(ROWS[2:])
    assert read_metrics(file) == (ROWS, file.stat().st_size) and log.size == file.stat().st_size
    assert read_metrics(file, half)[0] == ROWS[2:] and read_metrics(file, log.size)[0] == []
    log.close()
    assert read_metrics(tmp_path / "missing", 5) == ([], 5)


def test_a_half_written_last_line_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    lines = [json.dumps(row).encode() + b"\n" for row in ROWS]
    file.write_bytes(b"".join(lines[:3]) + lines[3][:-5])
    rows, offset = read_metrics(file)
    assert rows == ROWS[:3] and offset == len(b"".join(lines[:3]))
    file.write_bytes(b"".join(lines))
    assert read_metrics(file, offset)[0] == ROWS[3:]
    file.write_bytes(lines[0][:4])
    assert read_metrics(file) == ([], 0)


def test_a_resumed_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    log = MetricsLog(file, 0)
    log.write(ROWS[:2])
    log.commit()
    offset = log.size
    log.write(ROWS[3:])
    log.close()
    with open(file, "ab") as other:
        other.write(b'{"kind": "st')
    again = MetricsLog(file, offset)
    assert read_metrics(file)[0] == ROWS[:2]
    again.write(ROWS[2:])
    assert read_metrics(file)[0] == ROWS and again.size == file.stat().st_size
    again.close()


def test_a_log_that_lost_rows_is_not_filled_with_zeros(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl", 1000)
    log.write(ROWS[:1])
    assert read_metrics(tmp_path / "m.jsonl")[0] == ROWS[:1]
    log.close()


def test_rows_refused_by_a_full_disk_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pwrite, lines = tmp_path / "m.jsonl", os.pwrite, [json.dumps(row).encode() + b"\n" for row in ROWS]
    log = MetricsLog(file, 0)
    log.write(ROWS[:1])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        room = [7]  # bytes that fit in before it is full, in the middle of a row
        patch.setattr(os, "pwrite", lambda *a: pwrite(a[0], a[1][: room.pop()], a[2]) if room else full())
        log.write(ROWS[1:3])
        assert file.read_bytes() == lines[0] + lines[1][:7] and log.size == len(b"".join(lines[:3]))
        log.write(ROWS[3:4])
        with pytest.raises(OSError, match="No space left"):
            log.commit()
        assert log.size == len(b"".join(lines[:4])) and read_metrics(file)[0] == ROWS[:1]
    log.write(ROWS[4:])
    assert read_metrics(file)[0] == ROWS
    log.commit()
    log.close()
    assert file.read_bytes() == b"".join(lines) and log.size == len(b"".join(lines))


def test_rows_lost_by_the_disk_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.jsonl"
    log = MetricsLog(file, 0)
    log.write(ROWS[:2])
    log.commit()
    log.write(ROWS[2:4])

    def loses(*_: object) -> None:  # as Linux does: what could not be put on the disk is forgotten
        os.truncate(file, len(json.dumps(ROWS[0])))
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(os, "fsync", loses)
        log.commit()
    with pytest.raises(OSError, match="Stale file"):  # committed rows are gone: no checkpoint may vouch for them
        log.commit()
    file.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in ROWS[:2]))
    log.write(ROWS[4:])
    log.commit()
    assert read_metrics(file)[0] == ROWS
    log.close()


def test_no_rows_are_vouched_for_while_their_directory_is_away(tmp_path: Path) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    run.mkdir()
    log = MetricsLog(run / "m.jsonl", 0)
    log.write(ROWS[:2])
    run.rename(away)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            log.commit()
        log.write(ROWS[2:3])
    run.mkdir()  # another file in its place, as on the disk below a mount
    with pytest.raises(FileNotFoundError):
        log.commit()
    run.rmdir()
    away.rename(run)
    log.commit()
    assert read_metrics(run / "m.jsonl")[0] == [*ROWS[:3], ROWS[2]] and log.size == (run / "m.jsonl").stat().st_size
    log.close()


def test_a_row_that_is_no_json_is_refused_and_not_half_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl", 0)
    with pytest.raises(ValueError, match="JSON"):
        log.write([ROWS[0], {"loss": float("nan")}])
    log.close()
    assert (tmp_path / "m.jsonl").read_bytes() == b""


def test_metrics_as_a_table_hold_one_kind(run: Run) -> None:
    assert run.metrics().num_rows == 0
    log = MetricsLog(run.path / "metrics.jsonl", 0)
    log.write(ROWS)
    log.close()
    assert run.metrics("step")["loss"].to_pylist() == [row["loss"] for row in ROWS[:-1]]
    assert run.metrics().to_pylist() == ROWS[-1:]


def test_a_damaged_line_of_the_metrics_is_left_out_and_said(run: Run) -> None:
    rows = [json.dumps(row) for row in ROWS]
    rows[1] = rows[1][:9] + rows[1]  # a row glued to half of another one
    rows[2] = rows[2][:-4]
    rows[3] = rows[3][:12] + rows[3]
    (run.path / "metrics.jsonl").write_text("\n".join([*rows, "[]", '{"kind": 3}', ""]))
    with pytest.warns(UserWarning, match="metrics.jsonl: 5 damaged lines are left out"):
        assert len(run.metrics("step")) == len(ROWS) - 4
    with pytest.warns(UserWarning, match="metrics.jsonl: 4 damaged lines are left out"):  # it looks at no other kind
        assert run.metrics().to_pylist() == ROWS[-1:]


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("damage", ["none", "longer", "missing", "short", "cut", "glued", "lost", "twice", "changed"])
def test_a_checkpoint_whose_rows_are_damaged_is_not_gone_on_from(tmp_path: Path, damage: str, hashed: bool) -> None:
    file = tmp_path / "metrics.jsonl"
    log = MetricsLog(file, 0)
    log.write([{"kind": "step", "step": step, "loss": 0.5} for step in range(1, 6)])
    state = {"metrics_bytes": log.size, "progress": {"step": 5}} | ({"metrics_sha256": log.sha256} if hashed else {})
    log.close()
    lines = file.read_bytes().splitlines(keepends=True)
    content = {
        "none": lines,
        "longer": [*lines, b"more"],
        "short": lines[:-1],
        "cut": [*lines[:-1], lines[-1][:-9]],
        "glued": [lines[0][:-9], *lines[1:], b"x" * 9],
        "lost": [*lines[:2], *lines[3:], b"x" * len(lines[2])],
        "twice": [*lines[:2], lines[1], *lines[3:]],
        "changed": [lines[0].replace(b"0.5", b"0.7"), *lines[1:]],
    }
    file.unlink() if damage == "missing" else file.write_bytes(b"".join(content[damage]))
    if damage in ("none", "longer", *(() if hashed else ("changed",))):  # only a hash knows of the last
        check_rows(file, state)
        return
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        check_rows(file, state)


def test_the_hash_of_a_log_goes_on_after_a_cut(tmp_path: Path) -> None:
    hashes = []
    for cut in (False, True):
        log = MetricsLog(tmp_path / f"{cut}.jsonl", 0)
        log.write(ROWS[:2])
        if cut:
            size = log.size
            log.write(ROWS[2:])
            log.close()
            log = MetricsLog(tmp_path / f"{cut}.jsonl", size)
        log.write(ROWS)
        hashes.append(log.sha256)
        log.close()
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b'{"epochs": 2}', b'{"status": 3}', b'{"status": "completed"}',
     b'{"status": "completed", "epochs": "2"}', b'{"status": "failed", "val_loss": "low"}',
     b'{"status": "failed", "baseline": 0.5}', b'{"status": "failed", "baseline": {"val_loss": "low"}}',
     b'{"status": "failed", "retry": 1}'],
)  # fmt: skip
def test_a_damaged_summary_counts_for_none(run: Run, content: bytes) -> None:
    (run.path / "summary.json").write_bytes(content)
    assert run.summary == {"status": "unfinished"}


# Lock


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_run_that_may_not_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UserError, match=r"^the folder cannot be written: (permission denied|operation not|read-only)"):
        Lock(tmp_path)


HOLD = "import sys, time; from raytrain.run.lock import Lock; from pathlib import Path\n"
HOLD += "lock = Lock(Path(sys.argv[1]), wait=0); print('held', flush=True); time.sleep(60)"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_lock_is_held_until_the_first_process_ends(tmp_path: Path, how: signal.Signals) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    begin = time.monotonic()
    with pytest.raises(
        LockHeld, match=rf"still going \(process {holder.pid} on .+\), {tmp_path}; wait for it"
    ) as error:
        Lock(tmp_path, wait=0.3)
    sent = pickle.loads(pickle.dumps(error.value))
    assert str(sent) == str(error.value) and sent.holder.startswith(f"process {holder.pid} on ")
    assert 0.3 <= time.monotonic() - begin < 5
    holder.send_signal(how)
    holder.wait()
    holder.stdout.close()
    lock = Lock(tmp_path, wait=5)
    assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
    lock.release()
    Lock(tmp_path, wait=0).release()


def test_a_lock_waits_for_the_other_to_let_go(tmp_path: Path) -> None:
    first = Lock(tmp_path, wait=0)
    with pytest.raises(UserError, match="still going"):
        Lock(tmp_path, wait=0)
    first.release()
    Lock(tmp_path, wait=0).release()


@pytest.mark.parametrize(("best", "advice"), [(3, "trials/0003, the best one"), (None, "trials/0000, or another one")])
def test_a_sweep_in_the_place_of_a_run_names_its_best_trial(tmp_path: Path, best: int | None, advice: str) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"best": best, "trials": []}))
    with pytest.raises(UserError, match=f"this is a sweep, .*{advice}"):
        Run(tmp_path)
