"""`python -m bestofk.adapters.verl [overrides of verl's main_ppo]`: is the plug-in in place?"""

import sys

from .self_check import main

sys.exit(main(sys.argv[1:]))
