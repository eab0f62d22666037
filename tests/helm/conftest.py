"""The chart, rendered by real helm: version 3 and version 4."""

from __future__ import annotations

from typing import Any

import pytest

from support.helm import Helm, helm_binary

Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="session", params=[3, 4], ids=["helm3", "helm4"])
def helm(request: pytest.FixtureRequest) -> Helm:
    """Each helm."""
    return Helm(helm_binary(request.param))


@pytest.fixture(scope="session")
def helm4() -> Helm:
    """One of them, for what does not depend on helm."""
    return Helm(helm_binary(4))
