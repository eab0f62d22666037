"""Why the engine refuses a request. Not here: wrong arguments, which are `ValueError`."""


class QueueFull(Exception):
    """As many requests wait as `max_queued_requests` allows."""


class TooLong(Exception):
    """The request could never fit the KV pool, even alone."""
