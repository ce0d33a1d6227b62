"""What counts as the same answer: every kind of right spelling, and every near miss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import verifier
from bestofk.rewards.maths.equality import same
from bestofk.rewards.maths.extract_answer import MAX_ANSWER
from bestofk.rewards.maths.judge_maths import MathsVerifier, judge_text
from bestofk.rewards.maths.plain_form import is_readable, plain
from bestofk.rewards.maths.quantities import quantity
from bestofk.types import Prompt, Verdict

Table = dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def maths() -> Iterator[MathsVerifier]:
    judge = verifier("maths", workers=1, cpu_seconds=10.0)
    assert isinstance(judge, MathsVerifier)
    yield judge
    judge.close()


EQUAL: Table = {
    "powers of ten and large numbers in words": [
        ("300000000", "3.0e8"),
        (r"3\times10^8", "3.0E+8"),
        ("0.0025", "2.5e-3"),
        ("2^{10}", "1.024e3"),
        ("2500000", "2.5 million"),
        (r"2.5\text{ million}", "2,500,000"),
        (r"\$2{,}500{,}000", r"\$2.5\text{ million dollars}"),
        ("1234.5", "0.0012345 million"),
    ],
    "as typed in Chinese": [
        ("(1,2)", "（1，2）"),
        ("-5.5", "－５．５。"),
        ("50%", "50％"),
        ("1,2", "1、2"),
        ("18", "＄18"),
    ],
    "digits in another base": [
        ("10101_2", "(10101)_2"),
        ("(BEE)_{16}", "bee_{16}"),
    ],
    "spaces between thousands": [
        ("1234567", "1 234 567"),
        ("1234567", r"1\;234\;567"),
        ("1234567.5", "1 234 567.5"),
        ("1234567", "1 234 567 dollars"),
    ],
    "bounds on the left": [
        (r"[1,\infty)", r"1\le x"),
        (r"(-\infty,1)", "1 > x"),
        (r"1\le x", r"[1,\infty)"),
        (r"[0,1)\cup(2,\infty)", r"0\le x<1 or 2<x"),
    ],
    "sets in sets": [
        (r"\{1,\{2\}\}", r"\{\{2\},1\}"),
        (r"x\in\{1,2\}", "2, 1"),
        (r"\{\emptyset\}", r"\{ \emptyset \}"),
    ],
    "rates": [
        ("10 m/s", r"10\,\mathrm{m/s}"),
        (r"10\,\mathrm{m/s}", "10 m/s"),
        ("10 m/s", r"10\text{ meters per second}"),
        ("3 km/h", r"3\text{ km}/\text{h}"),
        ("10 m/s", "10 m s^{-1}"),
        (r"10\,\mathrm{m\,s^{-1}}", "10 m/s"),
        ("10", r"10\ \text{m s}^{-1}"),
        ("9.8 m/s^2", "9.8 m s^{-2}"),
    ],
    "as typed without LaTeX": [
        (r"\{1,2,3\}", "{1,2,3}"),
        ("{1,2,3}", r"\{3,2,1\}"),
        ("{1,2}", "2, 1"),
        ("x^2+3x", "x**2+3*x"),
        ("2^{n+1}", "2 ** (n + 1)"),
        (r"\frac{1}{x^2}", "x**-2"),
        ("8", "2**3"),
        (r"\infty", "Infinity"),
        (r"\infty", r"\text{infinity}"),
        (r"[0,\infty)", "[0, infinity)"),
        (r"(-\infty,0)\cup(0,\infty)", r"(-infinity,0)\cup(0,infinity)"),
    ],
    "in words": [
        (r"\emptyset", "no solution"),
        (r"\text{No solution}", r"\varnothing"),
        ("no solutions", r"\text{no solution}"),
        (r"\text{no real solutions}", "no real solution"),
        (r"\mathbb{R}", r"\text{All real numbers}"),
        ("all real numbers", r"(-\infty, \infty)"),
        (r"x \in \mathbb{R}", "all real numbers"),
        ("12", "twelve"),
        (r"\text{twelve}", "12"),
        ("42", "Forty-two"),
        ("4", "4th"),
        (r"21^{\text{st}}", "21"),
        ("3", "3^{rd}"),
    ],
    "an interval and its inequality": [
        ("(1,2)", "1<x<2"),
        (r"1 < x \le 2", "(1,2]"),
        (r"[1,\infty)", r"x \ge 1"),
        (r"x \leq \frac{3}{2}", r"(-\infty,1.5]"),
        ("[2,5)", r"5 > t \ge 2"),
        (r"x\in(1,2)", "1<x<2"),
        (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>1"),
    ],
    "values by name, in any order": [
        ("(x,y)=(1,2)", "x=1, y=2"),
        ("x=1, y=2", "y=2, x=1"),
        ("(x,y)=(1,2)", "(y,x)=(2,1)"),
        ("x=1, y=2", "(1,2)"),
        ("(1,2)", "(x,y)=(1,2)"),
        ("(5,2)", "(n,k)=(5,2)"),
        ("(1,2)", "y=2, x=1"),
        ("(1,2)", "(y,x)=(2,1)"),
        ("3, 2", "x_1=2, x_2=3"),
    ],
    "currencies, angles, dates and words in another spelling": [
        ("$18", r"\$18.00"),
        ("$18$", "€18"),
        (r"\$18", "18 dollars"),
        ("£18", "18 pounds"),
        ("18", "€18"),
        ("90^\\circ", "90"),
        ("90°", r"90\text{ degrees}"),
        (r"\frac{\pi}{2}", r"\frac{\pi}{2} \text{ radians}"),
        (r"\frac{180}{\pi}", r"\frac{180}{\pi}^\circ"),
        ("2023-01-02", "2023-1-2"),
        ("CAT", r"\text{cat}"),
        (r"\text{north-west}", r"\text{north} - \text{west}"),
        ("3:4", r"\frac{3}{4}"),
        ("xy", "yx"),
        ("abc", "cba"),
    ],
    "roots of variables, which school takes for positive": [
        (r"\sqrt{\frac{1}{n}}", r"\frac{1}{\sqrt{n}}"),
        (r"\sqrt{1/n}", r"1/\sqrt n"),
        (r"\sqrt{x/y}", r"\sqrt{x}/\sqrt{y}"),
        (r"n^{-1/2}", r"\frac{1}{\sqrt n}"),
        (r"\log(1/n)", r"-\log n"),
        (r"\sqrt{n+1}-\sqrt n", r"\frac{1}{\sqrt{n+1}+\sqrt{n}}"),
        (r"2\sqrt{\pi}", r"2\sqrt\pi"),
    ],
    "braces that only group": [
        ("3", "{3}"),
        ("3", "{{3}}"),
        ("{{3}}", "3"),
        (r"\frac{3}{4}", r"\frac{{3}}{{4}}"),
        (r"x^{2}", "{{x^{{2}}}}"),
        ("{1,2}", "{{2,1}}"),
    ],
    "sums and integrals, in time": [
        (r"\frac{\pi^2}{6}", r"\sum_{k=1}^{\infty} \frac{1}{k^2}"),
        (r"\sum_{n=1}^{2020} \frac{1}{n}", r"\sum_{k=1}^{2020} \frac{1}{k}"),
        (r"\frac{1}{3}", r"\int_0^1 x^2 dx"),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"),
        (r"2^n", r"\sum_{k=0}^{n} \binom{n}{k}"),
        (r"\binom{200}{100}", r"\sum_{k=0}^{100} \binom{100}{k}^2"),
        (r"\frac{1}{n+1}\binom{2n}{n}", r"\frac{(2n)!}{n!(n+1)!}"),
        (r"\binom{n}{k}", r"\frac{n!}{k!(n-k)!}"),
    ],
    "long polynomials, in time": [
        (
            "6x^{10}+5x^9+4x^8+3x^7+2x^6+x^5+9x^4+8x^3+7x^2+6x+5",
            "5+6x+7x^2+8x^3+9x^4+x^5+2x^6+3x^7+4x^8+5x^9+6x^{10}",
        ),
    ],
    "spacing": [
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (
            r"\begin{pmatrix} 1 & \sqrt{4} \\ 3 & 4 \end{pmatrix}",
            r"\begin{bmatrix}1&2\\ 3&4\end{bmatrix}",
        ),
        ("2x", r"2\,x"),
        (r"\sqrt{2}x", r"\sqrt{2}\,x"),
        ("10000", r"10\,000"),
        (r"11,\! 111,\! 100", "11111100"),
        ("18", r"\[18\]"),
        ("18", "*18*"),
        ("18", "`18`"),
        ("18", "\u200e18"),
    ],
    "fonts": [
        ("18", r"\textrm{18}"),
        ("18", r"\boldsymbol{18}"),
        ("18", r"\text{\textbf{18}}"),
        ("18", r"\text{The answer is }18"),
        (r"\text{Monday}", r"\textbf{Monday}"),
        (r"\text{(C)}", "C"),
        ("B", "(b)"),
        ("B", r"\text{B}"),
        (r"3\mathbf{i}+2\mathbf{j}", r"2\mathbf{j}+3\mathbf{i}"),
    ],
    "units": [
        ("5", r"5\,cm"),
        ("5", r"5\ cm"),
        ("5", "5cm"),
        ("138", r"138\text{ m}"),
        ("138", r"138\,\mathrm{m}"),
        ("138", r"138\text{ m/s}"),
        ("138", r"138\ \text{m}/\text{s}"),
        ("138", r"138\text{ sq. ft.}"),
        (r"\sqrt{2}", r"\sqrt{2}\text{ cm}"),
        (r"24\pi", r"24\pi \text{ square units}"),
        (r"24\pi", r"24\pi cm^2"),
        (r"5\text{ cm}", r"5\text{ centimeters}"),
        (r"5\text{ cm}^2", r"5\text{ square cm}"),
        (r"5\text{ feet}", "5 ft"),
        (r"36\text{ square units}", "36"),
        ("60", "60 km/h"),
        ("60", "60 miles per hour"),
        ("18", "18 months"),
        ("18", r"18 \text{ times}"),
        (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2 cm"),
        ("18", "18 eggs"),
        ("18", "18 cups of flour"),
        ("18", "18 more cups"),
        ("18", r"\$18 per day"),
        ("18", "€18"),
        ("18", "£18"),
        ("25", r"25^\circ C"),
        (r"\text{12:05 p.m.}", "12:05 pm"),
    ],
    "percent": [
        ("0.5", "50%"),
        ("0.005", "0.5%"),
        (r"\frac12", r"50\%"),
        (r"50\%", "50"),
        ("50", "50%"),
        (r"20\%", "20 percent"),
        ("0.07", "7 per cent"),
    ],
    "equations": [
        ("5", "x = 5"),
        ("5", "= 5"),
        ("5", "5 = x"),
        ("5", "x = 2 + 3 = 5"),
        ("42", r"\sum_{i=1}^{6}7"),
        (r"x \le 5", "x<=5"),
        (r"x \geq 2", r"2 \le x"),
        ("(2,3)", "(x,y)=(2,3)"),
        ("-2,1", "x = 1, -2"),
        ("-2,1", r"x = 1 \text{ or } x = -2"),
        (r"1+\sqrt{3}, 1-\sqrt{3}", r"1+\sqrt{3} \text{ or } 1-\sqrt{3}"),
        (r"\frac{1}{2}, \sqrt{12}", r"2\sqrt{3} \text{ and } 1/2"),
        ("12", r"\text{Total cost} = 12"),
        ("12", "The total cost = 12"),
        ("12", "AB = 12"),
        ("60", r"m\angle ABC = 60^\circ"),
        ("1/6", r"P(X=1) = \frac{1}{6}"),
        ("6", "a_{10} = 6"),
        ("6", "f^{-1}(3) = 6"),
        ("x^2", "f(x) = x^2"),
        ("x=5", "x = 2 + 3 = 5"),
        ("y=2x+1", "2x - y + 1 = 0"),
        (r"\frac{x^2}{4}+y^2=1", "x^2+4y^2=4"),
        ("1<x<2", "2 > x > 1"),
    ],
    "values": [
        (r"2\sqrt{3}", "√12"),
        ("5", "√25"),
        (r"\frac{\sqrt{2}}{2}", "sqrt(2)/2"),
        ("1/3", r"0.\overline{3}"),
        ("1/3", r"0.\dot{3}"),
        (r"\frac{1}{12}", r"0.08\overline{3}"),
        ("-2", r"\sqrt[3]{-8}"),
        ("1/2", r"\sin 30^\circ"),
        (r"\frac{5}{2}x", "2 1/2 x"),
        ("6", "(2)(3)"),
        (r"\sin x \cos y", r"\sin x \cdot \cos y"),
        (r"3\ln 2", r"\ln 2 \cdot 3"),
        (r"y\sin^2 2x", r"\sin^2 2x \times y"),
        (r"\frac{3}{2}", r"3\left(\frac{1}{2}\right)"),
        (r"\frac{7}{2}+x", r"x+3\frac{1}{2}"),
        ("2^{100}", "1267650600228229401496703205376"),
        ("0.3", "0.1+0.2"),
        (r"\log_2 8", r"\log_3 27"),
        (r"\sqrt{xy}", r"\sqrt{x}\sqrt{y}"),
        ("|x-y|", "|y-x|"),
        (r"\min(x,y)", r"\min(y,x)"),
        (r"\lceil x\rceil", r"-\lfloor -x\rfloor"),
        (r"\pi(R^2-r^2)", r"\pi(R-r)(R+r)"),
        ("f(x)+1", "1+f(x)"),
    ],
    "sets": [
        ("[1,2]", r"x \in [1,2]"),
        (r"\emptyset", r"\{\}"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
        (r"(-\infty,\infty)", r"(-\infty,+\infty)"),
        (r"(-\infty,-2)\cup(-2,\infty)", r"\mathbb{R}\setminus\{-2\}"),
        (r"(0,\sqrt{2})\cup\{3\}", r"\{3\}\cup(0,\frac{2}{\sqrt{2}})"),
        ("[1,3]", "[1,2]∪[2,3]"),
        (r"[1,2]\cup(2,3)", "[1,3)"),
        (r"x \in (1,\infty)", r"(1,\infty)"),
    ],
}
DIFFERENT: Table = {
    "as typed in Chinese": [("(1,2)", "（2，1）"), ("5", "－5"), ("12", "1、2")],
    "digits in another base": [("10101_2", "(10101)_3"), ("10101_2", "(21)_2")],
    "the empty set and the set of it": [
        (r"\emptyset", r"\{\emptyset\}"),
        (r"\{\emptyset\}", r"\{\}"),
    ],
    "spaces between thousands": [
        ("1234", "1 23"),
        ("1234567", "-1 234 567"),
        ("1234567", "12 34 567"),
        ("1,234", r"1\,234,5"),
        ("1234/5", "1 234/5"),
    ],
    "bounds on the left": [
        (r"(1,\infty)", r"1\le x"),
        (r"(-\infty,1]", "1 > x"),
        (r"(-\infty,1)", "1 < x"),
    ],
    "sets in sets": [
        (r"\{1,2\}", r"\{1,\{2\}\}"),
        (r"\{1,2\}", r"\{\{1,2\}\}"),
        ("1, 2", r"1, \{2\}"),
        ("(1, 2)", r"(1, \{2\})"),
        (r"\{\{7\}\}", "7"),
    ],
    "as typed without LaTeX": [
        ("(1,2,3)", "{1,2,3}"),
        ("{1,2,3}", "{1,2}"),
        ("123", "{1,23}"),
        ("2x", "x**2"),
        ("x^2", "x**3"),
        ("5^3", "5 **3**"),
        ("x^{2y}", "x**2y"),
        (r"\sqrt{x}", "x**1/2"),
        ("(x+1)^2", "x+1**2"),
        (r"\infty", "-infinity"),
        (r"(1,\infty)", "(-infinity, 1)"),
        (r"\infty", "approaches infinity"),
        (r"-\infty", "x - infinity"),
        ("5", "infinity"),
    ],
    "in words": [
        ("east", r"-\text{east}"),
        ("0", "no solution"),
        (r"\emptyset", "no"),
        (r"\emptyset", "no solution other than 3"),
        ("no real solutions", "no solutions"),
        (r"\mathbb{R}", "real numbers"),
        (r"\mathbb{R}", "all real numbers except 0"),
        (r"\mathbb{R}", "all positive real numbers"),
        (r"(0,\infty)", "all real numbers"),
        ("12", "twenty"),
        ("12", "one two"),
        ("12", "twelve or thirteen"),
        ("12", "twelve thousand"),
        ("12", "not twelve"),
        ("0.12", "twelve"),
        ("21", "one twenty"),
        ("1", "one third"),
        ("2", "two dozen"),
        ("12", "twelfth"),
        ("4", "14th"),
        (r"\frac14", "4th"),
        ("4", "1/4th"),
        ("4", "fourth"),
    ],
    "rates": [
        ("10 m/s", "10 m s"),
        ("10 m/s", "10 m^{-1} s"),
        ("10 m/s", "10 m s^{-2}"),
        ("10 km/h", "10 m s^{-1}"),
        ("10 m", "10 m s^{-1}"),
        ("10", "10 x y^{-1}"),
    ],
    "unions": [
        ("[1,3]", r"[1,2]\cup[2.5,3]"),
        ("[1,3]", r"[1,2)\cup(2,3]"),
        ("[1,3]", r"[1,2]\cup[2,3)"),
        ("1,3", r"[1,2]\cup[2,3]"),
        ("3", r"3\cup 3"),
    ],
    "roots that differ below zero": [
        (r"\sqrt{n^2}", "n"),
        (r"\sqrt{1/n}", r"-1/\sqrt n"),
        (r"\sqrt{a^2 b}", r"a\sqrt b"),
        (r"\log(n^2)", r"2\log n"),
        ("n+i", "n-i"),
        (r"\sqrt{n}+i", r"\sqrt{n}-i"),
        (r"\sqrt{-n}", r"-\sqrt{-n}"),
    ],
    "sums that differ": [
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n-1} k"),
        (r"2^n", r"\sum_{k=1}^{n} \binom{n}{k}"),
        (r"n!", r"n(n+1)!"),
        (r"\binom{2n}{n}", r"\frac{(2n)!}{n!}"),
        (r"\frac{\pi^2}{6}", r"\sum_{k=2}^{\infty} \frac{1}{k^2}"),
        (r"\sum_{n=1}^{2020} \frac{1}{n}", r"\sum_{k=1}^{2021} \frac{1}{k}"),
    ],
    "numbers that are not read": [
        ("5", "5_8"),
        ("x^2+5", "x^2+5_8"),
    ],
    "large and near": [
        ("2^{100}-1", "2^{100}-2"),
        ("2^{100}", "1267650600228229401496703205377"),
        (r"\frac{3^{100}-1}{2}", r"\frac{3^{100}+1}{2}"),
        ("100!", "100!+1"),
        ("10^{40}", "10^{40}+7"),
        ("1", "1+1/2004!"),
        ("1/3", "0.3333333333333333+0"),
        (r"\sqrt{2}", "1.4142135623731"),
        (r"\pi", "3.14159265358979323846264338327950288"),
        (
            r"\begin{pmatrix}\sqrt{2}\\1\end{pmatrix}",
            r"\begin{pmatrix}1.414214\\1\end{pmatrix}",
        ),
        (r"x>\frac{1}{3}", "x>0.33333333333333333"),
        (r"(0,\frac13)\cup(1,2)", r"(0,0.33333333333333333)\cup(1,2)"),
    ],
    "letters": [
        (r"\pi(R^2-r^2)", "0"),
        (r"\frac{R}{r}", "1"),
        ("A+a", "2a"),
        ("R^2", "r^2"),
        ("A", "a"),
        ("E", "e"),
        ("I^2", "-1"),
        ("F_2", "F"),
        ("a_1", "A"),
        ("a_1", "a"),
        ("x'", "x"),
        (r"\text{yes}", "sey"),
        ("yes", "sey"),
        (r"\text{No}", "oN"),
        ("June 20", "20 eunJ"),
    ],
    "not a unit": [
        ("6xy", "6"),
        ("6 xy", "6"),
        ("6xy", "6ab"),
        ("5", "5xy"),
        ("5", "5 xy"),
        ("5", "5 abc"),
        (r"\frac{1}{2}bh", "1/2"),
        ("2ab^2", "2"),
        ("5", "5 squared"),
        ("5", "5 factorial"),
        ("3", "3 fifths"),
        ("3", "3 tenths"),
        ("3", "3 millions"),
        ("18", "18 dozens"),
        ("18", "18 bn"),
        ("18", "18 mil"),
        ("3", "3 sinx"),
        ("18", "18 at least"),
        ("18", r"18\text{ or more}"),
        ("5", r"5\text{ and a half}"),
        ("5", r"5\text{ million}"),
        ("5", r"5\text{M}"),
        ("5", r"5\mathrm{k}"),
        ("5", r"5\mathrm{i}"),
        ("5", r"5\text{xy}"),
        ("5", r"\text{about }5"),
        ("5", "~5"),
    ],
    "another unit": [
        (r"5\text{ cm}", r"5\text{ km}"),
        (r"5\text{ cm}", r"5\text{ cm}^2"),
        (r"\text{3 hours}", r"\text{3 minutes}"),
        (r"3\text{ red}", r"3\text{ blue}"),
        (r"10\text{ a.m.}", "10 pm"),
    ],
    "another interval": [
        ("(1,2)", r"1\le x<2"),
        (r"x \ge 1", r"(1,\infty)"),
        (r"x \ge 1", r"(-\infty,1]"),
        ("[2,5)", "2<x<5"),
        (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>2"),
    ],
    "another power of ten": [("3.0e8", "3.0e9"), ("2.5 million", "2.5 billion"), ("1e3", "3e")],
    "percent": [("0.5", "0.5%"), ("0.5%", "0.5"), ("50%", "5"), ("1", "0.01")],
    "equations": [
        ("x^2+y^2=25", "25"),
        ("x+y=5", "5"),
        ("2x+3y=5", "5"),
        ("x>=3", "3"),
        ("5", "x>=5"),
        ("5", "x<=5"),
        ("5", "x!=5"),
        ("5", r"x\not=5"),
        ("5", "x^2=5"),
        ("5", "xy=5"),
        ("5", "2x=5"),
        ("5", "twice x = 5"),
        ("5", "x times y = 5"),
        ("0", "x^2-1=0"),
        ("5", "x(x+1)=5"),
        ("3", r"x \le y = 3"),
        ("5", r"\text{It is not true that } x = 5"),
        ("5", "It is not true that x = 5"),
        ("5", "4 = 5"),
        ("5", "x = 4 = 5"),
        ("x=3", "y=3"),
        ("x=2", "x^2=4"),
        ("x>3", "-x>-3"),
        ("1<x<2", r"1\le x<2"),
        (r"x \ne 3", "x=3"),
    ],
    "sample points": [
        ("|x-y|", "y-x"),
        (r"\min(x,y)", "x"),
        (r"\max(x,y)", "y"),
        (r"\lceil x\rceil", r"\lfloor x\rfloor+1"),
        (r"\gcd(x,y)", "1"),
        ("a+b+c+d", r"2a+b+c+\frac{3}{7}"),
    ],
    "spelling": [
        ("2", "√12"),
        ("2", r"\sqrt12"),
        ("53", r"5^\circ3"),
        ("56", r"5\;6"),
        ("56", "$5$6"),
        (r"\frac{3}{2}x", "2 1/2 x"),
        ("11", r"\phantom{6}5"),
        ("0.5", "0.5..."),
        ("0.3", r"0.\overline{3}"),
        (r"\emptyset", r"\{0\}"),
        ("23", "2**3"),
        ("(2,3)", "(2 or 3)"),
        ("2x", "x2"),
        ("5", "(2)(3)"),
        (r"\sin(xy)", r"\sin x \cdot y"),
        (r"\frac{1}{2x}", "1/2x"),
        (r"\frac{1}{6}", "1:2:3"),
        ("362880", "3^2!"),
        (r"\frac{7}{2}", "3(1/2)"),
        ("x>3", "x1>3"),
        ("y=2x", "y~=2x"),
        (r"\text{Monday}", r"\text{Monday} cm"),
    ],
}


def pairs(table: Table) -> list[object]:
    return [
        pytest.param(
            gold, answer, id=f"{topic}: {gold} | {answer}".encode("ascii", "replace").decode()
        )
        for topic, rows in table.items()
        for gold, answer in rows
    ]


def ask(judge: MathsVerifier, gold: str, text: str) -> Verdict:
    return judge([Prompt("p", "", "t", {"expected": gold})], [text])[0]


@pytest.mark.parametrize(("gold", "answer"), pairs(EQUAL))
def test_right_answers_in_every_spelling_score_one(
    maths: MathsVerifier, gold: str, answer: str
) -> None:
    assert ask(maths, gold, f"\\boxed{{{answer}}}").status == "correct"


@pytest.mark.parametrize(("gold", "answer"), pairs(DIFFERENT))
def test_near_misses_score_zero(maths: MathsVerifier, gold: str, answer: str) -> None:
    verdict = ask(maths, gold, f"\\boxed{{{answer}}}")
    assert verdict.reward == 0.0
    assert verdict.status in ("incorrect", "unparsed")


def is_paid(gold: str, answer: str) -> bool | None:
    """Whether the answer scores 1; None where algebra is asked."""
    verdict = judge_text(gold, f"\\boxed{{{answer}}}")
    return verdict.reward == 1.0 if isinstance(verdict, Verdict) else None


YEAR, MONTH, DAY = st.integers(1000, 2999), st.integers(1, 12), st.integers(1, 31)


@given(YEAR, MONTH, DAY, st.sampled_from("-/."), st.booleans())
def test_a_date_is_neither_a_difference_nor_another_date(
    year: int, month: int, day: int, mark: str, year_first: bool
) -> None:
    parts = [str(year), f"{month:02}", f"{day:02}"]
    gold = mark.join(parts if year_first else [parts[1], parts[2], parts[0]])
    assert is_paid(gold, gold)
    values = {"-": year - month - day, "/": f"{year}/{month * day}", ".": year}
    for answer in (values[mark], f"{year}{mark}{day:02}{mark}{month:02}", f"{month}/{day}"):
        if str(answer) != gold:
            assert is_paid(gold, str(answer)) is False
            assert is_paid(str(answer), gold) is False


@given(st.integers(0, 24), st.integers(10, 59))
def test_a_time_of_day_is_no_ratio(hour: int, minute: int) -> None:
    gold, common = f"{hour}:{minute}", math.gcd(hour, minute)
    if common > 1:  # 3:04 might be a ratio
        assert is_paid(gold, f"{hour // common}:{minute // common}") is False
        assert is_paid(gold, f"\\frac{{{hour}}}{{{minute}}}") is False


WORDS = ["CAT", "HHT", "RGB", "IV", "AB", "cat", "dog", "LQSX", "listen", "\\text{CAT}", "Tea"]


@given(st.sampled_from(WORDS), st.randoms(use_true_random=False))
def test_a_word_is_not_the_product_of_its_letters(gold: str, random: Random) -> None:
    letters = [*gold.removeprefix("\\text{").removesuffix("}")]
    random.shuffle(letters)
    answer = "".join(letters)
    same_word = answer.lower() == gold.removeprefix("\\text{").removesuffix("}").lower()
    assert is_paid(gold, answer) is same_word
    assert is_paid(gold, f"\\text{{{answer}}}") is same_word


MONEY = [[r"\$%s", "$%s", "%s dollars", r"%s\text{ USD}"], ["€%s", "%s euros", r"%s\text{ EUR}"]]
MONEY += [
    ["£%s", r"\text{£}%s"],
    ["¥%s", "%s yen"],
    ["₹%s", r"%s\text{ rupees}"],
    ["%s cents", "%s¢"],
]
ANGLES = [["%s°", r"%s^\circ", "%s degrees", r"%s^{\circ}"], ["%s rad", r"%s\text{ radians}"]]


@given(st.sampled_from([MONEY, ANGLES]), st.integers(1, 10**6), st.data())
def test_a_currency_or_a_unit_of_angle_is_not_another(
    kinds: list[list[str]], value: int, data: st.DataObject
) -> None:
    first, second = data.draw(st.permutations(kinds))[:2]
    gold, answer = (data.draw(st.sampled_from(forms)) % value for forms in (first, second))
    assert is_paid(gold, answer) is False
    assert is_paid(gold, gold)
    assert is_paid(gold, str(value))


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=3, unique=True), st.data())
def test_named_values_are_compared_by_their_names(values: list[int], data: st.DataObject) -> None:
    names = "xyz"[: len(values)]
    order = data.draw(st.permutations(range(len(values))))
    tuples = [f"({','.join(names)})=({','.join(map(str, values))})"]
    lists = [", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))]
    turned_names = ",".join(names[i] for i in order)
    turned = ",".join(str(values[i]) for i in order)
    for gold in (*tuples, *lists):
        assert is_paid(gold, f"({turned_names})=({turned})")
        for answer in (f"({turned})", turned, f"({','.join(names)})=({turned})"):
            assert is_paid(gold, answer) is (list(order) == sorted(order))
    straight = f"({','.join(map(str, values))})"
    assert is_paid(straight, f"({turned_names})={straight}") is (list(order) == sorted(order))


@pytest.mark.parametrize(
    ("gold", "text", "reward"),
    [
        ("18", "Final Answer: The final answer is $18$. I hope it is correct.", 1.0),
        ("18", "**Answer: 18 dollars**", 1.0),
        ("18", "Answer: 17 because 3*6=18", 0.0),
        ("18", "The answer is not 18", 0.0),
        ("18", "Answer: 18 or 19", 0.0),
        ("23", "Answer: 2**3", 0.0),
        ("18", "\\boxed{19}\nThe answer is 18", 0.0),
    ],
)
def test_answers_in_sentences(maths: MathsVerifier, gold: str, text: str, reward: float) -> None:
    assert ask(maths, gold, text).reward == reward


HOSTILE = ["a", "a ", "9", "9,", "9.", "1/", "{", "\\frac{", "\\frac{a}", "\\text{", "\\text{a}"]
HOSTILE += ["\\sqrt", "\\sqrt(", "~", "x=", "(", "gcd", "\\ ", "\\log_", "0.\\dot", "x_", "\\in "]


@pytest.mark.parametrize("piece", HOSTILE)
def test_the_work_on_hostile_answers_grows_with_their_length_alone(piece: str) -> None:
    """Twenty times the longest answer that is read: work in its square or cube would not end."""
    for end in ("", "1", "!", " cm^2"):
        text = piece * (20 * MAX_ANSWER // len(piece)) + end
        assert plain(text) is not None
        assert quantity(text).core
        assert is_readable(text) in (True, False)
        assert same("18", text) in (None, False)


def test_an_expected_answer_that_is_no_text_is_nobodys_answer() -> None:
    judge = verifier("maths", workers=1)
    for expected, said in [(None, "None"), (float("nan"), "nan"), ([5, 6], "[5, 6]")]:
        prompt = Prompt("p", "", "maths", {"expected": expected})
        assert judge([prompt], [rf"\boxed{{{said}}}"])[0].status == "unscored"
    number = Prompt("p", "", "maths", {"expected": 1e-07})
    assert judge([number], [r"\boxed{0.0000001}"])[0].reward == 1.0
