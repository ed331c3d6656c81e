"""The eight criteria, in the order in which they are shown."""

from soak.core.criteria.base import Card, Conclusion, Criterion, Evidence, Standing, finding
from soak.core.criteria.continuity import Continuity
from soak.core.criteria.coverage import Coverage
from soak.core.criteria.ecc import Ecc
from soak.core.criteria.faults import Faults
from soak.core.criteria.gradient import Gradient, broken_limits
from soak.core.criteria.integrity import Integrity
from soak.core.criteria.temperature import Temperature
from soak.core.criteria.utilisation import Utilisation

ALL = (Utilisation, Temperature, Ecc, Gradient, Integrity, Faults, Coverage, Continuity)
NAMES = tuple(criterion.name for criterion in ALL)

__all__ = [
    "ALL",
    "NAMES",
    "Card",
    "Conclusion",
    "Criterion",
    "Evidence",
    "Standing",
    "broken_limits",
    "finding",
]
