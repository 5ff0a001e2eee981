"""Which store an address means, and what is said of one that means none."""

import pickle
from pathlib import Path

import pytest

from deployments.messages.errors import ConfigError
from serve_app.gating.file_store import FileStore
from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.redis_link import TlsFiles
from serve_app.gating.redis_store import RedisStore
from tests.serve_app.gating.making import exactness


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_a_file(tmp_path: Path, form: str) -> None:
    store = open_store(StoreSettings(url=form.format(tmp_path / "new folder" / "gates.yaml")))
    assert isinstance(store, FileStore)
    store.put(exactness())
    assert (tmp_path / "new folder" / "gates.yaml").is_file()


def test_a_file_beside_the_process_and_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    open_store(StoreSettings(url="file:gates.yaml")).put(exactness())
    open_store(StoreSettings(url="file:~/gates.yaml")).put(exactness())
    assert (tmp_path / "gates.yaml").is_file()
    assert (tmp_path / "home" / "gates.yaml").is_file()


def test_settings_travel_to_replicas_and_show_no_secret() -> None:
    settings = StoreSettings(url="redis://u:swordfish@h", password="swordfish", tls=TlsFiles(ca_file="ca"))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "swordfish" not in repr(settings)


@pytest.mark.parametrize("url", ["redis://host", "redis://u:p@[::1]:7000/3", "redis://host/"])
def test_a_redis(url: str) -> None:
    store = open_store(StoreSettings(url=url))
    assert isinstance(store, RedisStore)
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gates.yaml",
        "file:",
        "file://",
        "file://host/path",
        "file:a\0b",
        "http://host",
        "redis:host",
        "redis://",
        "redis://:swordfish@:6379",
        "redis://u:swordfish@host:port",
        "redis://u:swordfish@host/db",
        "redis://u:swordfish@host/-1",
        "redis://u:swordfish@host/0?ssl_cert_reqs=none",
    ],
)
def test_an_address_that_means_nothing(url: str) -> None:
    with pytest.raises(ConfigError, match="a gate store") as told:
        open_store(StoreSettings(url=url))
    assert "swordfish" not in str(told.value)


def test_certificates_without_tls_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="write rediss://"):
        open_store(StoreSettings(url="redis://host", tls=TlsFiles(ca_file="ca.crt")))
