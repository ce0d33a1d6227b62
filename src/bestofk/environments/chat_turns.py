"""A conversation as tokens: prompts, and what the environment's replies add. Never tokenised again.

What stands between two messages of the model comes from the chat template by difference: a short
conversation is rendered with and without the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from bestofk.environments.tool_calls import FORMS, ToolCall
from bestofk.sampling.prompts import encode
from bestofk.types import Message, Prompt

THOUGHT = "<think>\nA thought.\n</think>\n\n"
"""Before an answer by which a template is tried: some drop thinking from earlier messages."""
QUESTION: list[Message] = [{"role": "user", "content": "A question?"}]


class ChatTurns:
    """Token ids of conversations, by the chat template; plain text where the prompts are text."""

    def __init__(
        self,
        tokenizer: Any,
        name: str,
        tools: Mapping[str, Callable[..., Any]],
        *,
        chat: bool,
        replies: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            name: of the model, for errors.
            tools: by name.
            chat: whether the prompts are chat messages.
            replies: whether the environment answers messages that call no tool.
            options: of the chat template, such as enable_thinking.

        Raises:
            ValueError: tools without a schema, or a chat template that cannot do this.
        """
        self.tokenizer, self.name, self.chat, self.options = tokenizer, name, chat, options or {}
        added = tokenizer.added_tokens_decoder.values()
        self.marks = [
            each.content
            for each in added
            if each.special or (each.content[0] == "<" and each.content[-1] == ">")
        ]
        self.longest_token = max(map(len, tokenizer.get_vocab()))
        """Characters: a text that is so many times longer than the room for it need not be read."""
        self.schemas = [schema_of(name, tool) for name, tool in tools.items()]
        self.start = ""
        """A conversation up to the model's message, as it was rendered last."""
        if not chat and tools:
            raise ValueError(
                f"tools are shown by a chat template, and the prompts for {name} are plain text: "
                "take an instruction-tuned model, or an environment that is called with the text"
            )
        if chat and replies:
            self.between([{"role": "user", "content": "A reply."}])
        if tools:
            if self._render(QUESTION) == self._render(QUESTION, tools=None):
                raise ValueError(
                    f"the chat template of {name} does not show tools: take a model whose template "
                    "does, or an environment that is called with the text"
                )
            self.read_calls = self._call_form(next(iter(tools)))
            self.between([{"role": "tool", "name": next(iter(tools)), "content": "A result."}])

    def calls(self, ids: Sequence[int]) -> list[ToolCall]:
        """The tool calls of a message."""
        if not self.schemas:
            return []
        return self.read_calls(str(self.tokenizer.decode(list(map(int, ids)))), self.schemas)

    def prompt(self, prompt: Prompt) -> tuple[int, ...]:
        return encode(self.tokenizer, prompt, self.schemas, self.options)

    def written(self, messages: Sequence[Message]) -> str:
        """What follows a message of the model: its end, these messages, the start of the next."""
        plain = [{key: self._harmless(said) for key, said in each.items()} for each in messages]
        return self.between(plain) if self.chat else "".join(each["content"] for each in plain)

    def between(self, replies: Sequence[Message]) -> str:
        """What the template writes after a message of the model, up to the start of its next.

        Raises:
            ValueError: the template changes what stands before a reply.
        """
        why = "it changes or drops what the model wrote before it"
        try:
            for known in (self.start, ""):  # again, for a template that writes the time
                self.start = start = known or self._render(QUESTION)
                opening = start.rpartition(QUESTION[0]["content"])[2]
                answer = "An answer." if "</think>" in opening else f"{THOUGHT}An answer."
                message = {"role": "assistant", "content": answer}
                if opening.endswith("<think>\n"):
                    answer = answer.removeprefix("<think>\n")
                rendered = self._render([*QUESTION, message, *replies])
                if rendered.startswith(start + answer):
                    return rendered[len(start + answer) :]
        except Exception as error:  # templates raise what they like
            why = f"it raises {type(error).__name__}: {error}"
        role = replies[0]["role"]
        raise ValueError(
            f"the chat template of {self.name} cannot be continued after a {role} message: {why}, "
            "so the model would be used with other tokens than it was trained on; take a model "
            "whose template keeps them"
        )

    def _render(self, messages: Sequence[Message], **options: Any) -> str:
        base = {"tools": self.schemas or None, "add_generation_prompt": True, "tokenize": False}
        plain = list(map(dict, messages))
        return str(self.tokenizer.apply_chat_template(plain, **{**self.options, **base, **options}))

    def _call_form(self, tool: str) -> Any:
        """How the template writes a call of this tool."""
        function = {"name": tool, "arguments": {"argument": "value"}}
        message: Any = {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": function}]}  # fmt: skip
        try:
            rendered = self._render([*QUESTION, message], add_generation_prompt=False)
        except Exception as error:
            raise ValueError(
                f"the chat template of {self.name} cannot write tool calls: {error}"
            ) from error
        written = rendered.rpartition(QUESTION[0]["content"])[2]
        for mark, reader in FORMS.items():
            if mark in written:
                return reader
        raise ValueError(
            f"the chat template of {self.name} writes tool calls in a form that is not known: "
            f"{written[:200]!r}; known are those of Qwen, Hermes and Llama"
        )

    def _harmless(self, text: str) -> str:
        """Text of the environment, which cannot spell a token that ends or begins a message."""
        for mark in self.marks:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text


def reply_ids(
    tokenizer: Any, texts: Sequence[str], last: Sequence[int], ends: Collection[int]
) -> list[list[int]]:
    """The ids of texts that follow messages of the model, all in one call: most of its time is
    spent outside of Python.

    Args:
        last: the last token that the model drew before each; where it ended the message as the
            template does, that end is not repeated.
        ends: ids that end a message.
    """
    if not texts:
        return []
    distinct = list(dict.fromkeys(texts))
    encoded = dict(zip(distinct, tokenizer(distinct, add_special_tokens=False)["input_ids"]))
    rows = [(encoded[text], token) for text, token in zip(texts, last, strict=True)]
    return [ids[1:] if ids[:1] == [token] and token in ends else ids for ids, token in rows]


def schema_of(name: str, tool: Callable[..., Any]) -> dict[str, Any]:
    """A tool's JSON schema, from its type hints and docstring.

    Raises:
        ValueError: it lacks them.
    """
    from transformers.utils import get_json_schema

    try:
        return dict(get_json_schema(tool))
    except Exception as error:
        raise ValueError(
            f"tool {name} needs type hints and a docstring with a line for each argument under "
            f"'Args:', from which its schema is made: {error}"
        ) from error
