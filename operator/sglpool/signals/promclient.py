"""A query to a Prometheus through prometheus-api-client, with the limits that the library lacks.

It blocks. The library bounds each read of the socket but neither the whole answer nor its length, and would follow a
redirect or a proxy of the environment. Not here: what is asked (`prometheus`).
"""

import time
from collections.abc import Mapping
from typing import Any

from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests import RequestException, Response, Session
from requests.exceptions import JSONDecodeError
from urllib3.util.retry import Retry

from sglpool.signals.fields import Unreadable
from sglpool.signals.reading import PrometheusAt

MAX_ANSWER_BYTES = 8 * 2**20


class BoundedSession(Session):  # type: ignore[misc]
    """A session whose requests end in time, whatever the other side does.

    Args:
        limit_s: Longest time for a request, its whole answer included.
    """

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.trust_env = False
        self._limit_s = limit_s

    def request(self, method: str, url: str, **kwargs: Any) -> Response:
        """Send a request and read its answer.

        Raises:
            RequestException: No answer, or not all of it in time, or too long an answer.
        """
        until_s = time.monotonic() + self._limit_s
        kwargs |= {"timeout": self._limit_s, "stream": True, "allow_redirects": False}
        response = super().request(method, url, **kwargs)
        body = b""
        for piece in response.iter_content(64 * 1024):
            body += piece
            if len(body) > MAX_ANSWER_BYTES or time.monotonic() > until_s:
                response.close()
                raise RequestException("its answer takes too long")
        response._content = body
        return response


def query(prometheus: PrometheusAt, promql: str, limit_s: float) -> list[Mapping[str, Any]]:
    """The series of an answer.

    Args:
        prometheus: Whom to ask.
        promql: The query.
        limit_s: Longest wait.

    Raises:
        Unreadable: No answer, a refusal, or something that is not Prometheus' answer.
    """
    headers = {"Authorization": f"Bearer {prometheus.token}"} if prometheus.token else {}
    with BoundedSession(limit_s) as session:
        client = PrometheusConnect(
            url=prometheus.url.rstrip("/"), headers=headers, session=session, retry=Retry(total=0), timeout=limit_s
        )
        try:
            series = client.custom_query(promql)
        except PrometheusApiClientException as problem:
            # Without the body: whoever names a URL in a pool must not read in status what the operator alone can reach.
            raise Unreadable(f"refuses: {str(problem).partition(' (')[0]}") from None
        except (JSONDecodeError, KeyError, TypeError):
            raise Unreadable("answers something that is not Prometheus' JSON") from None
        except (RequestException, ValueError) as problem:
            raise Unreadable(f"cannot be asked: {type(problem).__name__}") from None
    if not isinstance(series, list) or not all(isinstance(one, dict) for one in series):
        raise Unreadable("answers something that is not Prometheus' JSON")
    return series
