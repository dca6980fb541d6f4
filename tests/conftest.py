"""What the whole suite shares: the starter model, and no silent skip of a browser test in CI."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # waiting threads of one test hold up no other; read when torch is imported

from runtime.errors import ModelDamaged, ModelNotFound
from runtime.models.sources import default_cache_dir, locate


@pytest.fixture(scope="session")
def starter_path() -> Path:
    """The starter model's GGUF file in the user's cache. Never fetched here: no test touches the network."""
    try:
        return locate("starter", default_cache_dir(), allow_download=False, progress=lambda _: None).path
    except (ModelNotFound, ModelDamaged):
        reason = "the starter model is not in the cache; `python launch.py test` fetches it first"
        if in_ci():
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a browser test that is skipped has failed: there Chromium is promised."""
    report = yield
    if report.skipped and in_ci() and item.get_closest_marker("browser") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a browser test must not be skipped in CI: {call.excinfo}"
    return report


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")
