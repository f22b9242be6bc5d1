"""The errors of users, and those that several modules raise; all others are raised with their text where they occur.

The command line prints a `UserError` in one line, ``error: what, where; how to fix it``, and exits with status 2. From
Python it is an exception like any other.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])")
"""Terminal escape sequences (ECMA-48): CSI, as for colours; OSC, as for window titles; and the short ones."""

_JOBS_FOLDER = "/_ray_pkg_"
"""In the path of a job's working directory: how Ray names the package that was sent."""


class UserError(Exception):
    """A mistake that the user can fix.

    Args:
        what: what is wrong, naming the value.
        where: the file, field or place it was found in.
        how: how to fix it.
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

    def __str__(self) -> str:
        return f"{self.reason}, {self.path}"


def one_line(text: str, limit: int = 600) -> str:
    """Return text as one line that any terminal can show: without line breaks, escape sequences and control
    characters, with the middle left out if it is longer than `limit` characters."""
    text = " ".join(_ESCAPES.sub("", text).split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]} ... {text[-limit // 3 :]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def command(*words: object) -> str:
    """Return a command of raytrain for a message, with words quoted for a shell: "`raytrain resume 'my run'`"."""
    return f"`{shlex.join(['raytrain', *map(str, words)])}`"


def listed(names: Iterable[object], limit: int = 8) -> str:
    """Return names in one line; of more than `limit`, how many more there are."""
    names = [str(name) for name in names]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...? " with the known name that is spelled most alike, or nothing."""
    return did_you_mean(close(name, known)[:1])


def close(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are spelled like `name`, the most alike first, at most three."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)


def did_you_mean(names: Iterable[object]) -> str:
    """Return "did you mean A or B? ", or nothing where there are no names."""
    names = [str(name) for name in names]
    return f"did you mean {' or '.join(names)}? " if names else ""


def with_article(name: str) -> str:
    """Return the name of a class after "a" or "an"."""
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


# What several modules raise


def unknown_command(name: str, known: Sequence[str]) -> UserError:
    return UserError(f"unknown command {name!r}", "", f"{nearest(name, known)}the commands are {listed(known, 20)}")


def bad_flag(message: str, usage: str) -> UserError:
    return UserError(message.rstrip("."), "", f"see `{usage} --help`")


def unknown_field(path: str, known: Sequence[str], where: object, meant: Sequence[str] = ()) -> UserError:
    near = did_you_mean(meant) or nearest(path, known)
    return UserError(f"unknown field {path!r}", where, f"{near}the fields are {listed(known, 12)}")


def out_of_range(field: str, value: object, allowed: str, where: object) -> UserError:
    return UserError(f"{field} = {value!r} is out of range", f"in {where}", f"give a value {allowed}")


def no_such_file(path: Path | str, what: str, meant: Iterable[object] = ()) -> UserError:
    how = did_you_mean(meant).rstrip() or "check the spelling, or give an absolute path"
    if _JOBS_FOLDER in os.path.abspath(path):
        how = (
            "a job has only the files that were sent with its project: "
            "name it by an absolute path that all nodes have, or by a URL"
        )
    return UserError(f"no such {what}", path, how)


def no_root(source: str) -> UserError:
    return UserError("data.root is not set", f"in {source}", "say where the data is: --data.root DIR")


_AZURE = "check the address, its container, and the credentials (AZURE_CLIENT_ID and the like, or `az login`)"
_GOOGLE = (
    "check the address, its bucket, and the credentials (GOOGLE_APPLICATION_CREDENTIALS, or "
    "`gcloud auth application-default login`)"
)
_HADOOP = (
    "check the address, and that Java and Hadoop are on this machine and all nodes (JAVA_HOME, HADOOP_HOME, and "
    "CLASSPATH from `hadoop classpath --glob`)"
)
_REMEDIES = {
    "s3": "check the address, its bucket, and the credentials (AWS_ACCESS_KEY_ID and the like)",
    **{"gs": _GOOGLE, "gcs": _GOOGLE, "abfs": _AZURE, "abfss": _AZURE, "hdfs": _HADOOP, "viewfs": _HADOOP},
}
"""What to do about a URL that storage refuses, by its scheme."""


def storage_remedy(url: str, error: BaseException) -> str:
    """Return what to do about a URL that Arrow's file systems refuse."""
    if "Unrecognized filesystem" in str(error):
        return "write a path, or a URL of s3, gs, abfss or hdfs"
    return _REMEDIES.get(url.partition("://")[0], "check the address, and who may read and write there")


def storage_reason(error: BaseException) -> str:
    """Return why Arrow's file systems refuse a URL. Further lines of HDFS name all places where Java is not."""
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__


_SKIP = "repair or remove it, or drop such samples with --data.on_bad_sample skip"


def bad_sample(path: str, reason: str, how: str = _SKIP) -> UserError:
    return UserError(f"cannot read sample: {reason}", path, how)


def all_samples_bad(root: object, reason: str) -> UserError:
    how = "check that the files are images, and where a table's paths begin (data.folder)"
    return UserError(f"no sample can be read; the first error: {reason}", root, how)


def no_room(what: str, needs: int, has: int, where: object, how: str) -> UserError:
    unit, name = (2**20, "MiB") if needs >= 2**20 else (2**10, "KiB")  # a small model's checkpoint has no whole MiB
    return UserError(f"{what} needs {needs / unit:,.0f} {name} and there are {has / unit:,.0f} {name}", where, how)


def elastic_trial(value: str) -> UserError:
    return UserError(
        f"the number of workers of a trial is fixed, and here it is {value}", "in scaling.workers", "give one number"
    )


def not_writable(path: Path | str, reason: str) -> UserError:
    return UserError(f"the output cannot be written: {reason}", path, "give a writable folder with --out DIR")


def name_taken(run: Path | str) -> UserError:
    return UserError("a run of that name exists", run, f"use another --name, or go on with {command('resume', run)}")


def not_a_sweep(path: Path | str) -> UserError:
    return UserError("no sweep there (it has no sweep.json)", path, "give a folder that `raytrain sweep` made")


def data_changed(run: Path | str) -> UserError:
    return UserError(
        "the training data is not what the run began with",
        run,
        "restore the data, or train a new run on what is there now",
    )


def broken_sweep(file: Path | str, reason: str) -> UserError:
    return UserError(
        f"the sweep's file cannot be read: {reason}",
        file,
        "restore it from a copy; its trials' directories are runs, which `raytrain evaluate` reads",
    )


def cannot_write(path: Path | str, reason: str) -> UserError:
    return UserError(f"the file cannot be written: {reason}", path, "give a file in an existing, writable folder")


def extra_missing(what: str, package: str, extra: str) -> UserError:
    return UserError(f"{what} needs {package}, which is not installed", "", f"pip install 'raytrain[{extra}]'")


def secret_in_url(flag: str, secret: str = "a password") -> UserError:
    return UserError(
        f"the URL holds {secret}, which all who see the run or the job could read",
        f"in {flag}",
        "leave it out: credentials are the nodes' environment or role",
    )


def no_cluster(address: str, reason: str) -> UserError:
    """Return the error for an address at which no cluster answers."""
    leave = "unset RAY_ADDRESS" if os.environ.get("RAY_ADDRESS") == address else "leave --address out"
    how = f"start one with `ray start --head`, or {leave} to use this machine alone"
    return UserError(f"no Ray cluster answers: {reason}", address, how)


def other_python(address: str, there: str, here: str) -> UserError:
    """Return the error for a cluster whose Python is not the one here: Ray compares them to the patch release."""
    how = f"make an environment with Python {there} here"
    if there.split(".")[:2] == here.split(".")[:2]:
        how += ", or set RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor"
    return UserError(f"the cluster has Python {there} and this machine {here}", address, how)


def other_ray(url: str, there: str, here: str) -> UserError:
    return UserError(
        f"the cluster has Ray {there} and this machine {here}", url, "install the same lock file on both (`make setup`)"
    )


def token_missing(url: str, why: str) -> UserError:
    return UserError(
        f"the cluster requires a token, and {why}",
        url,
        "copy the head's ~/.ray/auth_token to the same place here (chmod 600), or name it in RAY_AUTH_TOKEN_PATH",
    )


def token_refused(url: str, where: str) -> UserError:
    return UserError(f"the cluster refuses the token of {where}", url, "use the token in its head's ~/.ray/auth_token")


def token_not_asked(url: str, where: str) -> UserError:
    how = "set RAY_AUTH_MODE=disabled here, or start the cluster with RAY_AUTH_MODE=token"
    return UserError(f"the cluster requires no token, and there is one here ({where})", url, how)


def diverged(what: str, committed: list[str], at_once: bool = False, clipped: bool = False) -> FloatingPointError:
    """Return the error that ends a run whose loss or weights are not finite.

    Args:
        committed: the names of the run's checkpoints, oldest first.
        at_once: whether the newest one's own weights give the loss, so that smaller steps from there come too late.
        clipped: whether the run clips gradients already.
    """
    clip = "a lower --clip_norm" if clipped else "--clip_norm 1"
    last = f"the last checkpoint is {committed[-1]}" if committed else "there is no checkpoint yet"
    if committed and at_once:
        return FloatingPointError(
            f"{what}, with the weights of the last checkpoint, {committed[-1]}: train a new run with a lower learning "
            f"rate or {clip}, or, if samples are to blame, go on with --on_nonfinite skip"
        )
    return FloatingPointError(
        f"{what}: train a new run with a lower learning rate, or go on with {clip}, or with "
        f"--on_nonfinite skip to leave such steps out; {last}"
    )
