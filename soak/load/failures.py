"""What an exception means: whose kind of incident it is, in one sentence. By name, so that no GPU stack is
loaded."""

from __future__ import annotations

from soak.load.engine import LoadError

_COMPILER = {"CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError"}
_RUNTIME = ("CUDA error", "HIP error", "hipError", "CUDA driver error")


def what_ended(error: BaseException) -> tuple[str, str]:
    """The kind of incident (`core.incidents.KINDS`), and one sentence."""
    if isinstance(error, LoadError):
        return error.kind, str(error)
    text = " ".join(str(error).split())[:400]
    sentence = f"{type(error).__name__}: {text or 'no message'}"
    names = {base.__name__ for base in type(error).__mro__}
    if "OutOfMemoryError" in names:
        return "out_of_device_memory", sentence
    if names & _COMPILER:
        return "compile_error", sentence
    if "AcceleratorError" in names or any(word in text for word in _RUNTIME):
        return "device_error", sentence
    return "worker_error", sentence
