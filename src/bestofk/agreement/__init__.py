"""That every way to compute the policy gives the same: `tolerances.py` is the table of checks."""
