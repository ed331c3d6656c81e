"""The short rounds: whether a kernel on this card is right, in minutes.

session.py   the parent's side: a child per subject, a deadline per case, restarts after a crash
worker.py    the child: `python -m soak.verify.worker`; it alone imports torch, Triton and the kernels
subject.py   what is verified: a kernel on a device
rounds/      six files, each the cases of one round
plant.py     faults to put into a kernel on purpose, each for the round that must find it
show.py      results as text lines, JSON, JUnit
"""
