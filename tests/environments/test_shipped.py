"""The environments that are shipped: Python in the sandbox, and the repair of programs."""

from __future__ import annotations

import json
import re

import pytest

from bestofk.environments.author_class import load_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.python import Python
from bestofk.environments.repair import Repair
from bestofk.environments.rollout import TurnSampler
from bestofk.rewards import judge, verifier
from bestofk.sampling import Sampling
from bestofk.types import Prompt
from environments.chat_models import Script
from environments.test_turns import call

RIGHT = "```python\ndef double(x):\n    return 2 * x\n```"
WRONG = "```python\ndef double(x):\n    return x * x\n```"
TESTS = {"asserts": ["assert double(5) == 10"], "shown": ["assert double(3) == 6"]}


def python():
    made = Python()
    made.reset(answer="7")
    return made.python


def test_variables_are_kept_within_a_trajectory_and_nothing_across():
    run, other = python(), python()
    assert run("x = 6\nprint('a')\nx * 7") == "a\n42"
    assert run("import math\ndef f(): return x") == "(no output)"
    assert run("f() + math.floor(0.5)") == "6"
    assert "NameError: name 'x' is not defined" in other("x")
    assert "ZeroDivisionError" in run("y = 1\n1 / 0")
    assert run("y") == "1"
    assert "SyntaxError" in run("def")
    assert "SystemExit" in run("exit(3)")


def test_a_secret_of_one_trajectory_is_nowhere_for_its_sibling_to_find():
    """Left in files, in the interpreter and in the environment; looked for in all of them."""
    run, other = python(), python()
    places = "['note', '/tmp/note', '/dev/shm/note', '/var/tmp/note']"
    left = run(
        "import builtins, os, sys\n"
        "builtins.note = sys.note = os.environ['NOTE'] = 'swordfish'\n"
        f"for place in {places}:\n"
        "    try: open(place, 'w').write('swordfish')\n"
        "    except OSError: pass\n"
        "print(note)"
    )
    assert left == "swordfish"
    found = other(
        "import builtins, gc, os, sys\n"
        "seen = [getattr(builtins, 'note', ''), getattr(sys, 'note', ''), dict(os.environ)]\n"
        f"for place in {places}:\n"
        "    try: seen.append(open(place).read())\n"
        "    except OSError: pass\n"
        "seen.append([each for each in gc.get_objects() if each == 'sword' + 'fish'])\n"
        "'sword' + 'fish' in str(seen)"
    )
    assert found == "False"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("while True: pass", "timeout"),
        ("x = [0] * 10**10", "MemoryError|memory|crashed"),
        ("import os; os._exit(0)", "crashed"),
        ("open('/etc/passwd').read()", "Error"),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "Error"),
        ("print('x' * 10**7)", r"\[\.\.\.\]|crashed"),
    ],
)
def test_what_a_model_writes_is_bounded_and_the_state_before_it_stays(code, said):
    run = python()
    run("kept = 5")
    try:
        shown = run(code)
    except RuntimeError as error:
        shown = str(error)
    assert len(shown) < 3000
    assert re.search(said, shown), shown
    assert run("kept") == "5"


def drawn(name, write, prompt, most=3000):
    source = TurnSampler(Script(write), load_environment(name), TurnLimits(), model="MODEL")
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=most)
    return source.sample([prompt], seed=1, sampling=sampling)


def test_a_problem_is_solved_with_the_tool_and_judged_by_the_tasks_verifier():
    def write(text):
        if "<tool_response>" in text:
            return "It is \\boxed{" + text.rpartition("<tool_response>")[2][:2] + "}.<|im_end|>"
        return call("python", code="6 * 7")

    prompt = Prompt("p", ({"role": "user", "content": "6 times 7?"},), "t", {"expected": "42"})
    groups = drawn("python", write, prompt)
    assert [verdict.reward for verdict in judge(groups, verifier("maths"))[0]] == [1.0, 1.0]
    assert groups[0].trajectories[0].conversation.tool_calls == 1


def test_a_program_is_repaired_by_what_its_shown_tests_say():
    asked = Prompt("p", ({"role": "user", "content": "Write double(x)."},), "t", TESTS)

    def write(text):
        return (RIGHT if "1 of 1 shown tests fail" in text else WRONG) + "<|im_end|>"

    with verifier("code") as code:
        groups = drawn("repair", write, asked)
        assert [verdict.reward for verdict in judge(groups, code)[0]] == [1.0, 1.0]
        talk = groups[0].trajectories[0].conversation
        assert (talk.turns, talk.ended_by) == (2, "environment")
        assert "assert double(3) == 6" in talk.messages[1]["content"]
        assert "double(5)" not in json.dumps(talk.messages)
        never = drawn("repair", lambda text: WRONG + "<|im_end|>", asked)
        assert never[0].trajectories[0].conversation.turns == 3
        assert [verdict.reward for verdict in judge(never, code)[0]] == [0.0, 0.0]


def test_repair_needs_shown_tests():
    prompt = Prompt("p", "x", "t", {"asserts": ["assert f(1) == 1"]})
    with pytest.raises(ValueError, match="reset of Repair takes shown, and the row of 'p' has"):
        drawn("repair", lambda text: RIGHT, prompt)
    repair = Repair()
    repair.reset(**TESTS)
    said = str(repair("I cannot."))
    assert said.startswith("1 of 1 shown tests fail:\nassert double(3) == 6\n-> ")
