"""The HTTP surface: read-only, on a thread of its own; neither waits for the run nor the run for it."""

from soak.web.surface import Surface

__all__ = ["Surface"]
