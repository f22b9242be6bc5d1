"""The cause of an error in a run's code or processes: another rank, or the user's file to correct."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from raytrain import errors
from raytrain.driver import gpu_errors
from raytrain.driver.endings import RunFailed
from raytrain.user_code import places


def misses_another(error: BaseException) -> bool:
    """Return whether an error only means that another rank or a connection is lost."""
    if gpu_errors.code(error) is not None or gpu_errors.misuses(error):  # NCCL reports it as its own error
        return False
    lost = (ConnectionError, dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError)
    text = str(error)
    return isinstance(error, lost) or (
        isinstance(error, RuntimeError) and ("gloo/transport" in text or "Connection closed by peer" in text)
    )


def of_gpu(error: BaseException) -> BaseException:
    """Return the GPU's own error where one of CUDA's libraries reports that something failed, else the same error. A
    failed GPU refuses every call, and asking a stream for its state does not wait."""
    if gpu_errors.hides(error) and torch.cuda.is_initialized():
        try:
            torch.cuda.current_stream().query()
        except RuntimeError as found:
            return found.with_traceback(error.__traceback__)
    return error


def last_place(error: BaseException) -> str:
    """Return `file:line` of the innermost frame that is no installed package's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def to_edit(error: BaseException, at: str) -> str:
    """Return the user's file to correct after an error; empty if the user's code may not be at fault, as for errors of
    memory, a disk or a GPU."""
    refused = isinstance(error, MemoryError) or gpu_errors.code(error) is not None or misses_another(error)
    if refused or (isinstance(error, OSError) and not isinstance(error, FileNotFoundError)):
        return ""
    return places.to_edit(error.where if isinstance(error, errors.UserError) else at)


def failed_here(error: BaseException, path: Path) -> RunFailed:
    """Return the failure for an exception in the driver, with the user's line where it came from the user's code."""
    at = places.line_of(error)
    edit = to_edit(error, at)
    return RunFailed(last_line(error) + (f" ({at})" if edit else ""), path, None, edit=edit)


def last_line(error: BaseException) -> str:
    """Return an error's kind and the last line of its text; of a UserError the text alone, which is a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return last if isinstance(error, errors.UserError) else f"{type(error).__name__}: {last}"
