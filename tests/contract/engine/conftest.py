"""Engines that several tests share, where a test only reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.engine_process import EngineProcess


@pytest.fixture(scope="module")
def idle_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One engine that is ready; its tests leave it idle."""
    with EngineProcess(tmp_path_factory.mktemp("idle"), "--max-running-requests", "8", speed=100) as engine:
        yield engine.wait_ready()
