"""Chat templates: the dialect, the refusals, and templates that mean harm."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.errors import InvalidRequest, UnknownTemplate
from deployments.messages.generation import ChatTurn
from deployments.tokenizer.template import ChatTemplate

_USER = (ChatTurn(role="user", content="Hi <b>&'\"é"),)


def _template(source: str, /) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi <b>&'\"é</s>"),
        ("{{ messages[0]['role'] }}{% if add_generation_prompt %}>{% endif %}", "user>"),
        ("{{ messages | tojson }}", json.dumps([{"role": "user", "content": "Hi <b>&'\"é"}], ensure_ascii=False)),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": 2\n}'),
        ("  {% for m in messages %}\n{{ m.role }}\n  {% endfor %}\n.", "user\n."),
        ("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in range(4) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "013"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}.", "user."),
        ("{% if tools is none and documents is none and not enable_thinking %}plain{% endif %}", "plain"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ messages[0].content.split(' ')[0] | trim | upper }}", "HI"),
    ],
)
def test_the_dialect(source: str, text: str) -> None:
    assert _template(source).render(_USER) == text


def test_the_date() -> None:
    before = datetime.now().strftime("%d %b %Y")
    text = _template("{{ strftime_now('%d %b %Y') }}").render(_USER)
    assert text in (before, datetime.now().strftime("%d %b %Y"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for m in messages %}", "cannot be compiled: .*endfor"),
        ("\n\n{% call_tool %}", "cannot be compiled: .*call_tool.* in line 3; use a model"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "cannot be compiled"),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "cannot be compiled"),
        ("{{ missing.field }}", "cannot render a single user message: 'missing' is undefined"),
        ("{{ raise_exception('no users\nhere') }}", "single user message: no users here; use"),
        ("{% include 'other' %}", "single user message"),
        ("{{ '\\ud800' }}", "single user message: .*surrogates"),
    ],
)
def test_what_cannot_be_rendered_is_refused_at_the_start(source: str, words: str) -> None:
    with pytest.raises(UnknownTemplate, match=words) as caught:
        _template(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**12) %}{% endfor %}",
        "{% for i in range(10**30) %}{% endfor %}",
        "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for j in range(90000) %}{% endfor %}{% endmacro %}{{ f() }}{{ f() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ lipsum(10**9) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ range.__self__.left }}",
        "{{ (messages | attr('__class__')).mro() }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{% set _ = messages[0].pop('role') %}",
    ],
)
def test_hostile_templates_are_stopped(source: str) -> None:
    with pytest.raises(UnknownTemplate, match="cannot render a single user message"):
        _template(source)


def test_steps_are_counted_per_rendering() -> None:
    template = _template("{% for i in range(60000) %}{% endfor %}{{ messages | length }}")
    assert [template.render(_USER) for _ in range(3)] == ["1", "1", "1"]


def test_a_refusal_is_the_callers_to_mend() -> None:
    template = _template("{% if messages | length > 1 %}{{ raise_exception('Roles must\n alternate!') }}{% endif %}")
    with pytest.raises(InvalidRequest, match=r"refuses these messages: Roles must alternate!$") as caught:
        template.render(_USER * 2)
    assert caught.value.param == "messages"


def test_a_failure_on_a_request_is_one_sentence() -> None:
    template = _template("{{ messages[0].content + 1 if messages | length > 1 else '' }}")
    with pytest.raises(InvalidRequest, match=r"cannot render these messages \(.*\); change") as caught:
        template.render(_USER * 2)
    assert caught.value.param == "messages"


def test_messages_are_not_templates() -> None:
    content = "{{ 7 * 7 }}{% for %}{{ raise_exception('x') }}"
    assert _template("{{ messages[0].content }}").render((ChatTurn(role="user", content=content),)) == content


def test_smollm2(smollm2_path: Path) -> None:
    source = GgufFile(smollm2_path).require("tokenizer.chat_template", str)
    template = ChatTemplate(source, bos_text="<|im_start|>", eos_text="<|im_end|>")
    assert template.render((ChatTurn(role="user", content="Hi"),)) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    turns = (
        ChatTurn(role="system", content="Be brief."),
        ChatTurn(role="user", content="Hi"),
        ChatTurn(role="assistant", content="Hello."),
        ChatTurn(role="user", content="Bye"),
    )
    assert template.render(turns) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
