"""Pure rules of a run: no clock, no I/O, no torch, no SQLAlchemy."""
