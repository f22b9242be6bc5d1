"""ImageFolder: which files are samples, in which order, and what is wrong with a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from raytrain.config import from_dict, replace, to_dict
from raytrain.data import MNIST, Data, Folds, ImageFolder, Images, Index
from raytrain.data.prepare import Prepare
from raytrain.errors import BadSample, UserError


def tree(root: Path, *names: str) -> Path:
    """Writes a small image of its own colour at each name."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6 + number % 3, 5), (number * 7 % 256, 40, 90)).save(path, "PNG")
    return root


def many(split: str, classes: Iterable[str] = ("ant", "bee"), count: int = 3) -> list[str]:
    return [f"{split}/{name}/{number}.png" for name in classes for number in range(count)]


def paths(index: Index) -> list[str]:
    assert index.paths is not None
    return index.paths.to_pylist()


def samples(index: Index, root: Path) -> list[tuple[str, int]]:
    return [(str(root / path), int(label)) for path, label in zip(paths(index), index.labels, strict=True)]


@pytest.mark.parametrize(
    "named",
    [
        ("train", "val", "test"),
        ("trainset", "valset", "testset"),
        ("training", "validation", "testing"),
        ("Train", "VALID", "Test"),
    ],
)
def test_the_splits_are_folders_of_classes(tmp_path: Path, named: tuple[str, str, str]) -> None:
    splits = ("train", "val", "test")
    tree(tmp_path, *(name for folder in named for name in many(folder)))
    indices = ImageFolder(root=str(tmp_path), size=4, crop=None).index()
    assert list(indices) == list(splits)
    for (split, index), folder in zip(indices.items(), named, strict=True):
        expected = datasets.ImageFolder(str(tmp_path / folder))
        assert samples(index, tmp_path) == expected.samples
        assert list(index.classes) == expected.classes
        assert (index.split, index.shape, index.ignored) == (split, (3, 4, 4), ())
        assert index.sizes is not None and index.sizes.tolist() == [
            os.path.getsize(path) for path, _ in expected.samples
        ]


def test_files_are_in_torchvisions_order(tmp_path: Path) -> None:
    names = [
        "b/a.png",
        "b/a/z.png",
        "b/a/b/c.JPEG",
        "b/z.JPG",
        "b/a.b/c.png",
        "b/B.Png",
        "a/10.bmp",
        "a/9.webp",
        "Z/é.png",
    ]
    tree(tmp_path, *(f"train/{name}" for name in names), *(f"val/{name}" for name in names))
    for split, index in ImageFolder(root=str(tmp_path)).index().items():
        expected = datasets.ImageFolder(str(tmp_path / split))
        assert samples(index, tmp_path) == expected.samples and len(index) == len(names)
        assert list(index.classes) == expected.classes == ["Z", "a", "b"]


def test_hymenoptera_equals_torchvision_and_names_its_gif(data_root: Path) -> None:
    root = data_root / "hymenoptera"
    indices = ImageFolder(root=str(root)).index()
    assert {split: len(index) for split, index in indices.items()} == {"train": 244, "val": 153}
    for split, index in indices.items():
        assert samples(index, root) == datasets.ImageFolder(str(root / split)).samples
        assert index.classes == ("ants", "bees")
    assert indices["train"].ignored == ("train/ants/imageNotFound.gif",)
    assert indices["val"].ignored == ()


def test_nothing_in_hymenoptera_is_suspected(data_root: Path) -> None:
    data = ImageFolder(root=str(data_root / "hymenoptera"))
    assert [data.probe(index) for index in data.index().values()] == [[], []]


def test_single_folder_is_split_by_seed_in_equal_shares(tmp_path: Path) -> None:
    tree(tmp_path, *many(".", count=20), *many(".", ["wasp"], count=10))

    def split(seed: int) -> dict[str, Index]:
        return ImageFolder(root=str(tmp_path), split_seed=seed, val_fraction=0.3).index()

    first, again, other = split(0), split(0), split(1)
    assert np.bincount(first["val"].labels).tolist() == [6, 6, 3]
    assert sorted(paths(first["train"]) + paths(first["val"])) == [
        path for path, _ in ((os.path.relpath(p, tmp_path), 0) for p, _ in datasets.ImageFolder(str(tmp_path)).samples)
    ]
    assert [first[s].fingerprint() for s in first] == [again[s].fingerprint() for s in again]
    assert paths(first["val"]) != paths(other["val"])
    assert [index.split for index in first.values()] == ["train", "val"]


def test_part_of_train_validates_without_a_val_folder(tmp_path: Path) -> None:
    tree(tmp_path, *many("train", count=10), *many("test"))
    (tmp_path / "train/notes.txt").write_text("not an image")
    indices = ImageFolder(root=str(tmp_path), val_fraction=0.2).index()
    assert {split: len(index) for split, index in indices.items()} == {"train": 16, "test": 6, "val": 4}
    assert set(paths(indices["train"])).isdisjoint(paths(indices["val"]))
    assert [indices[split].ignored for split in ("train", "val")] == [("train/notes.txt",), ()]


def test_a_part_of_train_that_validates_is_said_in_the_plan(tmp_path: Path) -> None:
    tree(tmp_path, *many("Training"), *many("dev"))
    [note] = ImageFolder(str(tmp_path), cache="off").notes()
    assert note.endswith("val folder: 20% of each class of Training is used for validation (--data.val_fraction)")
    tree(tmp_path, *many("valid"))
    assert ImageFolder(str(tmp_path), cache="off").notes() == []
    [note] = ImageFolder(str(tmp_path / "Training"), cache="off").notes()
    assert note.endswith("has no folders of splits: 20% of each class is used for validation (--data.val_fraction)")
    assert ImageFolder(str(tmp_path / "Training"), cache="off", folds=Folds(2)).notes() == []


def test_stray_and_hidden_files_are_ignored_and_named(tmp_path: Path) -> None:
    tree(tmp_path, *many("."))
    strays = [
        "README.md",
        ".git/x.png",
        "ant/.ipynb_checkpoints/0.png",
        "ant/Thumbs.db",
        "bee/._0.png",
        "bee/deep/a.gif",
    ]
    tree(tmp_path, *strays)
    index = ImageFolder(root=str(tmp_path)).index()["train"]
    assert index.classes == ("ant", "bee")
    assert sorted(index.ignored) == sorted([".git", *(name for name in strays if not name.startswith(".git"))])


def test_files_that_are_left_out_are_named_in_order(tmp_path: Path) -> None:
    tree(tmp_path, *many("."), *(f"ant/{number}.gif" for number in (7, 2, 9, 1, 8, 3)))
    assert list(ImageFolder(root=str(tmp_path)).index()["train"].ignored) == [
        f"ant/{n}.gif" for n in (1, 2, 3, 7, 8, 9)
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no class folders with images there, ROOT"),
        (["a.png"], "no class folders with images there, ROOT"),
        (["only/notes.gif"], "no class folders with images there, ROOT"),
        ([*many("."), "wasp/notes.gif"], "a class folder has no images, ROOT/wasp; remove the folder"),
        (many("val"), "no train folder there, ROOT; give a folder with train"),
        (["good/a.png", "test/b.png"], "if test and good are classes, put all class folders into one called train"),
        (["bus/a.png", "train/b.png"], "<class>/*.jpg alone; if train and bus are classes, put all class folders into"),
        ([*many("train"), *many("val", ["ant", "wasp"])], "val lacks bee and train lacks wasp, ROOT; give both"),
        (
            [*many("train"), *many("val"), *many("test", ["ant"])],
            "train and test have different classes: test lacks bee",
        ),
        (
            [*many("."), "wasp/a.gif", "wasp/b.gif", "wasp/c.heic"],
            "no images, ROOT/wasp; remove the folder or convert its .gif and .heic files to .jpg or .png",
        ),
        ([*many("."), "wasp/notes.txt"], "no images, ROOT/wasp; remove the folder or put its images there"),
        (many("all/train"), "a class folder has a folder train, ROOT/all; did you mean ROOT/all?"),
        (many("shapes"), "one class, whose images are in 2 folders: ant, bee, ROOT/shapes; did you mean ROOT/shapes?"),
        (["ant/0.png", "bee/0.png"], "no class with two images there, ROOT; give it a val folder"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(tmp_path: Path, names: list[str], message: str) -> None:
    tree(tmp_path, *names)
    with pytest.raises(UserError) as caught:
        ImageFolder(root=str(tmp_path)).index()
    assert message.replace("ROOT", str(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("~nosuchuser/images", "no such folder, ~nosuchuser/images; check"),
        ("/" + "long" * 100, "the folder cannot be read: File name too long, /long.*; make it readable"),
    ],
)
def test_a_root_out_of_reach_is_one_line(root: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImageFolder(root).index()
    assert ImageFolder(root)._held_out() == []


def test_one_class_may_have_one_folder_or_images_of_its_own(tmp_path: Path) -> None:
    tree(tmp_path, "only/0.png", "only/a/1.png", "only/b/2.png")
    assert sum(map(len, ImageFolder(str(tmp_path), cache="off").index().values())) == 3
    (tmp_path / "only/0.png").unlink()
    (tmp_path / "only/b").rename(tmp_path / "only/.b")
    (tmp_path / "only/a/3.png").write_bytes((tmp_path / "only/a/1.png").read_bytes())
    assert sum(map(len, ImageFolder(str(tmp_path), cache="off").index().values())) == 2


def test_links_beside_the_classes_that_lead_back_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "images"
    tree(root, *many("."))
    (root / "all").symlink_to(".")
    (root / "above").symlink_to(tmp_path)
    monkeypatch.chdir(root)
    for where in (str(root), "."):
        found = ImageFolder(where, cache="off").index()
        assert found["train"].classes == ("ant", "bee") and sum(map(len, found.values())) == 6
        assert found["train"].ignored == ("above", "all")
    (root / "train").symlink_to(".")  # no split
    assert sum(map(len, ImageFolder(str(root), cache="off").index().values())) == 6


def test_no_root_and_a_root_that_is_no_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.root is not set, in ImageFolder; say where"):
        ImageFolder().index()
    (tmp_path / "file").touch()
    for name, what in (("missing", "no such folder"), ("file", "this is a file, and not a folder of images")):
        with pytest.raises(UserError, match=f"{what}, {tmp_path / name}"):
            ImageFolder(root=str(tmp_path / name)).index()


def test_workers_in_other_folders_read_a_relative_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(5):
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    data = ImageFolder("images", size=8).absolute()
    index = data.index()["train"]
    monkeypatch.chdir("/")
    assert data.read(index, np.arange(len(index))).shape == (4, 3, 8, 8)
    assert ImageFolder("s3://bucket/images").absolute().root == "s3://bucket/images"
    assert Images(root="images").absolute().root == "/images", "of a user's own source too"


def test_names_must_be_utf_8_for_images_only(tmp_path: Path) -> None:
    tree(tmp_path, *many("."))
    stray = os.fsencode(tmp_path / "ant") + b"/\xe9.txt"
    Path(os.fsdecode(stray)).touch()
    assert ImageFolder(root=str(tmp_path)).index()["train"].ignored == ("ant/\N{REPLACEMENT CHARACTER}.txt",)
    os.rename(stray, stray.replace(b".txt", b".png"))
    with pytest.raises(UserError, match="its name is not UTF-8"):
        ImageFolder(root=str(tmp_path)).index()


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, *many("."))
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if str(path).endswith("bee"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=f"Permission denied, {tmp_path / 'bee'}; make it readable"):
        ImageFolder(root=str(tmp_path)).index()


@pytest.mark.parametrize("field", ["mean", "std"])
def test_mean_and_std_have_one_number_or_one_a_channel(field: str) -> None:
    for values in ((0.5,), (0.5, 0.4, 0.3)):
        replace(ImageFolder(), field, values)
    for values in ((), (0.5, 0.4)):
        with pytest.raises(UserError, match=rf"{field} = .* is out of range.*of 1 number or one per channel \(3\)"):
            replace(ImageFolder(), field, values)


def test_read_gives_the_central_squares_in_the_order_asked(tmp_path: Path) -> None:
    data = ImageFolder(root=str(tree(tmp_path, *many("."))), size=4, crop=None)
    index = data.index()["train"]
    images = data.read(index, np.array([3, 0, 3]))
    assert images.shape == (3, 3, 4, 4) and images.dtype == np.uint8
    for image, sample in zip(images, (3, 0, 3), strict=True):
        with Image.open(tmp_path / index.name(sample)) as file:
            assert np.array_equal(image, np.broadcast_to(np.array(file.getpixel((0, 0)))[:, None, None], (3, 4, 4)))


@pytest.fixture
def damaged(tmp_path: Path, data_root: Path) -> Path:
    """A folder with four broken files, a dangling link among them, and whole ones of several formats."""
    tree(tmp_path, *many("train", count=40), *many("val"))
    ants = tmp_path / "train/ant"
    photo = (data_root / "hymenoptera/train/ants/0013035.jpg").read_bytes()
    (ants / "100.jpg").write_bytes(photo)
    (ants / "101.jpg").write_bytes(photo[: len(photo) // 2])
    (ants / "102.jpg").write_bytes(b"")
    (ants / "103.jpg").write_text("no image at all")
    (ants / "104.jpg").symlink_to(ants / "nowhere.jpg")
    (ants / "105.jpg").write_bytes(photo + b"\0" * 100)
    for suffix in ("bmp", "tiff", "webp", "ppm"):
        Image.new("RGB", (5, 5)).save(ants / f"106.{suffix}")
    return tmp_path


def test_probe_finds_empty_truncated_and_mislabelled_files(damaged: Path) -> None:
    data = ImageFolder(root=str(damaged))
    index, filters = data.index()["train"], list(warnings.filters)
    found = {Path(bad.path).name: bad.reason for bad in data.probe(index)}
    assert list(found) == ["101.jpg", "102.jpg", "103.jpg", "104.jpg"]
    assert found["101.jpg"] == "Image is incomplete or truncated"
    assert found["102.jpg"] == "the file is empty"
    assert found["103.jpg"].startswith("it is not an image")
    assert found["104.jpg"] == "No such file or directory"
    assert warnings.filters == filters  # the threads leave nothing behind


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")  # it has no end


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def too_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 << 30)


def empty_in_proc(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (pipe, "it is not a regular file"),
        (device, "it is not a regular file"),
        (link_to_itself, "Too many levels of symbolic links"),
        (too_large, "3,221,225,472 bytes are more than 536,870,910"),
        (empty_in_proc, "Input/output error|the file is empty"),
    ],
)
@pytest.mark.timeout(20)
def test_pipe_or_device_is_a_bad_sample_without_waiting(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    data = ImageFolder(root=str(tree(tmp_path, *many("train"), *many("val"))), size=4, crop=None)
    path = tmp_path / "train/bee/x.jpg"
    make(path)
    index = data.index()["train"]
    assert paths(index)[-1] == "train/bee/x.jpg"
    (bad,) = data.probe(index)
    with pytest.raises(BadSample) as caught:
        data.read(index, np.array([6]))
    for one in (bad, caught.value):
        assert one.path == str(path) and re.fullmatch(reason, one.reason)


@pytest.mark.timeout(20)
def test_links_to_a_folder_that_they_are_in_are_ignored(tmp_path: Path) -> None:
    tree(tmp_path / "root", *many("."), "ant/more/deep/1.png")
    bee, deep = tmp_path / "root/bee", tmp_path / "root/ant/more/deep"
    for link, target in ((bee / "a", "."), (bee / "b.jpg", ".."), (deep / "c", "../../..")):
        link.symlink_to(target)
    (bee / "ants").symlink_to("../ant")  # and ant/bees leads back to bee
    (deep.parent / "bees").symlink_to("../../bee")
    index = ImageFolder(root=str(tmp_path / "root")).index()
    both = [path for part in index.values() for path in paths(part)]
    ants = ["0.png", "1.png", "2.png", "more/deep/1.png"]
    bees = ["0.png", "1.png", "2.png"]
    assert sorted(both) == sorted(
        [f"ant/{name}" for name in ants + [f"more/bees/{name}" for name in bees]]
        + [f"bee/{name}" for name in bees + [f"ants/{name}" for name in ants]]
    )
    assert len(index["train"].ignored) == 8


def test_read_names_the_file_that_it_cannot_read(damaged: Path) -> None:
    data = ImageFolder(root=str(damaged), size=8, crop=None)
    index = data.index()["train"]
    for sample, path in enumerate(paths(index)):
        if path in {f"train/ant/10{n}.jpg" for n in (1, 2, 3, 4)}:
            with pytest.raises(BadSample) as caught:
                data.read(index, np.array([0, sample]))
            assert caught.value.path == str(damaged / path) and caught.value.reason
        else:
            assert data.read(index, np.array([sample])).shape == (1, 3, 8, 8)


def test_fingerprint_depends_on_the_set_of_files_only(tmp_path: Path) -> None:
    root = tree(tmp_path / "a", *many("train"), *many("val"))

    def fingerprint(data: ImageFolder = ImageFolder(root=str(root))) -> str:
        return data.index()["train"].fingerprint()

    first = fingerprint()
    os.utime(root / "train/ant/0.png", (1, 1))
    (root / "train/ant/notes.txt").touch()
    shutil.copytree(root, tmp_path / "b")
    assert fingerprint() == fingerprint(ImageFolder(root=str(tmp_path / "b"), crop=8, mean=(0.1,))) == first
    with (root / "train/ant/0.png").open("ab") as file:
        file.write(b"!")
    longer = fingerprint()
    tree(root, "train/bee/3.png")
    more = fingerprint()
    (root / "train/bee/3.png").rename(root / "train/bee/4.png")
    smaller = fingerprint(ImageFolder(root=str(root), size=128))
    assert len({first, longer, more, fingerprint(), smaller}) == 5


def test_a_cache_that_cannot_be_kept_is_said_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (note,) = ImageFolder(root=str(tmp_path), cache=str(tmp_path / "file" / "cache")).notes()
    assert note.startswith(f"decoded images cannot be kept in {tmp_path}/file/cache: the next run decodes them again")
    for cache in (str(tmp_path / "new" / "cache"), "off"):
        assert ImageFolder(root=str(tmp_path), cache=cache).notes() == []


def test_root_is_the_first_argument_also_of_subclasses(tmp_path: Path) -> None:
    assert ImageFolder("shapes") == ImageFolder(root="shapes")
    assert MNIST("numbers").root == "numbers"

    @dataclass(frozen=True)
    class Frames(Data):
        folder: str

    assert Frames("films", crop=8) == Frames(folder="films", crop=8)
    with pytest.raises(TypeError, match="positional argument"):
        Frames("films", "streaming")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, (3, 224, 224)),
        ({"size": 300}, (3, 224, 224)),
        ({"size": 28, "channels": 1}, (1, 28, 28)),
        ({"size": 28}, (3, 28, 28)),
        ({"size": 300, "crop": None}, (3, 300, 300)),
        ({"crop": 32}, (3, 32, 32)),
    ],
)
def test_the_crop_follows_the_size(tmp_path: Path, fields: dict[str, Any], seen: tuple[int, int, int]) -> None:
    data = ImageFolder(root=str(tree(tmp_path, *many("."))), **fields)
    assert data.sample(data.index()["train"]) == seen
    assert from_dict(Data, json.loads(json.dumps({"class": "raytrain:ImageFolder"} | to_dict(data))), "x") == data


def test_mean_and_std_are_imagenets_unless_given(tmp_path: Path) -> None:
    tree(tmp_path, *many("."))

    def seen(**fields: Any) -> torch.Tensor:
        data = ImageFolder(root=str(tmp_path), size=4, **fields)
        index = data.index()["train"]
        images = torch.from_numpy(data.read(index, np.arange(3)))
        return Prepare(data, index).plain({"image": images})["image"]

    rgb = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    assert torch.equal(seen(), seen(**rgb)) and torch.equal(seen(mean=rgb["mean"]), seen(**rgb))
    assert torch.equal(seen(channels=1), seen(channels=1, mean=(0.449,), std=(0.226,)))
    assert not torch.equal(seen(), seen(mean=(0.5,)))


def test_the_plan_says_what_becomes_of_sizes(tmp_path: Path) -> None:
    tree(tmp_path, *many(".", count=2))  # 6 to 8 x 5 pixels
    broken = tmp_path / "ant" / "9.png"
    broken.write_bytes(b"no image")

    def notes(**fields: Any) -> list[str]:
        data = ImageFolder(root=str(tmp_path), **fields)
        return data.size_notes(data.index()["train"])

    [note, outside] = notes()
    assert re.fullmatch(
        r"(17|29|38)% of their pixels are outside the central square that the model sees: --data.fit .*", outside
    )
    assert len(notes(fit="squash")) == 1
    assert re.fullmatch(
        r"files of about [678] x 5 pixels become 256 x 256, of which the model sees 224 x 224: enlarged 51.2 times, "
        "and --data.size 5 would fit",
        note,
    )
    assert notes(crop=64)[0].endswith("and --data.size 5 --data.crop auto would fit")
    for fields in ({"size": 7}, {"size": 5}, {"size": 4, "crop": 4}):
        assert re.fullmatch(r"files of about . x 5 pixels become (.) x \1", notes(**fields)[0])
    for name in ("ant", "bee"):
        for file in (tmp_path / name).iterdir():
            file.write_bytes(b"no image")
    assert notes() == []
    for file in tmp_path.glob("*/*.png"):
        Image.new("RGB", (32, 32)).save(file)
    assert notes(size=32, crop=32) == [] and notes(size=32, crop=28), "nothing becomes of them"


def test_test_images_do_not_validate(tmp_path: Path) -> None:
    tree(tmp_path, *many("train"), *many("test"))
    [note] = ImageFolder(str(tmp_path), cache="off").notes()
    assert note.endswith("(--data.val_fraction); test is left for `raytrain evaluate --split test`")
