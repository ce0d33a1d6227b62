"""Tool calls as Qwen, Hermes and Llama write them, and what models write instead."""

import pytest

from bestofk.environments.tool_calls import ToolCall, hermes, llama, qwen_coder

SCHEMAS = [{"function": {"name": "add", "parameters": {"properties": {
    "a": {"type": "integer"}, "why": {"type": "string"}}}}}]  # fmt: skip
ADD = ToolCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (hermes, 'So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'),
        (hermes, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call> end'),
        (llama, '{"name": "add", "parameters": {"a": 1}}'),
        (llama, ' <|python_tag|>{"name": "add", "parameters": {"a": 1}} '),
        (qwen_coder, "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>"),
    ],
)
def test_a_call_is_read_as_its_template_writes_it(reader, text):
    assert reader(text, SCHEMAS) == [ADD]


def test_several_calls_and_texts_without_one():
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert hermes(call + "\n" + call, []) == [ADD, ADD]
    one = '{"name": "add", "parameters": {"a": 1}}'
    assert llama(f"{one}; {one}", []) == [ADD, ADD]
    for reader in (hermes, llama, qwen_coder):
        assert reader("The answer is 7.", []) == []
        assert reader("", []) == []


def test_text_arguments_stay_text():
    text = "<function=add><parameter=why>\n12\n</parameter><parameter=a>x</parameter></function>"
    assert qwen_coder(text, SCHEMAS) == [ToolCall("add", {"why": "12", "a": "x"})]


DEEP = "[" * 100_000
WRONG = [
    (hermes, "<tool_call>{</tool_call>", "not JSON"),
    (hermes, '<tool_call>{"name": "add"', "no </tool_call>"),
    (hermes, "<tool_call>[1]</tool_call>", '"name"'),
    (hermes, '<tool_call>{"name": 1, "arguments": {}}</tool_call>', '"name"'),
    (hermes, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "JSON object"),
    (hermes, '<tool_call>{"name": "add", "arguments": "no"}</tool_call>', "JSON object"),
    (hermes, f"<tool_call>{DEEP}</tool_call>", "not JSON"),
    (hermes, f"<tool_call>{'9' * 5000}</tool_call>", "not JSON"),
    (llama, '{"name": "add", "parameters": {"a": 1}', "not JSON"),
    (hermes, '<tool_call>{"name": "add", "arguments": {}} or</tool_call>', "goes on with ' or'"),
    (hermes, '<tool_call>{"name": "add\\ud800"}</tool_call>', "surrogates not allowed"),
    (llama, '{"name": "add", "parameters": {"why": "\\ud800"}}', "surrogates not allowed"),
    (llama, '{"a": 1}', '"name"'),
    (llama, DEEP.replace("[", '{"a":'), "not JSON"),
    (qwen_coder, "<function=add><parameter=a>1", "no </function>"),
]


@pytest.mark.parametrize(("reader", "text", "said"), WRONG)
def test_what_cannot_be_read_says_why(reader, text, said):
    (call,) = reader(text, SCHEMAS)
    assert said in call.error
