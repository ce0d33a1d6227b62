"""`python -m bestofk` is the command `bestofk`."""

import sys

from bestofk.cli import main

sys.exit(main())
