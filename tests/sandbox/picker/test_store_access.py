"""A store that wants a password, or TLS: who has the right ones gets in, who has not says why and serves on."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sglpool.picker.ledger import Ledger
from sglpool.picker.metrics import Metrics
from sglpool.picker.store import ValkeyStore, connect
from sglpool.routing.types import PolicyConfig
from support.certificates import write_certificate
from support.store_process import StoreProcess

PASSWORD = "correct horse: battery@staple/%41"
"""With everything in it that a URL would have to quote."""

PATIENCE_S = 5.0
"""A busy machine is not a store that is away."""


class Access:
    """A router's store, at work."""

    def __init__(self, url: str, password_file: Path | None, ca_file: Path | None) -> None:
        self._metrics = Metrics()
        self.store = ValkeyStore(
            connect(url, password_file, ca_file=ca_file, limit_s=PATIENCE_S),
            pool_uid="p",
            router="one",
            siblings=lambda: [],
            ledger=Ledger(PolicyConfig(), self._metrics, random.Random(1), time.time),
            metrics=self._metrics,
            write_limit_s=PATIENCE_S,
        )

    async def opens(self) -> bool:
        """Whether it gets in, sooner or later."""
        return await self._until(lambda: self.store.available)

    async def refused(self) -> bool:
        """Whether its first attempt has failed."""
        return await self._until(lambda: self._errors() > 0 or self.store.available) and not self.store.available

    def _errors(self) -> float:
        return self._metrics.registry.get_sample_value("sglpool_router_store_errors_total") or 0.0

    async def _until(self, check: Callable[[], bool]) -> bool:
        for _ in range(1500):
            if check():
                return True
            await asyncio.sleep(0.01)
        return False


@asynccontextmanager
async def running(url: str, password_file: Path | None, ca_file: Path | None = None) -> AsyncIterator[Access]:
    access = Access(url, password_file, ca_file)
    task = asyncio.ensure_future(access.store.run())
    try:
        yield access
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    """As a mounted Secret has it: values often end in a newline."""
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return path


def put(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What the picker has logged since the last question."""
    caplog.set_level(logging.INFO, "sglpool.picker")

    def since_last() -> str:
        text = caplog.text.lower()
        caplog.clear()
        return text

    return since_last


async def test_the_right_password_opens_and_a_wrong_one_is_told(password_file: Path, said: Callable[[], str]) -> None:
    with StoreProcess(password=PASSWORD) as server:
        async with running(server.url, password_file) as access:
            assert await access.opens()
        said()
        async with running(server.url, None) as access:
            assert await access.refused()
        assert "auth" in said()
        put(password_file, "guess")
        async with running(server.url, password_file) as access:
            assert await access.refused()
            told = said()
            assert "wrongpass" in told or "invalid username-password" in told, told
            assert told.count("store: ") == 1, "once, not every second"
            put(password_file, PASSWORD)
            assert await access.opens(), "a Secret that was corrected needs no restart"


async def test_a_password_that_is_not_there_is_told(tmp_path: Path, said: Callable[[], str]) -> None:
    with StoreProcess(password=PASSWORD) as server:
        async with running(server.url, tmp_path / "nothing") as access:
            assert await access.refused()
    assert "no such file" in said()


async def test_tls_is_spoken_with_whom_the_system_trusts_and_with_nobody_else(
    tmp_path: Path, password_file: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    write_certificate(tmp_path / "tls")
    with StoreProcess(password=PASSWORD, tls_dir=tmp_path / "tls") as server:
        async with running(server.url, password_file) as access:
            assert await access.refused(), "a certificate that nobody signed"
        assert "certificate" in said()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls" / "tls.crt"))
        async with running(server.url, password_file) as access:
            assert await access.opens()
        monkeypatch.delenv("SSL_CERT_FILE")
        ca_file = tmp_path / "tls" / "tls.crt"
        async with running(server.url, password_file, ca_file) as access:
            assert await access.opens(), "a CA of the pool's own"
        async with running(server.url.replace("localhost", "127.0.0.1"), password_file, ca_file) as access:
            assert await access.refused(), "a certificate of somebody else's name"
        async with running(server.url.replace("rediss", "redis"), password_file) as access:
            assert await access.refused(), "plain text to a port of TLS"


async def test_connections_share_what_costs_time_to_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls.crt"))
    made = []
    real = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda *args, **more: made.append(1) or real(*args, **more))
    with StoreProcess(tls_dir=tmp_path) as server:
        client = connect(server.url, None, limit_s=PATIENCE_S)
        assert await asyncio.gather(*[client.ping() for _ in range(4)]) == [True] * 4
        await client.aclose()
    assert len(made) == 1, "every CA of the system is read once"


async def test_a_ca_that_was_replaced_needs_no_restart(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    ca_file = tmp_path / "tls.crt"
    with StoreProcess(tls_dir=tmp_path) as server:
        client = connect(server.url, None, ca_file=ca_file, limit_s=PATIENCE_S)
        assert await client.ping()
        server.kill()
        write_certificate(tmp_path)
        server.start()
        await client.connection_pool.disconnect()
        assert await client.ping()
        await client.aclose()
