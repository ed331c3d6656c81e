"""The run in Prometheus' words."""

from soak.exporter.exporter import Exporter
from soak.exporter.families import FAMILIES, Family

__all__ = ["FAMILIES", "Exporter", "Family"]
