"""Counts verdicts that could not be scored, and stops a run when there are too many."""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Iterable

from bestofk.types import Verdict

_SAMPLE = re.compile(r" on sample \S+(?=:| at )")


class TooManyUnscored(RuntimeError):
    """The verifier fails too often for a run to go on."""


class UnscoredGuard:
    """Counts verdicts and stops a run when too many could not be scored.

    Raises `TooManyUnscored` as soon as more than `share * window` of the last `window` verdicts are
    unscored: a verifier that breaks late in a long run stops it as fast as one broken at the start.

    >>> guard = UnscoredGuard(share=0.01, window=100)
    >>> guard.check([Verdict.unscored("worker died")])
    >>> guard.unscored, guard.total
    (1, 1)
    """

    def __init__(self, share: float = 0.01, window: int = 1000) -> None:
        if not 0.0 <= share <= 1.0 or window < 1:
            raise ValueError(f"share lies in [0, 1] and window >= 1, got {share} and {window}")
        self.share, self.window = share, window
        self.total = self.unscored = 0
        self.reasons: Counter[str] = Counter()
        """How often each kind of failure occurred: its reason without the sample."""
        self._recent: deque[bool] = deque(maxlen=window)
        self._lock = threading.Lock()

    def check(self, verdicts: Iterable[Verdict]) -> None:
        """Count a batch; raise when the share is exceeded."""
        batch = list(verdicts)
        lost = [verdict for verdict in batch if verdict.status == "unscored"]
        with self._lock:
            self.total += len(batch)
            self.unscored += len(lost)
            self.reasons.update(_SAMPLE.sub("", verdict.detail) for verdict in lost)
            worst = 0
            for verdict in batch:
                self._recent.append(verdict.status == "unscored")
                if lost:
                    worst = max(worst, sum(self._recent))
            if worst > self.share * self.window:
                common = "; ".join(f"{n} times: {why}" for why, n in self.reasons.most_common(3))
                raise TooManyUnscored(
                    f"{worst} of the last {min(self.total, self.window)} verdicts could not be "
                    f"scored, more than {self.share:.1%} of {self.window}; {common}; the last "
                    f"reason: {lost[-1].detail}; repair the verifier, leave out a problem that it "
                    "cannot judge, or raise the share knowingly (in a run by "
                    "run.options.unscored_share)"
                )
