"""Templates written the way each family writes its own: what they ask of Jinja, and what comes out."""

from datetime import datetime

import pytest

from deployments.messages.errors import InvalidRequest
from deployments.messages.generation import ChatTurn
from deployments.tokenizer.template import ChatTemplate

_LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

_QWEN = """{%- if tools %}{{- raise_exception('no tools were given') }}{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" and '</think>' in content and loop.index0 <= ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}"""

_GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

_GEMMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}
{% endif %}{% for m in messages %}{{ m['content'] | trim }}{% endfor %}"""

_GEMMA4 = """{%- macro strip_thinking(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- if '<|channel>' in part -%}{%- set ns.result = ns.result + part.split('<|channel>')[0] -%}
        {%- else -%}{%- set ns.result = ns.result + part -%}{%- endif -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.get('tool_calls') -%}{%- continue -%}{%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\\n' -}}
    {{- strip_thinking(message['content']) if role == 'model' else message['content'] | trim -}}
    {{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\\n' -}}
    {%- if not enable_thinking | default(false) -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}"""

_EXAONE = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}{{ '[|system|][|endofturn|]\\n' }}{% endif %}
{{ '[|' + message['role'] + '|]' + message['content'] }}
{%- if message['role'] == 'user' %}{{ '\\n' }}{% else %}{{ '[|endofturn|]\\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}"""

_GRANITE = """{%- if messages[0]['role'] != 'system' %}
    {{- '<|start_of_role|>system<|end_of_role|>Today: ' + strftime_now('%B %d, %Y') + '.<|end_of_text|>\\n' }}
{%- endif %}
{%- if documents %}{%- for document in documents %}{{- document.text }}{%- endfor %}{%- endif %}
{%- for message in messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
        {%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""

_SYSTEM = ChatTurn(role="system", content="Be brief. ")
_USER = ChatTurn(role="user", content=" Hi é<b> ")
_ASSISTANT = ChatTurn(role="assistant", content="<think>\nhm\n</think>\n\nYo")


def _template(source: str, /) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<bos>", eos_text="<eos>")


@pytest.mark.parametrize(
    ("source", "turns", "text"),
    [
        (
            _QWEN,
            (_SYSTEM, _USER, _ASSISTANT, _USER),
            "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n Hi é<b> <|im_end|>\n"
            "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\n Hi é<b> <|im_end|>\n"
            "<|im_start|>assistant\n<think>\n",
        ),
        (
            _GEMMA3,
            (_SYSTEM, _USER, _ASSISTANT, _USER),
            "<bos><start_of_turn>user\nBe brief. \n\nHi é<b><end_of_turn>\n"
            "<start_of_turn>model\n<think>\nhm\n</think>\n\nYo<end_of_turn>\n"
            "<start_of_turn>user\nHi é<b><end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            _GEMMA4,
            (_SYSTEM, _USER, ChatTurn(role="assistant", content="<|channel>thought\nhm<channel|> Yo"), _USER),
            "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi é<b><turn|>\n<|turn>model\nYo<turn|>\n"
            "<|turn>user\nHi é<b><turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        ),
        (
            _EXAONE,
            (_USER, ChatTurn(role="assistant", content="Yo"), _USER),
            "[|system|][|endofturn|]\n[|user|] Hi é<b> \n[|assistant|]Yo[|endofturn|]\n"
            "[|user|] Hi é<b> \n[|assistant|]",
        ),
        (
            _GRANITE,
            (_SYSTEM, _USER),
            "<|start_of_role|>system<|end_of_role|>Be brief. <|end_of_text|>\n"
            "<|start_of_role|>user<|end_of_role|> Hi é<b> <|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
        ),
    ],
    ids=["qwen", "gemma3", "gemma4", "exaone", "granite"],
)
def test_a_conversation(source: str, turns: tuple[ChatTurn, ...], text: str) -> None:
    assert _template(source).render(turns) == text


def test_llama3_writes_the_date() -> None:
    before = datetime.now().strftime("%d %b %Y")
    text = _template(_LLAMA3).render((_SYSTEM, _USER))
    assert any(
        text == "<bos><|start_header_id|>system<|end_header_id|>\n\nToday: " + date + "\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi é<b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        for date in (before, datetime.now().strftime("%d %b %Y"))
    )


def test_granite_writes_a_date_of_its_own() -> None:
    before = datetime.now().strftime("%B %d, %Y")
    text = _template(_GRANITE).render((_USER,))
    assert before in text or datetime.now().strftime("%B %d, %Y") in text


@pytest.mark.parametrize(
    ("source", "turns", "words"),
    [
        (_GEMMA3, (_USER, _USER), "Conversation roles must alternate"),
        (_GEMMA3, (_SYSTEM, _ASSISTANT), "Conversation roles must alternate"),
        (_GEMMA2, (_SYSTEM, _USER), "System role not supported"),
    ],
)
def test_a_conversation_that_the_family_refuses(source: str, turns: tuple[ChatTurn, ...], words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"chat template refuses these messages: {words}"):
        _template(source).render(turns)
