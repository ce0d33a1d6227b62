"""The short form of `make chaos`: one run broken in every way ends like the untouched one."""

import json

import pytest


@pytest.mark.slow
def test_a_run_under_random_faults_ends_like_the_untouched_one(command, tmp_path):
    done = command("tools/chaos.py", "--rounds", "1", "--seed", "4", "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["rounds"] == 1
    assert told["steps"] == 12
    assert told["lives"] > 1
    assert told["sandbox processes killed"] > 0
    assert told["clock jumps"] > 0
    assert told["rewards checked"] > 500
