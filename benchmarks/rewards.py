"""What judging costs: programs in the sandbox, then verifiers that read text.

python benchmarks/rewards.py [--programs 400] [--rounds 4]
"""

from __future__ import annotations

import sys

import _rewards_sandbox
import _rewards_text

if __name__ == "__main__":
    _rewards_sandbox.main()
    sys.exit(_rewards_text.main())
