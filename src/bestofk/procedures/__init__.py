"""What is done with k samples at deployment: one file for each procedure.

A procedure has an unbiased value from n samples, exact weights of its gradient on and off policy,
and a curve over k, under one name. A new one is a file here and its line in `PROCEDURES`.
"""

from .maximum import MAX
from .procedure import Procedure
from .selection import SELECT

PROCEDURES = {each.name: each for each in (MAX, SELECT)}

__all__ = ["MAX", "PROCEDURES", "SELECT", "Procedure"]
