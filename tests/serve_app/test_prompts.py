import pytest

from deployments.messages.errors import ConfigError
from serve_app.prompts import PROMPT_SETS, load_prompts


@pytest.mark.parametrize(("name", "size", "sorts"), [("mt_bench", 80, 8), ("copy", 20, 10), ("quick", 40, 18)])
def test_sets_are_whole_and_named_apart(name: str, size: int, sorts: int) -> None:
    prompts = load_prompts(name)
    assert len(prompts) == size
    assert len({prompt.name for prompt in prompts}) == size
    assert len({prompt.category for prompt in prompts}) == sorts
    assert all(prompt.text.strip() for prompt in prompts)


def test_quick_has_twenty_of_each() -> None:
    names = [prompt.name.rsplit("-", 1)[0] for prompt in load_prompts("quick")]
    assert names == ["mt_bench"] * 20 + ["copy"] * 20


def test_an_unknown_set_is_refused_with_the_names() -> None:
    with pytest.raises(ConfigError, match=", ".join(PROMPT_SETS)):
        load_prompts("mtbench")
