"""soak: a long-running GPU stability daemon whose verdict needs evidence."""

__version__ = "0.1.0"
