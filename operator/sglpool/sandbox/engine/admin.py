"""Everything but generation: probes, models, tokens, caches, aborts, and the reports of the telemetry.

Not here: what the reports say (loads.py, metrics.py, server_info.py), and when the server is healthy (lifecycle.py).
"""

from __future__ import annotations

import time
from array import array
from typing import Any

from sglpool.sandbox.engine import loads, metrics, server_info
from sglpool.sandbox.engine.clock import ModelClock
from sglpool.sandbox.engine.driver import Driver
from sglpool.sandbox.engine.errors import ApiError, invalid, missing
from sglpool.sandbox.engine.filler import TOKEN_BYTES
from sglpool.sandbox.engine.http import TEXT, Exchange, Router
from sglpool.sandbox.engine.lifecycle import Lifecycle
from sglpool.sandbox.engine.spec import Spec
from sglpool.sandbox.engine.telemetry import Telemetry

_FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Admin:
    """The endpoints."""

    def __init__(
        self, spec: Spec, clock: ModelClock, driver: Driver, telemetry: Telemetry, lifecycle: Lifecycle
    ) -> None:
        """Report on and control one engine."""
        self._spec = spec
        self._clock = clock
        self._driver = driver
        self._telemetry = telemetry
        self._lifecycle = lifecycle
        self._created = int(time.time())

    def add_to(self, router: Router) -> None:
        """Serve the endpoints under their paths."""
        router.add("/health", self._health, "GET")
        router.add("/health_generate", self._health_generate, "GET")
        router.add("/ready", self._ready, "GET")
        router.add("/ping", self._ping, "GET")
        router.add("/v1/models", self._models, "GET")
        router.add("/v1/models/", self._model, "GET")
        router.add("/model_info /get_model_info", self._model_info, "GET")
        router.add("/tokenize /v1/tokenize", self._tokenize, "POST")
        router.add("/v1/loads", self._loads, "GET")
        router.add("/server_info /get_server_info", self._server_info, "GET")
        router.add("/flush_cache", self._flush, "GET", "POST", admin=True)
        router.add("/abort_request", self._abort, "POST", admin=True)
        if self._spec.args.get("enable_metrics"):
            router.add("/metrics /metrics/", self._metrics, "GET")

    async def _health(self, exchange: Exchange) -> None:
        await exchange.reply(200 if await self._lifecycle.healthy(generate=False) else 503)

    async def _health_generate(self, exchange: Exchange) -> None:
        await exchange.reply(200 if await self._lifecycle.healthy(generate=True) else 503)

    async def _ready(self, exchange: Exchange) -> None:
        await exchange.reply(200 if self._lifecycle.ready() else 503)

    async def _ping(self, exchange: Exchange) -> None:
        await exchange.reply(200)

    def _card(self) -> dict[str, Any]:
        name = self._spec.served_model_name
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._spec.context_length_tokens,
        }

    async def _models(self, exchange: Exchange) -> None:
        await exchange.reply_json({"object": "list", "data": [self._card()]})

    async def _model(self, exchange: Exchange) -> None:
        if exchange.tail == self._spec.served_model_name:
            await exchange.reply_json(self._card())
            return
        message = f"The model '{exchange.tail}' does not exist"
        error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        await exchange.reply_json({"error": error}, 404)

    async def _model_info(self, exchange: Exchange) -> None:
        args = self._spec.args
        await exchange.reply_json(
            {
                "model_path": args.get("model_path"),
                "tokenizer_path": args.get("tokenizer_path") or args.get("model_path"),
                "is_generation": True,
                "preferred_sampling_params": args.get("preferred_sampling_params"),
                "weight_version": args.get("weight_version") or "default",
                "has_image_understanding": self._spec.vision,
                "has_audio_understanding": False,
                "model_type": None,
                "architectures": [self._spec.architecture],
            }
        )

    async def _tokenize(self, exchange: Exchange) -> None:
        prompt = (await exchange.json()).get("prompt")
        if prompt is None:
            raise missing("prompt")
        limit = self._spec.context_length_tokens
        if isinstance(prompt, str):
            tokens = _token_ids(prompt)
            await exchange.reply_json({"tokens": tokens, "count": len(tokens), "max_model_len": limit})
            return
        if not isinstance(prompt, list) or not all(isinstance(text, str) for text in prompt):
            raise invalid("prompt", "Input should be a valid string or a list of strings", "string_type")
        lists = [_token_ids(text) for text in prompt]
        counts = [len(tokens) for tokens in lists]
        await exchange.reply_json({"tokens": lists, "count": counts, "max_model_len": limit})

    async def _loads(self, exchange: Exchange) -> None:
        began_s = time.perf_counter()
        self._driver.catch_up()
        now_s = self._clock.now_s()
        status, media_type, data = loads.answer(
            self._spec,
            self._driver.engine,
            self._telemetry,
            exchange.query(),
            now_s=now_s,
            unix_s=self._clock.unix_s(now_s),
        )
        self._telemetry.on_loads(time.perf_counter() - began_s)
        await exchange.reply(status, data, media_type.encode())

    async def _server_info(self, exchange: Exchange) -> None:
        simulation = {
            "simulated": True,
            "speed": self._clock.speed,
            "lag_s": round(self._driver.lag_s(), 6),
            "model_time_s": round(self._clock.now_s(), 3),
        }
        await exchange.reply(200, server_info.body(self._spec, self._telemetry, simulation))

    async def _metrics(self, exchange: Exchange) -> None:
        self._driver.catch_up()
        await exchange.reply(200, self._telemetry.text(self._clock.now_s()), metrics.CONTENT_TYPE.encode())

    async def _flush(self, exchange: Exchange) -> None:
        await exchange.reply(200 if self._driver.flush() else 400, _FLUSHED, TEXT)

    async def _abort(self, exchange: Exchange) -> None:
        body = await exchange.json()
        rid = body.get("rid", "")
        if not isinstance(rid, str):
            raise invalid("rid", "Input should be a valid string", "string_type")
        if body.get("abort_all") is True:
            self._driver.abort_all()
        elif rid:
            # SGLang ends every request whose id begins so.
            self._driver.abort_prefix(rid)
        else:
            raise ApiError(400, "abort_request needs rid, or abort_all.")
        await exchange.reply(200)


def _token_ids(text: str) -> list[int]:
    """Four bytes a token, the last one filled up with zeros."""
    data = text.encode("utf-8", "surrogatepass")
    return array("I", data + bytes(-len(data) % TOKEN_BYTES)).tolist()
