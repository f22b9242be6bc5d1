"""The meaning of a CUDA error for a run: the GPU is lost, or the program would fail again.

CUDA's errors are told by their codes (the runtime API's `cudaError_t`), which `torch.AcceleratorError` has as
`error_code`. Errors that libraries raise for it, such as NCCL's, name the code or its constant in their text.
"""

from __future__ import annotations

import re

LOST = {
    46: "cudaErrorDevicesUnavailable",  # also while the process before is still leaving a GPU in exclusive mode
    127: "cudaErrorStartupFailure",
    214: "cudaErrorECCUncorrectable",
    220: "cudaErrorNvlinkUncorrectable",
    226: "cudaErrorContained",
    304: "cudaErrorOperatingSystem",
    700: "cudaErrorIllegalAddress",
    702: "cudaErrorLaunchTimeout",
    714: "cudaErrorHardwareStackError",
    715: "cudaErrorIllegalInstruction",
    716: "cudaErrorMisalignedAddress",
    717: "cudaErrorInvalidAddressSpace",
    718: "cudaErrorInvalidPc",
    719: "cudaErrorLaunchFailure",
    802: "cudaErrorSystemNotReady",
    805: "cudaErrorMpsConnectionFailed",
    806: "cudaErrorMpsRpcFailure",
    807: "cudaErrorMpsServerNotReady",
    810: "cudaErrorMpsClientTerminated",
    909: "cudaErrorTimeout",
    911: "cudaErrorExternalDevice",
    999: "cudaErrorUnknown",
}
"""Codes after which a new process goes on from the checkpoint: failures of the hardware, the driver and its servers,
and those of which CUDA's reference says that the process must be terminated and relaunched. Faults of kernels (700 to
719) are among them: a bug makes them, but so does a failing GPU, and NVIDIA's catalogue of Xid errors has "restart
the application" for them. One that comes again ends the run after `scaling.max_failures` starts without progress."""
ASSERT, MEMORY = 710, 2
"""Codes after which it does not: what a kernel was given, and how much memory was asked for, come again."""
_TOLD = {name: code for code, name in LOST.items()} | {
    **{"cudaErrorAssert": ASSERT, "device-side assert triggered": ASSERT},
    **{"cudaErrorMemoryAllocation": MEMORY, "out of memory": MEMORY},
}
_MENTION = re.compile(r"\b(cudaError[A-Z]\w+)|\bCuda failure (?:(\d+)|'(.*?)')")
"""How texts mention an error: by its constant, or as NCCL has it, by its number or its description."""
_REMEDIES = {
    ASSERT: "a kernel refused a value, most often a label or an index that is out of range, such as a label that is "
    "not below the number of classes: train with --scaling.gpus_per_worker 0 to see which",
    MEMORY: "use a smaller --micro_batch_size",
}


def code(error: BaseException) -> int | None:
    """Return the CUDA error code of an exception; None for any other."""
    found = getattr(error, "error_code", None)
    if isinstance(found, int) and type(error).__name__ == "AcceleratorError":
        return found
    if type(error).__name__ == "OutOfMemoryError":
        return MEMORY
    if not isinstance(error, RuntimeError):  # which those of torch are
        return None
    mention = _MENTION.search(str(error))
    if mention is None:
        return None
    constant, number, description = mention.groups()
    return int(number) if number else _TOLD.get(constant or description)


def lost(error: BaseException) -> bool:
    """Return whether a new process may do what this one could not, since the GPU failed."""
    return code(error) in LOST


def explain(error: BaseException) -> str | None:
    """Return one line on an error of CUDA, with its remedy where there is one; None for any other."""
    found = code(error)
    if found is None:
        return None
    said = str(error).strip().split("\n")[0]
    if found == MEMORY:  # what was asked for and what is there; figures of the allocator follow
        said = " ".join(re.split(r"(?<=\.)\s+", said)[:3])
    return f"{said.rstrip('.')}; {_REMEDIES[found]}" if found in _REMEDIES else said
