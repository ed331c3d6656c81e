"""gfx906 (AMD Instinct MI50) without the card: what its compiled code does, and what it can cost.

    emulator.py    runs workgroups of a compiled kernel: results, accesses outside tensors, missing barriers
    launch.py      a stand-in for the card: launchers run on it as they are
    model.py       what a main loop can reach at most; timing.py: the same with waits and barriers
    inspect.py     one row per configuration: python -m soak_kernels.gfx906.inspect --json

Below them: parse (text -> instructions), machine (what waves hold), operands, scalar, vector, memory and lds
(what instructions do), conflicts (LDS banks), findings, mca (llvm-mca), configurations (what is inspected),
build (Triton -> text).

Nothing here ever ran on an MI50, and nothing here needs one.
"""
