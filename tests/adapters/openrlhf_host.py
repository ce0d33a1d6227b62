"""Makes OpenRLHF importable where flash-attn cannot be, and lets it say what it likes meanwhile."""

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

FOLDERS = [] if find_spec("flash_attn") else [str(Path(__file__).parent / "without_cuda")]
sys.path += FOLDERS
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import_module("openrlhf.trainer.ppo_trainer_async")
