"""Completion → program: what a careful reader would take for the model's code.

Pure functions on text, linear in its length whatever the text. Nothing here parses Python: what a
model wrote may bring a parser down.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

# possessive throughout: a model must not be able to make this backtrack
_FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^`\s]*+)[^`]*+$")
_MARKED = re.compile(
    r"\{?\.?(?:python|pypy|py)[\d.]*+(?![^\W_])|[\w./-]*+(?<=\.py)$", re.IGNORECASE
)
_SESSION = re.compile(r"pycon|python-?repl|(?:i?python-?)?console", re.IGNORECASE)
_TAG = re.compile(r"</?think>")
_INDENTED = re.compile(
    r"^ *+[\xa0\u2000-\u200a\u202f\u3000][ \xa0\u2000-\u200a\u202f\u3000]*+", re.M
)
"""Indentation with blanks that Python does not take for such."""
_END_TOKEN = re.compile(r"\s*(?:<\|[^|<>\s]{1,40}\|>|</s>|<eos>)\Z")
_FUTURE = re.compile(r"^from __future__ import (?:\([^()]*+\)|[^\n;]*+);?[ \t]*+\n?", re.MULTILINE)
_WRAPPERS = {"<answer>": "</answer>", "<code>": "</code>", "[PYTHON]": "[/PYTHON]"}
_SENTENCE = re.compile(
    r"(?!(?:if|for|while|def|class|with|try|else|elif|except|finally|match|case|async)\b)"
    r"[^\W\d_][^\s#=]*+ [^#=]*(?<=[.:!])\s*$"
)
_BODY = re.compile(r"^return\b", re.MULTILINE)
_READS_STDIN = re.compile(r"\binput\b|\bstdin\b|\bopen\(0|\bfileinput\b|\bos\.read\b")
_BINDS = re.compile(
    r"^(?:async[ \t]++)?(?:(?:def|class)[ \t]++(?P<named>\w++)"
    r"|(?P<assigned>\w++)[ \t]*+(?::[^=\n]*+)?=(?!=)"
    r"|import[ \t]++(?P<modules>[^\n;#]++)"
    r"|from[ \t]++[\w.]++[ \t]++import[ \t]++(?P<parts>[^\n;#]++))",
    re.MULTILINE,
)
_TOP_LEVEL = re.compile(
    r"^(?!\s|$|[#@)\]}]|(?:async|def|class|import|from)\b|\w++[ \t]*+(?::[^=\n]*+)?=(?!=))",
    re.MULTILINE,
)
_ACTS = re.compile(_TOP_LEVEL.pattern + r"|\binput\b|\bstdin\b", re.MULTILINE)
_WORD = re.compile(r"[^\W\d]\w*+")
_QUOTED = re.compile(r"""\#.*|'''|\"\"\"|'(?:[^'\\]|\\.)*+(?:'|\\?$)|"(?:[^"\\]|\\.)*+(?:"|\\?$)""")


@dataclass(frozen=True)
class Block:
    """One fenced block of a completion."""

    language: str
    code: str

    @property
    def rank(self) -> int:
        """2 when marked as Python, 1 when unmarked, 0 when marked as something else."""
        return 2 if _MARKED.match(self.language) else int(not self.language)


def extract_code(completion: str, names: Collection[str] = (), *, prefix: str = "") -> str:
    """The program in a completion.

    Of the fenced blocks after the thinking, the one that defines most of `names`, marked as Python
    before unmarked, the last of equals; where nothing is to be defined (a program over stdin), one
    that reads stdin comes first. Earlier blocks that define what this one uses come along.
    Without a fence the whole text is the program, but for tags around it and sentences before and
    after it; thinking that never ends holds none.

    Args:
        completion: what the model wrote.
        names: what the tests need of the program.
        prefix: code that comes before the program: then the program may be an indented body.

    >>> extract_code("Sure:\\n```python\\nx = 1\\n```\\nTry it:\\n```\\nprint(x)\\n```", ["x"])
    'x = 1\\n'
    >>> extract_code("def f(): return 1")
    'def f(): return 1'
    """
    text = _INDENTED.sub(lambda m: " " * len(m[0]), completion.replace("\r\n", "\n"))
    names = set(names)
    text = _before_lone_end(answer_text(text), names)
    blocks = [
        Block(block.language, _dedented(block.code, names, prefix))
        for block in fenced_blocks(text)
        if not _is_session(block)
    ]
    if not blocks:
        return _dedented(_without_prose(_unwrapped(text)), names, prefix)
    scores = [_score(block, names) for block in blocks]
    best = max(scores)
    if best[0] == 0 and names & set(bound_names(text)):
        return text  # a program without a fence around it, but with one inside
    if best[1] == 0 and best[0] == 0:
        return text  # shell, C, sample data: no block can be the program
    at = max(i for i, score in enumerate(scores) if score == best)
    code = _with_helpers(blocks, at, names)
    return code if names else code + _call_after(blocks, at)


def _before_lone_end(text: str, names: set[str]) -> str:
    """What a fence ends that the completion did not begin: the prompt may have begun it."""
    before, fence, after = text.partition("\n```")
    if not fence or "```" in before + after or after.partition("\n")[0].strip():
        return text
    is_code, goes_on = (
        bool(names & set(bound_names(part)) if names else _READS_STDIN.search(part))
        for part in (before, after)
    )
    return before + "\n" if (is_code or not after.strip()) and not goes_on else text


def _score(block: Block, names: set[str]) -> tuple[int, int]:
    if names:
        return len(names & set(bound_names(block.code))), block.rank
    return int(block.rank > 0 and bool(_READS_STDIN.search(block.code))), block.rank


def _call_after(blocks: list[Block], at: int) -> str:
    """A later block that calls what this one only defines: the rest of a program over stdin."""
    defined = set(bound_names(blocks[at].code, imports=False))
    if _TOP_LEVEL.search(blocks[at].code):
        return ""
    for block in blocks[at + 1 :]:
        own = set(bound_names(block.code, imports=False))
        used = defined & set(_WORD.findall(block.code))
        if block.rank and used and not own & defined and _TOP_LEVEL.search(block.code):
            return f"\n{block.code}"
    return ""


def _is_session(block: Block) -> bool:
    """A transcript of an interpreter shows a program at work; it is none."""
    return bool(_SESSION.fullmatch(block.language)) or block.code.lstrip().startswith(">>> ")


def _with_helpers(blocks: list[Block], at: int, names: set[str]) -> str:
    """The block, after the earlier ones it leans on.

    A block that only defines, defines what this one (or the tests) use, and nothing that this one
    has itself, is a part of the program; any other is an earlier version or an example.
    """
    parts = [blocks[at].code]
    have = set(bound_names(parts[0], imports=False))
    needed = (names | set(_WORD.findall(parts[0]))) - set(bound_names(parts[0]))
    for block in reversed(blocks[:at]):
        own = set(bound_names(block.code, imports=False))
        defined = set(bound_names(block.code, assigned=False))
        if block.rank == 0 or own & have or not defined & needed or _ACTS.search(block.code):
            continue
        parts.append(block.code)
        have |= own
        needed |= set(_WORD.findall(block.code)) - defined
    return "".join(code if code.endswith("\n") else code + "\n" for code in parts[:0:-1]) + parts[0]


def bound_names(code: str, *, imports: bool = True, assigned: bool = True) -> Iterator[str]:
    """Names that lines at the left margin define, assign or import.

    >>> list(bound_names("from math import gcd as g, pi\\nclass A:\\n    x = 1\\nf = A()"))
    ['gcd', 'g', 'pi', 'A', 'f']
    """
    for match in _BINDS.finditer(code):
        if match["named"]:
            yield match["named"]
        elif match["assigned"]:
            yield from [match["assigned"]] * assigned
        elif imports:
            listed = match["modules"] or match["parts"]
            yield from (word for word in _WORD.findall(listed) if word != "as")


def _dedented(code: str, names: set[str], prefix: str) -> str:
    """Without a byte order mark, and flush left where all of it is indented.

    Behind a prefix an indented text may be the body of a function: it only moves when that brings
    to light what the tests need.
    """
    code = code.removeprefix("\ufeff")
    first = next((line for line in code.split("\n") if line.strip(" \t")), "")
    margin = first[: len(first) - len(first.lstrip(" \t"))]
    if not margin:
        return code
    moved = "\n".join(line.removeprefix(margin) for line in code.split("\n"))
    return moved if not prefix or names & set(bound_names(moved)) else code


def _unwrapped(text: str) -> str:
    """The inside of tags that stand around the code, each at the beginning of a line."""
    for tag, end in _WRAPPERS.items():
        start = text.rfind("\n" + tag) + 1 if not text.startswith(tag) else 0
        if text.startswith(tag, start):
            return text[start + len(tag) :].partition(end)[0].removeprefix("\n")
    return text


def _without_prose(text: str) -> str:
    """Without sentences before and after the code: no line of Python looks like one."""
    lines = text.split("\n")
    first, last = 0, len(lines)
    while first < last and _SENTENCE.match(lines[first]):
        first += 1
        while first < last and not lines[first].strip():
            first += 1
    while last > first and (_SENTENCE.match(lines[last - 1]) or not lines[last - 1].strip()):
        last -= 1
    ends = any(_SENTENCE.match(line) for line in lines[last:])
    return "\n".join(lines[first : last if ends else None]) if first or ends else text


def assembled(prefix: str, code: str) -> str:
    """The program after its prefix.

    Imports from `__future__` have to come first of all, and a body that the prefix begins is
    indented as the prefix is.

    >>> assembled("import math\\n", "from __future__ import annotations\\nx = 1\\n")
    'from __future__ import annotations\\nimport math\\nx = 1\\n'
    >>> assembled("def f(x):\\n    'Add one.'\\n", "return x + 1\\n")
    "def f(x):\\n    'Add one.'\\n    return x + 1\\n"
    """
    if prefix and _BODY.search(code):
        end = prefix.rstrip().rpartition("\n")[2]
        margin = end[: len(end) - len(end.lstrip())]
        code = "".join(margin + line for line in code.splitlines(keepends=True))
    if not prefix or "from __future__" not in code:
        return prefix + code
    lifted = [match[0].rstrip("\n; \t") + "\n" for match in _FUTURE.finditer(code)]
    return "".join(lifted) + prefix + _FUTURE.sub("", code)


# ------------------------------------------------------------------------------------- thinking
def answer_text(text: str) -> str:
    """What follows the thinking, without tokens that end a turn; "" when the thinking never ends.

    Tags are the model's own only outside of its code: in quotes, or inside a line of a fenced
    block, they are a part of the program.

    >>> [answer_text(text) for text in ("<think>a</think>b", "a</think>b<|im_end|>", "<think>b")]
    ['b', 'b', '']
    """
    if "think>" not in text:
        return _without_end_tokens(text)
    start = at = 0
    thinking = False
    fences = _Fences()
    for line in text.split("\n"):
        if "think>" not in line:
            if not thinking:
                fences.read(line)
        else:
            rest = 0
            first, last = len(line) - len(line.lstrip()), len(line.rstrip())
            for tag in _TAG.finditer(line):
                alone = tag.start() == first or tag.end() == last
                in_code = bool(fences.open) and not thinking
                if _is_quoted(line, tag) or (in_code and (tag[0] == "<think>" or not alone)):
                    continue
                thinking = tag[0] == "<think>"
                rest = tag.end()
                if not thinking:
                    start = at + rest
                    fences = _Fences()
            if not thinking:
                fences.read(line[rest:])
        at += len(line) + 1
    return "" if thinking else _without_end_tokens(text[start:])


def _is_quoted(line: str, tag: re.Match[str]) -> bool:
    before, after = line[max(0, tag.start() - 1) : tag.start()], line[tag.end() : tag.end() + 1]
    fenced = line[max(0, tag.start() - 3) : tag.start()] == "```"
    return before == after and before in ("'", '"', "`") and not fenced


def _without_end_tokens(text: str) -> str:
    end = len(text.rstrip())
    while match := _END_TOKEN.search(text, max(0, end - 60), end):
        end = match.start()
        while end and text[end - 1].isspace():
            end -= 1
    return text[:end] if end < len(text.rstrip()) else text


# --------------------------------------------------------------------------------------- fences
def fenced_blocks(text: str) -> list[Block]:
    """Fenced blocks in order; one that is never closed runs to the end.

    A fence inside a triple-quoted string of the program closes nothing, provided that the string
    ends.
    """
    for strings in (True, False):
        fences = _Fences(strings=strings)
        for line in text.split("\n"):
            fences.read(line)
        if not fences.quotes:
            break
    fences.finish()
    return fences.blocks


class _Fences:
    """Reads lines one by one and keeps the blocks found so far."""

    def __init__(self, *, strings: bool = True) -> None:
        self.blocks: list[Block] = []
        self.strings = strings
        self.open = ""
        """The fence that opened the current block; empty outside of one."""
        self.quotes = ""
        """The triple quotes of the string that the current line begins in."""
        self.language = self.indent = ""
        self.lines: list[str] = []

    def read(self, line: str) -> None:
        fenced = "```" in line or "~~~" in line
        if not self.open:
            if fenced:
                self._maybe_open(line, _FENCE.match(line))
        elif self.quotes or not fenced or not self._closes(line, _FENCE.match(line)):
            self.lines.append(self._moved(line) if self.indent else line)
            if self.strings:
                self.quotes = _quotes_after(self.quotes, line)

    def _maybe_open(self, line: str, mark: re.Match[str] | None) -> None:
        if mark:
            self._begin(mark[2], mark[3], mark[1])
        elif line.count("```") == 1:  # prose, then the fence
            before, _, after = line.rpartition("```")
            if _FENCE.match("```" + after) and not before.endswith("`"):
                self._begin("```", after.strip(), "")

    def _begin(self, fence: str, language: str, indent: str) -> None:
        self.open, self.language, self.indent, self.lines = fence, language, indent, []

    def _closes(self, line: str, mark: re.Match[str] | None) -> bool:
        """Whether the line ends the block; no line of Python begins with a fence, so a fence with
        a language ends it too and begins the next."""
        bare = line.lstrip(" \t")
        if not bare.startswith(self.open):
            return False
        after = bare.lstrip(self.open[0])
        if after and not after[0].isspace() and mark is None:
            return False
        self._end()
        if after and after[0] not in " \t<" and mark:
            self._begin(mark[2], mark[3], mark[1])
        return True

    def _end(self) -> None:
        self.blocks.append(Block(self.language, "".join(line + "\n" for line in self.lines)))
        self.open, self.quotes = "", ""

    def finish(self) -> None:
        """The block that was never closed, up to a fence at the end of a line of code."""
        if not self.open:
            return
        for at, line in enumerate(self.lines):
            if line.endswith(self.open) and line.count("```") == 1:
                self.lines[at:] = [line[: -len(self.open)]]
                break
        self.blocks.append(Block(self.language, "\n".join(self.lines)))
        self.open = ""

    def _moved(self, line: str) -> str:
        """The line without the indentation of its fence."""
        if line.startswith(self.indent):
            return line[len(self.indent) :]
        return line.lstrip(" \t")


def _quotes_after(quotes: str, line: str) -> str:
    """The triple quotes that are open after this line, where `quotes` were open before it."""
    if not quotes and "'''" not in line and '"""' not in line:
        return ""
    at = 0
    while True:
        if quotes:
            end = line.find(quotes, at)
            while end > 0 and line[end - 1] == "\\":
                end = line.find(quotes, end + 1)
            if end < 0:
                return quotes
            quotes, at = "", end + 3
        match = next((m for m in _QUOTED.finditer(line, at) if m[0] in ("'''", '"""')), None)
        if match is None:
            return ""
        quotes, at = match[0], match.end()
