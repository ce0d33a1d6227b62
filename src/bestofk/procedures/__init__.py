"""What is done with k samples at deployment: one file for each procedure.

A procedure has an unbiased value from n samples, exact weights of its gradient on and off policy,
and a curve over k, under one name. A new one is a file here and its line in `PROCEDURES`.
"""

from .majority import MAJ, VOTES
from .maximum import MAX
from .procedure import Procedure
from .retries import RETRY, RETRY_TOKENS
from .selection import SELECT, SOFT
from .subsets import SUBSETS

PROCEDURES = {
    each.metric: each for each in (MAX, SELECT, SOFT, RETRY, RETRY_TOKENS, MAJ, *VOTES, SUBSETS)
}
"""By metric: "max@k", "maj@k:ties-wrong"."""

__all__ = ["MAJ", "MAX", "PROCEDURES", "RETRY", "RETRY_TOKENS", "SELECT", "SOFT", "SUBSETS",
           "VOTES", "Procedure"]  # fmt: skip
