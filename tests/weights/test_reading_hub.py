"""Downloads from the Hub, with a fake package instead of a network."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from convoy.errors import ConfigError, DataError
from convoy.weights.reading import download_from_hub, is_hub_address, published_address


class FakeHub(ModuleType):
    """A fake package that records its requests."""

    def __init__(self, cached: bool, error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.cached, self.error = cached, error
        self.requests: list[tuple[Any, ...]] = []

    def hf_hub_download(self, repo: str, file: str, **options: Any) -> str:
        self.requests.append(
            (repo, file, options["revision"], options.get("local_files_only", False))
        )
        if options.get("local_files_only") and not self.cached:
            raise FileNotFoundError("not cached")
        if self.error is not None:
            raise self.error
        return f"/cache/{repo}/{file}"


def install(monkeypatch: pytest.MonkeyPatch, hub: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_a_hub_address_is_not_a_path() -> None:
    assert (
        is_hub_address("hf:timm/resnet50")
        and not is_hub_address("hf/timm")
        and not is_hub_address("./hf:x")
    )


def test_only_safetensors_are_downloaded_and_the_cache_is_tried_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached, remote = FakeHub(cached=True), FakeHub(cached=False)
    install(monkeypatch, cached)
    found = download_from_hub("hf:timm/resnet50.tv_in1k@v1")
    install(monkeypatch, remote)
    fetched = download_from_hub("hf:timm/resnet50.tv_in1k")

    assert found == Path("/cache/timm/resnet50.tv_in1k/model.safetensors") == fetched
    assert cached.requests == [("timm/resnet50.tv_in1k", "model.safetensors", "v1", True)]
    assert [request[2:] for request in remote.requests] == [(None, True), (None, False)]


def test_the_extra_to_install_is_named_if_the_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, None)

    with pytest.raises(
        ConfigError, match=r"needs huggingface_hub: pip install 'convoy-cnn\[hub\]'"
    ):
        download_from_hub("hf:timm/resnet50.tv_in1k")


class LocalEntryNotFoundError(Exception):
    """The error class of the package."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LocalEntryNotFoundError("long\nlines"), "the Hub cannot be reached, and the file is not"),
        (ValueError("404 Client Error.\nmore"), "404 Client Error; go online once"),
        (OSError(), "OSError; go online"),
    ],
)
def test_the_error_without_a_network_is_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    install(monkeypatch, FakeHub(cached=False, error=error))

    with pytest.raises(DataError) as caught:
        download_from_hub("hf:timm/resnet50.tv_in1k")

    assert reason in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["hf:", "hf:timm", "hf:../../etc/passwd", "hf:a/b/c", "hf:a/b@"]
)
def test_an_invalid_address_is_refused_before_any_request(address: str) -> None:
    with pytest.raises(ConfigError, match="use hf:OWNER/NAME"):
        download_from_hub(address)


def test_published_weights_have_an_address_and_others_are_an_error() -> None:
    assert published_address("resnet50") == "hf:timm/resnet50.tv_in1k"
    with pytest.raises(ConfigError, match=r"no published weights for resnet8, only for"):
        published_address("resnet8")


def test_every_published_network_is_a_known_model() -> None:
    from convoy.config.sections.network import MODELS
    from convoy.weights.reading import _PUBLISHED_WEIGHTS

    assert [name for name in _PUBLISHED_WEIGHTS if name not in MODELS] == []
