"""Bearer tokens out of Secrets, kept for a minute: a rotated one is found soon, and no tick reads a Secret twice.

Never logged, never shown, never in an error. Not here: whom a token is shown to (`prometheus`).
"""

import base64
import binascii
from collections.abc import Callable
from time import monotonic

from sglpool.kube import Forbidden, KubeError, KubePort, NotFound
from sglpool.kube.resources import SECRETS
from sglpool.signals.fields import Unreadable

KEEP_S = 60.0
MAX_KEPT = 1000

_Place = tuple[str, str, str]


class Tokens:
    """Reads tokens.

    Args:
        kube: The API server.
        clock: Monotonic seconds.
    """

    def __init__(self, kube: KubePort, *, clock: Callable[[], float] = monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._kept: dict[_Place, tuple[float, str]] = {}

    async def read(self, namespace: str, name: str, key: str) -> str:
        """The token in one key of a Secret.

        Raises:
            Unreadable: There is no such Secret or key, it holds no token, or the operator may not read it.
        """
        place, now_s = (namespace, name, key), self._clock()
        kept = self._kept.get(place)
        if kept is not None and now_s - kept[0] < KEEP_S:
            return kept[1]
        token = await self._ask(namespace, name, key)
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[place] = (now_s, token)
        return token

    async def _ask(self, namespace: str, name: str, key: str) -> str:
        try:
            secret = await self._kube.get(SECRETS, namespace=namespace, name=name)
        except NotFound:
            raise Unreadable(f"needs Secret {name}, which does not exist: create it") from None
        except Forbidden:
            raise Unreadable(f"needs Secret {name}, which the operator may not read: grant it get on it") from None
        except KubeError as error:
            raise Unreadable(f"needs Secret {name}, which cannot be read now: status {error.code}") from None
        coded = (secret.get("data") or {}).get(key)
        if coded is None:
            raise Unreadable(f"needs key {key} of Secret {name}, which it does not have: add it")
        try:
            token = base64.b64decode(coded, validate=True).decode("ascii").strip()
        except (binascii.Error, ValueError, TypeError):
            token = ""
        if not token.isprintable() or not token:
            raise Unreadable(f"needs key {key} of Secret {name}, which holds no token: correct it")
        return token
