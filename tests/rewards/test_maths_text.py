"""Answers as text: extraction, plain form, exact numbers, parts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bestofk.rewards.maths.equality import parts, same
from bestofk.rewards.maths.extract_answer import MAX_ANSWER, extract, last_box
from bestofk.rewards.maths.plain_form import is_balanced, is_readable, plain
from bestofk.rewards.maths.quantities import number, quantity


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{1}, then \boxed{7}", "7"),
        (r"\boxed{7} but \boxed{8", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{\boxed{7} \text{ or } 8}", r"\boxed{7} \text{ or } 8"),
        (r"\boxed {7}", "7"),
        (r"so \fbox{7}", "7"),
        ("<answer><answer>7</answer> x</answer>", "<answer>7</answer> x"),
        ("between <answer> and </answer>: <answer>7</answer></answer>", "7"),
        (r"<think>\boxed{8}</think>\boxed{7}", "7"),
        (r"<think>\boxed{8}</think> nothing", None),
        (r"<think>\boxed{8}", None),
        ("so 3 + 4 = 7\n#### 7", "7"),
        ("#### 7\nbut check: 8", "7"),
        ("Answer: 7", "7"),
        ("**Answer:** 7", "7"),
        ("The final answer is 7.", "7"),
        (r"Answer: 6 \boxed{7}", "7"),
        (r"\boxed{6} Answer: 7", "7"),
        ("<answer>7</answer>", "7"),
        (r"<answer>\boxed{7}</answer>", "7"),
        ("7", None),
        ("", None),
        (r"\boxed{}", None),
        ("Answer:", None),
        ("Answer：7", "7"),
        ("Answer:\n\\[\n7\n\\]", "7"),
        ("The final answer is:\n$$ \n 7\n$$", "7"),
        ("Answer: \\[ 7 \\]", r"\[ 7 \]"),
        ("Answer:\n\n**7**", "7"),
        ("\\boxed{7}\nAnswer:", "7"),
        ("\\boxed{7}\nThis answer is reasonable.", "7"),
        ("<answer>7</answer> Hope this answer is helpful.", "7"),
        ("The answer is 7. This answer is plausible.", "7. This answer is plausible"),
        ("Answer:\\boxed{7} is the result", "7"),
        (r"\boxed{\text{The answer is }7}", r"\text{The answer is }7"),
        (
            "Final Answer: The final answer is $7$. I hope it is correct.",
            "The final answer is $7$",
        ),
        ("Answer: 2**3", "2**3"),
        ("Answer: 0.33...", "0.33..."),
        ("Answer: **7** eggs", "7 eggs"),
        ("Answer: `7`.", "7"),
        ("\x00\\boxed{7}\ud800", "7"),
    ],
)
def test_the_answer_is_the_last_one_stated(text: str, answer: str | None) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 1_000_000,
        "\\boxed{1}" * 1_000_000,
        "\\boxed{" + "{" * 5_000_000 + "}" * 5_000_000 + "}",
        "#### " + "9" * 10_000_000,
        "Answer:" * 1_000_000,
        "<answer>" * 1_000_000,
        "\\" * 10_000_000,
        "</think>" * 1_000_000,
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_ten_megabytes_are_read_and_cut(text: str) -> None:
    answer = extract(text)
    assert answer is None or len(answer) <= MAX_ANSWER + 1


@given(st.text(alphabet="{}\\a7", max_size=40), st.text(alphabet="{}\\a7", max_size=10))
def test_a_box_is_balanced_and_comes_from_the_text(inside: str, after: str) -> None:
    found = last_box("\\boxed{" + inside + "}" + after)
    if found is not None:
        place, content = found
        assert ("\\boxed{" + inside + "}" + after)[place:].startswith("\\boxed{" + content + "}")
        bare = content.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert bare.count("{") == bare.count("}")
    elif not set(inside) & set("{}\\"):
        raise AssertionError("a plain box was missed")


@given(st.fractions(), st.sampled_from(["{}/{}", r"\frac{{{}}}{{{}}}", r"\dfrac{{{}}}{{{}}}"]))
def test_written_fractions_are_read_back(value: Fraction, form: str) -> None:
    text = form.format(abs(value.numerator), value.denominator)
    assert number(plain("-" + text if value < 0 else text)) == value


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_written_decimals_are_read_back(digits: int, places: int) -> None:
    value = Fraction(digits, 10**places)
    text = f"{'-' if digits < 0 else ''}{abs(digits) // 10**places:,}"
    if places:
        text += f".{abs(digits) % 10**places:0{places}d}"
    forms = [text, f"${text}$", f"\\${text}", f"{text} dollars", f"x = {text}"]
    for form in forms + [f"{text}\\%"] * (abs(value) >= 1):
        assert same(plain(text), plain(form)) is True
        if "=" not in form:
            assert number(quantity(plain(form)).core) == value


@given(st.fractions(), st.fractions())
def test_two_numbers_are_the_same_exactly_when_equal(a: Fraction, b: Fraction) -> None:
    assert same(str(a), str(b)) is (a == b)


@given(st.text(alphabet="0123456789.,/%$-+ eE_x\\frac{}()٣²½", max_size=20))
@example("١٢")
@example("1_000")
@example("1e5")
@example("0x10")
@example("½")
def test_a_number_is_written_in_plain_digits_or_is_none(text: str) -> None:
    value = number(plain(text))
    if value is not None:
        assert any(sign in "0123456789" for sign in text)
        assert not set(text) & set("٣²½_x")
        assert "e" not in text.lower() or "\\times 10^" in plain(text)


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("18", "18 or 19", False),
        ("18", "18 thousand", False),
        ("18", "18 dozen eggs", None),
        ("18", "18x", None),
        ("18", "1 8", None),
        ("18", "eighteen", True),
        ("18", "eighty", False),
        ("1,800", "1,8,00", False),
        ("2,3", "3 and 2", True),
        ("2,2", "2", False),
        ("2,3", "2,2", False),
        ("(2,3)", "(3,2)", False),
        ("(2,3)", "2,3", False),
        ("[2,3)", "[2,3]", False),
        (r"\{2,3\}", "3, 2", True),
        (r"\pm 3", "-3, 3", True),
        (r"\pm 3", "3", False),
        ("3", r"\pm 3", False),
        ("x=2 or x=3", "3,2", True),
        ("(1, 2), (3, 4)", "(3,4) and (1,2)", True),
        ("(1, 2), (3, 4)", "(2,1) and (3,4)", False),
        (r"\text{Monday}", "monday", True),
        (r"\text{Monday}", "Monday or Tuesday", False),
        ("52_8", "52", True),
        ("52_8", "52_9", False),
        ("52_8", "42_{10}", False),
    ],
)
def test_what_text_and_numbers_decide(gold: str, answer: str, equal: bool | None) -> None:
    assert same(plain(gold), plain(answer)) is equal


MATHS = st.lists(
    st.sampled_from(
        ["(", ")", "{", "}", ",", " or ", "=", "x", "1", "\\frac", "\\pm", "-", ".", "é"]
    ),
    max_size=25,
).map("".join)


@given(MATHS | st.text(max_size=60), MATHS)
def test_comparison_never_raises_and_a_text_equals_itself(a: str, b: str) -> None:
    assert same(plain(a), plain(b)) in (True, False, None)
    assert same(plain(a), plain(a)) is True


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=5), st.randoms())
def test_lists_are_unordered_and_tuples_are_not(values: list[int], random: Any) -> None:
    other = list(values)
    random.shuffle(other)
    a, b = ", ".join(map(str, values)), ", ".join(map(str, other))
    assert same(a, b) is True
    assert same(f"({a})", f"({b})") is (values == other)
    assert parts(f"({a})") == ("()", list(map(str, values)))


def test_what_cannot_be_read_is_known_before_any_algebra() -> None:
    assert is_readable(r"\frac{(1+x)}{2}")
    assert is_balanced("[1, 2)")
    for text in ("((1)", "(" * 21 + "1" + ")" * 21, "{1", "1}"):
        assert not is_balanced(text)
    for text in ("1 2", "1.2.3", "x^2 3 4", "5'", r"5 \approx 6", "x > 3_2"):
        assert not is_readable(text)
    assert is_readable("2 1/2")
