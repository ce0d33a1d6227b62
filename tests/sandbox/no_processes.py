"""Judge a right program with fewer and fewer processes allowed: a line for each limit."""

import resource
import warnings

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox
from bestofk.types import Prompt

warnings.simplefilter("ignore")
prompt = Prompt("p", "", "code", {"asserts": ["assert f(1) == 2"]})
with Sandbox(at_most=1, workers=1) as sandbox:
    verifier = CodeVerifier(sandbox=sandbox)
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    for most in (2, 4, 8):
        sandbox.close()
        resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))
        [verdict] = verifier([prompt], ["def f(x): return x + 1"])
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
        print(most, verdict.status)
