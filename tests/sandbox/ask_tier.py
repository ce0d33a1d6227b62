"""Start a sandbox of at least the tier given; the error, if any, on stderr."""

from __future__ import annotations

import sys

from bestofk.sandbox import Sandbox, SandboxError

if __name__ == "__main__":
    try:
        with Sandbox(tier=int(sys.argv[1]), workers=1) as sandbox:
            print(sandbox.tier)
    except SandboxError as error:
        sys.exit(str(error))
