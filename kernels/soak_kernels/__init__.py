"""Deterministic attention kernels in Triton, with their reference, tuning, flop counts and digests.

    from soak_kernels.environment import pin_compiler; pin_compiler(os.environ)   # before triton is imported
    from soak_kernels.attention import attention

Importing this package imports nothing else: no torch, no triton, no device is touched.
"""
