"""checkpoint: whole or not there, bit-exact, and never code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from raytrain import UserError, files
from raytrain.checkpoint import checkpoints, layout, retention, side_thread
from raytrain.checkpoint.layout import MANIFEST, MODEL, OPTIMIZER, STATE
from raytrain.parallel.strategy import snapshot
from raytrain.watchdog import doing


class Tied(nn.Module):
    """Two names for one weight, a BatchNorm with its counters, and a buffer that is no contiguous tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.register_buffer("across", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("empty", torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.norm(self.encode(x)))


def trained(kind: str) -> tuple[Tied, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Tied()
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if kind == "sgd"
        else torch.optim.AdamW(model.parameters(), lr=0.01)
    )
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def save(folder: Path, step: int) -> Path:
    model = {"w": torch.full((3,), float(step))}
    return checkpoints.save(folder, step, model, {"optimizer": {"step": step}}, {"step": step, "sum": 0.1 + step})


# Round trip


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_model_optimizer_and_state_come_back_bit_for_bit(tmp_path: Path, kind: str) -> None:
    model, optimizer = trained(kind)
    state = {"loss": 0.1 + 0.2, "tiny": 5e-324, "best": {"val_loss": None}, "classes": ["a", "ü"], "step": 2**62}
    tensors = {"optimizer": optimizer.state_dict(), "precision": {"scale": 65536.0, "_growth_tracker": 3}}
    path = checkpoints.save(tmp_path / "checkpoints", 7, model.state_dict(), tensors, state)
    assert path == tmp_path / "checkpoints" / "step_00000007"
    assert sorted(file.name for file in path.iterdir()) == sorted([MODEL, OPTIMIZER, STATE, MANIFEST])
    layout.verify(path)
    loaded = checkpoints.load_model(path)
    assert set(loaded) == set(model.state_dict())
    assert all(same(value, loaded[name]) for name, value in model.state_dict().items())
    assert same(checkpoints.load_optimizer(path), tensors) and layout.load_state(path) == state


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_training_continues_from_a_checkpoint_exactly(tmp_path: Path, kind: str) -> None:
    model, optimizer = trained(kind)
    path = checkpoints.save(tmp_path, 3, model.state_dict(), {"optimizer": optimizer.state_dict()}, {})
    other, again = trained(kind)
    step(other, again)  # somewhere else, before it is restored
    other.load_state_dict(checkpoints.load_model(path))
    again.load_state_dict(checkpoints.load_optimizer(path)["optimizer"])
    for one, two in ((model, optimizer), (other, again)):
        torch.manual_seed(5)
        step(one, two)
    assert same(dict(model.state_dict()), dict(other.state_dict()))
    assert other.decode.weight is other.encode.weight


def test_each_written_or_verified_chunk_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checkpoints, files):
        monkeypatch.setattr(module, "_CHUNK", 1 << 10)
    before = doing.ticks
    path = checkpoints.save(tmp_path, 1, {"w": torch.zeros(64 << 10)}, {}, {})
    assert doing.ticks - before >= 256
    before = doing.ticks
    layout.verify(path)
    assert doing.ticks - before >= 256


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step_00000001" / "left_over").touch()
    path = checkpoints.save(tmp_path, 1, {"w": torch.zeros(1)}, {}, {"new": True})
    assert layout.load_state(path) == {"new": True} and not (path / "left_over").exists()
    layout.verify(path)


def test_checkpoint_permissions_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    assert {file.stat().st_mode for file in save(tmp_path, 1).iterdir()} == {(tmp_path / "plain").stat().st_mode}


def test_a_save_that_fails_leaves_no_checkpoint_of_that_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
    assert layout.newest(tmp_path) == tmp_path / "step_00000001"


def test_a_disk_that_swallows_bytes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as patch, pytest.raises(OSError, match="bytes were written and not all are there"):
        patch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]) * 0 + len(data))
        save(tmp_path, 1)
    assert layout.newest(tmp_path) is None
    with monkeypatch.context() as patch:  # of the right size: reading back shows it
        patch.setattr(os, "write", lambda file, data: write(file, bytes(len(data)) if len(data) > 500 else data))
        bad = save(tmp_path, 2)
    with pytest.raises(UserError, match=r"optimizer.pt has another sha256"):
        layout.verify(bad)


def test_no_directory_is_made_in_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "run" / "checkpoints", 1)
    assert not (tmp_path / "run").exists()


def test_weights_equal_what_safetensors_writes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = {
        str(dtype).removeprefix("torch."): torch.randint(0, 2, (2, 3)).to(dtype) for dtype in checkpoints._DTYPES
    } | {"scalar": torch.tensor(0.1), "none": torch.empty(0, 3), "large": torch.randn(700_001)}
    path = checkpoints.save(tmp_path, 1, model, {}, {})
    written = (path / MODEL).read_bytes()
    loaded = safetensors.torch.load(written)
    assert loaded.keys() == model.keys()
    for name, tensor in loaded.items():
        assert (tensor.dtype, tensor.shape) == (model[name].dtype, model[name].shape)
        assert tensor.reshape(-1).view(torch.uint8).equal(model[name].reshape(-1).view(torch.uint8))


# What storage takes in the end


def test_last_write_is_retried_until_storage_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_thread, "_PAUSE", 0.001)
    left = [OSError(28, "No space left on device")] * 3

    def write() -> None:
        if left:
            raise left.pop()

    side_thread.retry(write)
    assert left == []
    monkeypatch.setattr(side_thread, "_PATIENCE", 0.02)
    left += [OSError(5, "Input/output error")] * 100
    with pytest.raises(OSError, match="Input/output"):
        side_thread.retry(write)
    assert 90 < len(left) < 99


# What does not verify


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        values = json.loads((path / MANIFEST).read_text())
        changed = change(values)
        (path / MANIFEST).write_text(json.dumps(values if changed is None else changed))

    return damage


def renamed(values: dict[str, Any]) -> None:
    values["files"] = {f"../{name}": entry for name, entry in values["files"].items()}


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda path: (path / MANIFEST).unlink(), "it has no manifest"),
    "an empty manifest": (lambda path: (path / MANIFEST).write_text(""), "its manifest is damaged"),
    "a half manifest": (lambda path: truncate(path / MANIFEST), "its manifest is damaged"),
    "a manifest of bytes": (lambda path: (path / MANIFEST).write_bytes(b"\xff"), "its manifest is damaged"),
    "a manifest that is a list": (manifest(lambda values: [values]), "its manifest is damaged"),
    "a manifest with other names": (manifest(renamed), "its manifest is damaged"),
    "a manifest without a file": (manifest(lambda values: values["files"].pop(STATE) and None), "damaged"),
    "a manifest with a file more": (
        manifest(lambda values: values["files"].update({"../x": values["files"][MODEL]})),
        "its manifest is damaged",
    ),
    "a manifest of numbers": (
        manifest(lambda values: values.update(files={name: 1 for name in values["files"]})),
        "its manifest is damaged",
    ),
    **{f"a flipped bit in {name}": (lambda path, n=name: flip(path / n), name) for name in (MODEL, OPTIMIZER, STATE)},
    **{f"{name} cut short": (lambda path, n=name: truncate(path / n), name) for name in (MODEL, OPTIMIZER, STATE)},
    **{f"{name} gone": (lambda path, n=name: (path / n).unlink(), name) for name in (MODEL, OPTIMIZER, STATE)},
    **{f"{name} a link": (lambda path, n=name: link(path / n), name) for name in (MODEL, OPTIMIZER, STATE)},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_that_verifies_is_taken(tmp_path: Path, damage: str) -> None:
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    assert layout.newest(tmp_path) == bad
    how, message = DAMAGE[damage]
    how(bad)
    with pytest.raises(UserError, match=f"the checkpoint does not verify: .*{message}.*step_00000002; remove that"):
        layout.verify(bad)
    assert layout.newest(tmp_path) == good


def test_a_linked_folder_and_stray_entries_are_no_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    good, outside = save(folder, 1), save(tmp_path / "outside", 9)
    (folder / "step_00000009").symlink_to(outside)
    (folder / "step_00000010").touch()
    (folder / "step_").mkdir()
    assert layout.newest(folder) == good
    retention.drop_after(folder, 1)
    assert [path.name for path in folder.iterdir() if path.name > "step_00000001"] == []
    layout.verify(outside)


def test_no_folder_and_an_empty_one_have_no_newest(tmp_path: Path) -> None:
    assert layout.newest(tmp_path) is None and layout.newest(tmp_path / "nothing") is None


def test_all_damaged_is_none(tmp_path: Path) -> None:
    for number in range(3):
        flip(save(tmp_path, number) / MODEL)
    assert layout.newest(tmp_path) is None


# Code


class Bomb:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_pickle_as_optimizer_is_refused_and_never_run(tmp_path: Path) -> None:
    path, mark = save(tmp_path / "checkpoints", 1), tmp_path / "ran"
    for plant in (
        lambda: (path / OPTIMIZER).write_bytes(pickle.dumps({"optimizer": Bomb(mark)}, protocol=2)),
        lambda: torch.save({"optimizer": Bomb(mark)}, path / OPTIMIZER),
    ):
        plant()
        content = (path / OPTIMIZER).read_bytes()
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest(lambda values, entry=entry: values["files"].update({OPTIMIZER: entry}))(path)
        layout.verify(path)
        with pytest.raises(UserError, match=r"optimizer.pt (holds more than tensors and plain values|.*no.* zip file)"):
            checkpoints.load_optimizer(path)
        assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the planted code does run where pickles are trusted"


# Keeping house


def names(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))


def named(steps: Iterable[int]) -> list[str]:
    return [layout.name_of(step) for step in steps]


@pytest.mark.parametrize(
    ("keep", "best", "every", "budget", "left"),
    [
        (1, {}, None, None, [5]),
        (2, {}, None, None, [4, 5]),
        (9, {}, None, None, [1, 2, 3, 4, 5]),
        (1, {5: 5}, None, None, [5]),
        (2, {5: 1}, None, None, [1, 4, 5]),
        (2, {5: 5, 4: 2, 3: 1}, None, None, [2, 4, 5]),  # who goes back to 4 finds the best one of then
        (1, {5: 99}, None, None, [5]),
        (1, {}, 2, None, [2, 4, 5]),
        (1, {5: 1}, 3, None, [1, 3, 5]),
        (1, {5: 1}, 2, 30, [1, 4, 5]),  # each takes 10: the oldest go first, the best one last
        (1, {5: 1}, 2, 29, [1, 5]),
        (3, {5: 1, 4: 1, 3: 1}, None, 20, [1, 5]),
        (3, {5: 1}, None, 19, [5]),
        (3, {5: 1}, None, 1, [5]),
        (3, {5: 5}, None, 1000, [3, 4, 5]),
    ],
)
def test_prune_keeps_newest_best_and_every_nth_within_a_budget(
    tmp_path: Path, keep: int, best: dict[int, int], every: int | None, budget: int | None, left: list[int]
) -> None:
    bests = {layout.name_of(one): layout.name_of(other) for one, other in best.items()}
    sizes = dict.fromkeys(named([3, 5, 1, 2, 4]), 10)
    gone = retention.expired(sizes, keep, bests, every, budget)
    assert sorted(sizes.keys() - gone) == named(left) and len(gone) == len(set(gone))
    for step in range(1, 6):
        save(tmp_path, step)
    each = sum(file.stat().st_size for file in (tmp_path / "step_00000001").iterdir())
    room = None if budget is None else budget * each // 10
    retention.prune(tmp_path, lambda sizes: retention.expired(sizes, keep, bests, every, room))
    assert names(tmp_path) == left
    for step in left:
        layout.verify(tmp_path / layout.name_of(step))


@given(
    steps=st.sets(st.integers(0, 10**9), max_size=12),
    keep=st.integers(1, 4),
    every=st.none() | st.integers(1, 5),
    budget=st.none() | st.integers(0, 200),
    data=st.data(),
)
def test_budget_keeps_the_newest_then_the_best(
    steps: set[int], keep: int, every: int | None, budget: int | None, data: st.DataObject
) -> None:
    ordered = sorted(steps)
    sizes = {name: data.draw(st.integers(1, 50)) for name in named(ordered)}
    best = {name: data.draw(st.sampled_from(named(ordered[: at + 1]))) for at, name in enumerate(sizes)}
    gone = retention.expired(sizes, keep, best, every, budget)
    left = [name for name in sizes if name not in gone]
    assert len(gone) == len(set(gone)) and set(gone) <= sizes.keys()
    assert left[-1:] == named(ordered)[-1:]  # also where there are more than 8 digits
    taken = sum(sizes[name] for name in left)
    assert budget is None or taken <= budget or len(left) == 1
    if budget is None:
        assert set(named(ordered)[-keep:]) <= set(left)
    if left and best[left[-1]] not in left:
        assert len(left) == 1 and budget is not None and sizes[best[left[-1]]] + taken > budget


def test_prune_does_not_count_what_was_never_committed(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save(tmp_path, number)
    (tmp_path / "step_00000003" / MANIFEST).unlink()
    retention.prune(tmp_path, lambda sizes: retention.expired(sizes, 2, {}))
    assert layout.newest(tmp_path) == tmp_path / "step_00000002" and names(tmp_path) == [1, 2, 3]
    save(tmp_path, 4)
    retention.prune(tmp_path, lambda sizes: retention.expired(sizes, 3, {}))
    assert names(tmp_path) == [1, 2, 4], "what never was committed goes once there is a newer one"


@pytest.mark.parametrize(("step", "left"), [(-1, []), (0, [0]), (2, [0, 1, 2]), (9, [0, 1, 2, 3])])
def test_drop_after_removes_all_that_lies_beyond(tmp_path: Path, step: int, left: list[int]) -> None:
    for number in range(4):
        save(tmp_path, number)
    (tmp_path / "step_00000003" / MANIFEST).unlink()
    retention.drop_after(tmp_path, step)
    assert names(tmp_path) == left


def test_a_removal_that_is_cut_off_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    unlink = os.unlink

    def cut(path: str) -> None:
        if Path(path).name != MANIFEST:
            raise OSError(5, "Input/output error")
        unlink(path)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(os, "unlink", cut)
        retention.drop_after(tmp_path, 1)
    assert names(tmp_path) == [1, 2] and layout.newest(tmp_path) == tmp_path / "step_00000001"
    retention.drop_after(tmp_path, 1)
    assert names(tmp_path) == [1]


# In the background


def test_snapshot_is_a_copy_of_equal_types() -> None:
    tensor, tree = torch.arange(6.0).reshape(2, 3), {"a": [1, "x", None], "t": (0.5,)}
    copy = snapshot({"w": tensor, "tree": {**tree, "in": [tensor[0]]}, "state": {0: {"step": tensor}}})
    before = tensor.clone()
    tensor.add_(1)
    assert torch.equal(copy["w"], before) and torch.equal(copy["tree"]["in"][0], before[0])
    assert torch.equal(copy["state"][0]["step"], before) and {k: copy["tree"][k] for k in tree} == tree


def test_writing_goes_on_in_the_background_in_its_order() -> None:
    background, gate, done = side_thread.Background(), threading.Event(), []
    background.start(lambda: done.append("first") if gate.wait(10) else None)
    assert done == []
    threading.Timer(0.05, gate.set).start()
    background.start(lambda: done.append("second"))  # waits for the first
    background.wait()
    assert done == ["first", "second"]
    background.wait()
    background.close()


def test_what_could_not_be_written_is_said_at_the_next_occasion() -> None:
    background = side_thread.Background()

    def fails() -> None:
        raise OSError("no space left on device")

    background.start(fails)
    with pytest.raises(OSError, match="no space left"):
        background.start(lambda: None)
    background.start(fails)
    with pytest.raises(OSError, match="no space left"):
        background.wait()
    background.start(fails)
    background.close()  # after another error this one must not hide it
