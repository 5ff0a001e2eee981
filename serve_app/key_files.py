"""API keys from a file and from the environment."""

import os
from pathlib import Path

from deployments.messages.errors import ConfigError


def read_keys(*, file: str, env: str, what: str) -> tuple[str, ...]:
    """All keys that the two hold; none where neither is named.

    Args:
        file: with one key per line; empty for none.
        env: the name of a variable with keys separated by commas; empty for none.
        what: whose keys, for sentences.

    Raises:
        ConfigError: they cannot be read, or there are none in what is named.
    """
    keys: list[str] = []
    if file:
        try:
            keys += Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the {what} keys in {file} cannot be read: {error}") from error
    if env:
        if env not in os.environ:
            raise ConfigError(f"the environment variable {env}, which should hold {what} keys, is not set")
        keys += os.environ[env].split(",")
    wanted = tuple(key.strip() for key in keys if key.strip())
    if not wanted and (file or env):
        raise ConfigError(f"{what} keys were asked for but none was found; put one key per line in the file")
    return wanted
