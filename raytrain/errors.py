"""The catalogue: every mistake of a user, said once, in one line, with its remedy.

Each function returns a `UserError` for the caller to raise. The command line prints it as
``error: what, where; how to mend it`` and exits with status 2; from Python it is an exception like any other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])")
"""Terminal escape sequences (ECMA-48): CSI, as for colours; OSC, as for window titles; and the short ones."""


class UserError(Exception):
    """A mistake that the user can mend.

    Args:
        what: what is wrong, naming the value.
        where: the file, field or place it was found in.
        how: how to mend it.
    """

    def __init__(self, what: str, where: object, how: str):
        super().__init__(what, where, how)
        self.what, self.where, self.how = (one_line(str(part)) for part in (what, where, how))

    def __str__(self) -> str:
        return f"{self.what}, {self.where}; {self.how}" if self.where else f"{self.what}; {self.how}"


class NoAnswer(UserError):
    """A cluster's dashboard does not answer: a mistake in its address, or, once it did, for a moment."""


class BadSample(Exception):
    """A sample that cannot be read: raised by a data source's `read`, handled by `on_bad_sample`."""

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, one_line(reason)


def one_line(text: str, limit: int = 600) -> str:
    """Return text as one line that any terminal can show: without line breaks, escape sequences and control
    characters, with the middle left out if it is longer than `limit` characters."""
    text = " ".join(_ESCAPES.sub("", text).split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]} ... {text[-limit // 3 :]}"


def _listed(names: Iterable[object], limit: int = 8) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _nearest(name: str, known: Iterable[str]) -> str:
    return _did_you_mean(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5))


def _did_you_mean(names: Iterable[object]) -> str:
    names = [str(name) for name in names]
    return f"did you mean {' or '.join(names)}? " if names else ""


# The command line and the experiment


def unknown_command(name: str, known: Sequence[str]) -> UserError:
    return UserError(f"unknown command {name!r}", "", f"{_nearest(name, known)}the commands are {_listed(known, 20)}")


def unknown_flag(flag: str, meant: Sequence[str], usage: str) -> UserError:
    return UserError(f"unknown flag {flag}", "", f"{_did_you_mean(meant)}`{usage} --help` lists the flags")


def flag_of_another_strategy(flag: str, names: Sequence[str]) -> UserError:
    return UserError(
        f"{flag} belongs to another parallel strategy", "", f"take it with --parallel.strategy {_listed(names)}"
    )


def unexpected_argument(value: str, meant: Sequence[str], usage: str) -> UserError:
    return UserError(f"unexpected argument {value!r}", "", f"{_did_you_mean(meant)}see `{usage} --help`")


def bad_flag(message: str, usage: str) -> UserError:
    return UserError(message.rstrip("."), "", f"see `{usage} --help`")


def unknown_field(path: str, known: Sequence[str], where: object) -> UserError:
    return UserError(f"unknown field {path!r}", where, f"{_nearest(path, known)}the fields are {_listed(known, 12)}")


def missing_field(path: str, where: object) -> UserError:
    return UserError(f"field {path!r} is missing", where, "add it, or start from a fresh experiment file")


def wrong_type(field: str, value: object, expected: str, where: object) -> UserError:
    return UserError(f"{field} = {value!r} is of the wrong type", f"in {where}", f"give {expected}")


def out_of_range(field: str, value: object, allowed: str, where: object) -> UserError:
    return UserError(f"{field} = {value!r} is out of range", f"in {where}", f"give a value {allowed}")


def not_an_experiment(path: Path, why: str) -> UserError:
    return UserError(
        f"not an experiment: {why}",
        path,
        "give a .py file that ends in `experiment = Experiment(...)`, or the experiment.json of a run",
    )


def a_sweep_instead(path: Path) -> UserError:
    return UserError("this file defines a sweep and no experiment", path, f"run it with `raytrain sweep {path}`")


def local_class(name: str, module: str) -> UserError:
    return UserError(
        f"class {name} stands inside a function, so that no saved run could name it",
        f"in {module}",
        "move it to the top level of its file",
    )


def cannot_save(reason: str) -> UserError:
    return UserError(
        f"the experiment cannot be saved as JSON: {reason}",
        "in a field of a class of yours",
        "let fields hold numbers, strings, booleans, None, tuples and dataclasses",
    )


def no_lr_batch_size(scaling: str) -> UserError:
    return UserError(
        f"lr_scaling {scaling} needs lr_batch_size, the batch size that optimizer.lr was chosen for",
        "",
        "add --lr_batch_size N, or take --lr_scaling none",
    )


def trains_while_loading(path: Path) -> UserError:
    return UserError(
        "the experiment file starts a training while it is read", path, "put that under `if __name__ == '__main__':`"
    )


def unknown_class(name: str, where: object) -> UserError:
    return UserError(
        f"class {name!r} cannot be found",
        where,
        "keep the experiment file's copy beside experiment.json, and its class names as they were",
    )


# Files and data


def no_such_file(path: Path | str, what: str, meant: Iterable[object] = ()) -> UserError:
    return UserError(
        f"no such {what}", path, _did_you_mean(meant).rstrip() or "check the spelling, or give an absolute path"
    )


def no_data(root: Path | str, wants: str, how: str) -> UserError:
    return UserError(f"no {wants} there", root, how)


def no_root(source: str) -> UserError:
    return UserError("data.root is not set", f"in {source}", "say where the data is: --data.root DIR")


def empty_class(folder: Path | str, *kinds: str) -> UserError:
    convert = f"convert its {' and '.join(kinds)} files to .jpg or .png" if kinds else "put its images there"
    return UserError("a class folder has no images", folder, f"remove the folder or {convert}")


def classes_differ(train: Sequence[str], other: Sequence[str], split: str, root: object) -> UserError:
    lacks, more = sorted(set(train) - set(other)), sorted(set(other) - set(train))
    parts = ([f"{split} lacks {_listed(lacks)}"] if lacks else []) + ([f"train lacks {_listed(more)}"] if more else [])
    return UserError(
        f"train and {split} have different classes: {' and '.join(parts)}", root, "give both the same class folders"
    )


def policy_misfit(policy: str, channels: int) -> UserError:
    return UserError(
        f"{policy} takes images of 1 or 3 channels and these have {channels}",
        "in data.augment.policy",
        "take --data.augment.policy none",
    )


def bad_sample(path: str, reason: str) -> UserError:
    return UserError(
        f"cannot read sample: {reason}",
        path,
        "repair or remove it, or drop such samples with --data.on_bad_sample skip",
    )


def lost_sample(path: str, reason: str) -> UserError:
    return UserError(
        f"cannot read a sample that could be read when the run began: {reason}",
        path,
        "restore it and resume the run, or train a new one",
    )


def bad_image(path: str, reason: str) -> UserError:
    return UserError(f"cannot read image: {reason}", path, "repair it, or leave it out")


def all_samples_bad(root: object, reason: str) -> UserError:
    return UserError(f"not one sample can be read; the first: {reason}", root, "check that the files are images")


def broken_file(path: Path | str, reason: str, how: str) -> UserError:
    return UserError(f"the file is broken: {reason}", path, how)


def download_failed(url: str, reason: str) -> UserError:
    return UserError(f"the download failed: {reason}", url, "check the network, or put the file in place by hand")


# Model and task


def head_mismatch(got: tuple[int, ...], classes: int, where: str) -> UserError:
    return UserError(
        f"the model's head does not fit the classes: it gives {list(got)} for one sample and the data has "
        f"{classes} classes",
        f"in {where}",
        f"let its build() end in {classes} outputs",
    )


def no_precision(name: str, why: str, others: str) -> UserError:
    return UserError(
        f"{name} needs a GPU of compute capability 8.0 or higher, and {why}", "in precision", f"take {others}"
    )


def no_compiler(looked_for: str) -> UserError:
    return UserError(
        f"torch.compile needs a C++ compiler and there is none ({looked_for})",
        "in compile",
        "install g++, or take --no_compile",
    )


def no_channels_last(why: str, where: str) -> UserError:
    return UserError(f"the model fails: {why} with channels_last", where, "take --memory_format contiguous")


def unknown_model(name: str, known: Sequence[str]) -> UserError:
    return UserError(
        f"torchvision has no classification model {name!r}",
        "in model.name",
        f"{_nearest(name, known)}it has {_listed(known, 6)}",
    )


def needs_colour(name: str, channels: int) -> UserError:
    return UserError(
        f"torchvision's {name} takes images of 3 channels and these have {channels}",
        "in model.name",
        "take a source of colour images, or a CNN or MLP",
    )


def bad_weights(path: Path | str, reason: str) -> UserError:
    return UserError(
        f"the weights do not fit: {reason}", path, "give a state dict of that torchvision model (.pth or .safetensors)"
    )


def no_step(precision: str, why: str, where: str) -> UserError:
    return UserError(
        f"no training step in {precision} works, whatever the micro-batch: {why}",
        f"in {where}",
        "make `raytrain train` work first; its own error says where",
    )


def no_probe(why: str) -> UserError:
    return UserError(
        f"the processes that try micro-batches do not start: {why}",
        "",
        "look whether `raytrain train` works; classes of a script or a notebook belong into a file of their own",
    )


def nothing_to_train(where: str) -> UserError:
    return UserError("the model has no parameter that requires a gradient", f"in {where}", "unfreeze a layer")


def nothing_to_unfreeze(where: str) -> UserError:
    what = "all layers but the last stay frozen throughout"
    return UserError(what, f"in {where}", "leave out --unfreeze_epoch, or the model's freeze")


# Plan


def batch_indivisible(field: str, value: int, by: str, divisor: int, how: str) -> UserError:
    return UserError(f"{field} {value} does not divide by {by} {divisor}", "", how)


def bad_name(name: str) -> UserError:
    return UserError(f"{name!r} is no name for a run's folder", "in --name", "give one word without a slash")


def too_few(resource: str, asked: float, has: float, where: str) -> UserError:
    return UserError(
        f"the run asks for {asked:g} {resource} and the cluster has {has:g}",
        f"in {where}",
        "ask for less, or start more nodes",
    )


def strategy_misfit(what: str, field: str, how: str) -> UserError:
    return UserError(what, f"in {field}", how)


def unknown_strategy(name: str, known: Sequence[str]) -> UserError:
    return UserError(
        f"there is no parallel strategy {name!r}",
        "in parallel.strategy",
        f"{_nearest(name, known)}they are {_listed(known, 12)}",
    )


def no_shared_memory() -> UserError:
    return UserError(
        "the workers have no memory in common: they are not all on CPUs of one x86-64 Linux host",
        "in parallel.reduction",
        "take --parallel.reduction auto",
    )


def no_room(what: str, needs: int, has: int, where: object, how: str) -> UserError:
    return UserError(f"{what} needs {needs / 2**20:,.0f} MiB and there are {has / 2**20:,.0f} MiB", where, how)


def bad_workers(value: str) -> UserError:
    return UserError(
        f"{value!r} is no number of workers",
        "in scaling.workers",
        "take a number, or MIN:MAX such as 2:8, with MIN >= 1",
    )


def elastic_trial(value: str) -> UserError:
    return UserError(
        f"the number of workers of a trial is fixed, and here it is {value}", "in scaling.workers", "take one number"
    )


def shared_gpu(workers: int, gpus: float) -> UserError:
    return UserError(
        f"{workers} workers of {gpus:g} GPU could share one, which NCCL cannot do",
        "in scaling.gpus_per_worker",
        "give each worker a whole GPU, or take one worker",
    )


def no_cluster(address: str, reason: str) -> UserError:
    return UserError(
        f"no Ray cluster answers: {reason}",
        address,
        "start one with `ray start --head`, or leave --address away to use this machine alone",
    )


def not_writable(path: Path | str, reason: str) -> UserError:
    return UserError(f"the output cannot be written: {reason}", path, "give a writable folder with --out DIR")


def not_local(path: str) -> UserError:
    return UserError(
        "a sweep needs a folder, and this is a URL", path, "give a local or a shared folder with --out DIR"
    )


def no_storage(url: str, reason: str) -> UserError:
    return UserError(
        f"storage does not answer: {reason}",
        url,
        "check the address, its bucket, and the credentials (AWS_ACCESS_KEY_ID and the like)",
    )


def name_taken(run: Path | str) -> UserError:
    return UserError("a run of that name exists", run, f"take another --name, or go on with `raytrain resume {run}`")


# Runs and checkpoints


def not_a_run(path: Path | str, meant: Iterable[object] = ()) -> UserError:
    how = f"{_did_you_mean(meant)}give a folder that `raytrain train` made"
    return UserError("no run there (it has no experiment.json)", path, how)


def a_sweep_s_runs(path: Path | str, best: int | None) -> UserError:
    how = f"take {path}/trials/{best or 0:04d}, " + ("or another one" if best is None else "the best one")
    return UserError("this is a sweep, of which each trial is a run", path, how)


def weights_not_kept(run: Path | str) -> UserError:
    return UserError(
        "a sweep keeps the weights of its best trial alone, or of the best --keep N",
        run,
        f"train this one again with `raytrain train {run}/experiment.json`",
    )


def not_a_sweep(path: Path | str) -> UserError:
    return UserError("no sweep there (it has no sweep.json)", path, "give a folder that `raytrain sweep` made")


def broken_sweep(file: Path | str, reason: str) -> UserError:
    return UserError(
        f"the sweep's file cannot be read: {reason}",
        file,
        "restore it from a copy; its trials' directories are runs, which `raytrain evaluate` reads",
    )


def no_checkpoint(run: Path | str) -> UserError:
    return UserError(
        "the run has no checkpoint that verifies", run, "train it again, or restore its checkpoints folder"
    )


def broken_checkpoint(path: Path | str, reason: str) -> UserError:
    return UserError(
        f"the checkpoint does not verify: {reason}",
        path,
        "remove that folder and try again: the newest that verifies is taken",
    )


def storage_refuses(run: Path | str, reason: str, newest: str | None) -> UserError:
    return UserError(
        f"the last checkpoint cannot be written: {reason}",
        run,
        f"mend that and go on from {newest}, the newest that is there" if newest else "mend that and train again",
    )


def already_done(run: Path | str, epochs: int) -> UserError:
    return UserError(f"the run is complete at {epochs} epochs", run, f"train longer with --epochs above {epochs}")


def stopped_early(run: Path | str, epochs: int, stalled: int, monitor: str) -> UserError:
    return UserError(
        f"the run is complete: it stopped early at {epochs} epochs, {stalled} of them without a better {monitor}",
        run,
        f"train longer with --patience {stalled + 1} or more, or --patience None",
    )


def still_running(run: Path | str, holder: str) -> UserError:
    holder = f"process {holder}" if holder.isdigit() else holder or "another process"
    return UserError(f"the run is still going ({holder})", run, "wait for it, or stop it with Ctrl-C there")


def changed_on_resume(fields: Sequence[str], run: Path | str) -> UserError:
    return UserError(
        f"a resumed run cannot change {_listed(fields)}",
        run,
        "resume takes --epochs, --patience, --parallel.*, --scaling.*, --checkpoint.*, --loggers.*, "
        "--micro_batch_size, --clip_norm, --on_nonfinite and --data.root; train a new run for the rest",
    )


def data_changed(run: Path | str) -> UserError:
    return UserError(
        "the training data is not what the run began with",
        run,
        "restore the data, or train a new run on what is there now",
    )


def unknown_suffix(path: Path | str, known: Sequence[str]) -> UserError:
    return UserError("unknown file type", path, f"end its name in {_listed(known)}")


def cannot_write(path: Path | str, reason: str) -> UserError:
    return UserError(f"the file cannot be written: {reason}", path, "name one in a folder that is there and writable")


def cannot_export(reason: str, where: str) -> UserError:
    return UserError(
        f"torch.export cannot trace the model: {reason}",
        f"in {where}",
        "mend what it names in the model, or export .pth or .safetensors",
    )


def nothing_to_predict(path: Path | str) -> UserError:
    return UserError("no images there", path, "give image files or a folder of them")


def no_split(split: str, root: object) -> UserError:
    return UserError(f"the data has no {split} split", root, "choose another --split")


def not_square(sample: tuple[int, int, int]) -> UserError:
    return UserError(
        f"predict prepares square images, and this run's are {sample[1]}x{sample[2]}",
        "in its data",
        "use its model from Python: raytrain.Run(path).model()",
    )


def not_a_classifier(run: Path | str, task: str) -> UserError:
    return UserError(
        f"predict classifies images, and this run's task is {task}",
        run,
        "use its model from Python: raytrain.Run(path).model()",
    )


# Sweeps


def holds_no_sweep(path: Path, why: str) -> UserError:
    return UserError(
        f"not a sweep: {why}", path, "give a .py file that ends in `sweep = Sweep(...)`, or a sweep's directory"
    )


def empty_sweep() -> UserError:
    return UserError(
        "a sweep without axes", "in Sweep", 'say what differs, as in axes=(Grid("optimizer.lr", (0.1, 1)),)'
    )


def empty_axis(path: str, kind: str, low: float | None = None, high: float | None = None) -> UserError:
    if low is None:
        return UserError(f"axis {path} has no values", f"in {kind}", "give at least one")
    return UserError(f"axis {path} has no values from {low} to {high}", f"in {kind}", "let low be below high")


def axis_twice(path: str) -> UserError:
    return UserError(f"two axes have the path {path}", "in Sweep.axes", "make one of them")


def axis_refused(path: str, why: str) -> UserError:
    return UserError(f"axis {path} has a value that its field refuses", "in Sweep.axes", why)


def axis_without_effect(path: str) -> UserError:
    return UserError(
        f"{path} cannot be an axis", "in Sweep.axes", "set it in the experiment; it is no part of the recipe"
    )


def flag_of_an_axis(path: str) -> UserError:
    return UserError(f"--{path} is what the sweep varies", "", "change the axis in its file")


def axis_not_finite(path: str) -> UserError:
    return UserError(
        f"axis {path} decides what is read, and has no end of values", "in Sweep.axes", "make it a Grid or a Choice"
    )


def no_combination(why: str) -> UserError:
    return UserError("no combination of the axes' values makes an experiment", "in Sweep.axes", why)


def grid_is_smaller(trials: int, combinations: int) -> UserError:
    return UserError(
        f"the grid has {combinations} combinations and {trials} trials are asked for, which would repeat some",
        "in Sweep",
        "leave trials out, or make an axis of another kind",
    )


def fewer_trials(begun: int, trials: int, sweep: object) -> UserError:
    return UserError(f"{begun} trials have begun and {trials} are asked for", sweep, f"take --trials {begun} or more")


def an_experiment_instead(path: Path) -> UserError:
    return UserError("this file defines an experiment and no sweep", path, f"run it with `raytrain train {path}`")


def trials_missing(paths: Sequence[str]) -> UserError:
    return UserError(
        f"how many trials is not said, and {_listed(paths)} is no Grid", "in Sweep", "set trials, or --trials 20"
    )


def unknown_objective(name: str, known: Sequence[str]) -> UserError:
    return UserError(
        f"no run reports {name!r}", "in Sweep.objective", f"{_nearest(name, known)}there are {_listed(known, 12)}"
    )


def search_misfit(kind: str, why: str, path: str) -> UserError:
    return UserError(f"{kind} {why}", f"in {path}", "take another kind of axis, or RandomSearch()")


def scheduler_misfit(kind: str, why: str, where: str) -> UserError:
    return UserError(f"{kind} {why}", f"in {where}", "change that, or take another scheduler")


def extra_missing(what: str, package: str, extra: str) -> UserError:
    return UserError(f"{what} needs {package}, which is not installed", "", f"pip install 'raytrain[{extra}]'")


def sweep_changed(paths: Sequence[str], sweep: object) -> UserError:
    return UserError(
        f"a sweep that goes on cannot change {_listed(paths)}",
        sweep,
        "start a new sweep for that (trials, budget_seconds, concurrent, timeout_seconds, retries, keep can change)",
    )


def too_many_at_once(concurrent: int, fits: int) -> UserError:
    return UserError(
        f"{concurrent} trials at once do not fit, {fits} do", "in Sweep.concurrent", f"take --concurrent {fits}"
    )


# Clusters


def not_a_cluster_file(path: Path, line: int | None, why: str) -> UserError:
    return UserError(
        f"not a cluster file: {why}",
        f"{path}:{line}" if line else path,
        "give a YAML file for `ray up`, or one of KubeRay's; `raytrain cluster init KIND` writes one",
    )


def cluster_broken(path: Path, count: int) -> UserError:
    return UserError(
        f"{count} {'errors' if count > 1 else 'error'} in the cluster's file",
        path,
        f"correct {'them' if count > 1 else 'it'}, then check it again",
    )


def unknown_cluster(kind: str, known: Sequence[str]) -> UserError:
    return UserError(f"no kind of cluster {kind!r}", "", f"{_nearest(kind, known)}the kinds are {_listed(known)}")


def file_exists(path: Path) -> UserError:
    return UserError("this file exists, and is not written over", path, "give another --out, or remove it")


# Jobs on a cluster


def dashboard_missing() -> UserError:
    return UserError(
        "no cluster is named",
        "",
        "give the URL of its dashboard: --address http://HOST:8265, or RAY_API_SERVER_ADDRESS",
    )


def not_a_dashboard_url(address: str, url: str) -> UserError:
    return UserError(
        "this is no URL of a dashboard, which takes jobs",
        address,
        f"give one such as {url} (8265 is Ray's default port)",
    )


def no_dashboard(url: str, reason: str) -> NoAnswer:
    return NoAnswer(
        f"no Ray dashboard answers: {reason}",
        url,
        "give the URL that `ray start --head` prints, http://HOST:8265 by default, or that of a tunnel to it",
    )


def secret_in_url(flag: str) -> UserError:
    return UserError(
        "the URL holds a password, which all who see the job could read",
        f"in {flag}",
        "leave it out: credentials are the nodes' environment or role",
    )


def other_ray(url: str, there: str, here: str) -> UserError:
    return UserError(
        f"the cluster has Ray {there} and this machine {here}", url, "install the same lock file on both (`make setup`)"
    )


def token_missing(url: str, why: str) -> UserError:
    return UserError(
        f"the cluster wants a token and {why}",
        url,
        "copy the head's ~/.ray/auth_token to the same place here (chmod 600), or name it in RAY_AUTH_TOKEN_PATH",
    )


def token_refused(url: str, where: str) -> UserError:
    return UserError(f"the cluster refuses the token of {where}", url, "take that of its head's ~/.ray/auth_token")


def token_in_the_clear(url: str) -> UserError:
    return UserError(
        "the token would cross the internet in the clear",
        url,
        "tunnel (`ssh -N -L 8265:localhost:8265 HEAD`, or `ray dashboard cluster.yaml`) and take "
        "--address http://localhost:8265",
    )


def refused_by_cluster(url: str, reason: str) -> UserError:
    return UserError(
        f"the cluster refuses it: {reason}", url, "correct what it names; dashboard.log on the head says more"
    )


def no_such_job(name: str, known: Sequence[str]) -> UserError:
    return UserError(f"no job {name!r} there", "", f"{_nearest(name, known)}`raytrain status` lists the jobs")


def storage_of_a_job(out: str) -> UserError:
    return UserError(
        f"--out {f'{out} is relative' if out else 'is not given'}, and a job runs in a temporary copy of the project: "
        "its results would be lost",
        "",
        "give a folder that all nodes share (--out /shared/runs), or a URL (--out s3://bucket/runs)",
    )


def not_submitted(path: Path | str) -> UserError:
    return UserError("a job takes a file, and this is a directory", path, "name the experiment's or the sweep's file")


def left_out(path: Path | str, folder: Path) -> UserError:
    return UserError(
        "this file would not be sent: it is left out of the project",
        path,
        f"mend {folder}/.gitignore or .rayignore, or put it elsewhere",
    )


def project_too_large(folder: Path, size: int, limit: int, largest: Sequence[tuple[str, int]]) -> UserError:
    files = _listed(f"{name} ({bytes / 2**20:,.1f} MiB)" for name, bytes in largest)
    return UserError(
        f"the project has {size / 2**20:,.0f} MiB or more and {limit / 2**20:,.0f} MiB may be sent; "
        f"the largest files are {files}",
        folder,
        "keep data and weights on storage that all nodes share, or name them in a .rayignore",
    )


def too_many_files(folder: Path, seen: int) -> UserError:
    return UserError(
        f"the project has too many files, {seen:,} or more",
        folder,
        "submit from the experiment's own folder, or add a .rayignore",
    )


def cannot_send(folder: Path, reason: str) -> UserError:
    return UserError(f"the project cannot be sent: {reason}", folder, "mend that, or name it in a .rayignore")
