"""Reads the YAML files of a user, as strictly as kubectl reads them.

One value per document, ready for JSON: keys are texts, a date stays the text it was, a key that stands twice is an
error. Not here: whether a document is a pool (`api.validate`).
"""

import json
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

STDIN = "-"


class UnreadableFile(Exception):
    """A file that cannot be read as YAML.

    Attributes:
        source: What to call the file.
        where: Line and column, empty when the whole file is meant.
    """

    def __init__(self, source: str, where: str, message: str) -> None:
        super().__init__(message)
        self.source = source
        self.where = where


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document.

    Attributes:
        source: The file, and which of its documents when it holds several.
        content: Its content as JSON data.
    """

    source: str
    content: object


def read_documents(path: str) -> tuple[Document, ...]:
    """Every document of a file that is not empty.

    Args:
        path: Path of the file, or `-` for standard input.

    Raises:
        UnreadableFile: The file is not there, not UTF-8 or not YAML, or it has no document.
    """
    source = "standard input" if path == STDIN else path
    text = _read(path, source)
    found = [content for content in _parse(text, source) if content is not None]
    if not found:
        raise UnreadableFile(source, "", "is empty: write an InferencePool into it")
    many = len(found) > 1
    return tuple(
        Document(f"{source} (document {number})" if many else source, content)
        for number, content in enumerate(found, start=1)
    )


def _read(path: str, source: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableFile(source, "", f"is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise UnreadableFile(source, "", f"cannot be read: {error.strerror or error}") from None


def _parse(text: str, source: str) -> Iterator[object]:
    try:
        for content in yaml.load_all(text, Loader=_Loader):
            # What JSON cannot hold, the API server cannot take.
            json.dumps(content, allow_nan=False)
            yield content
    except yaml.MarkedYAMLError as error:
        raise UnreadableFile(source, _where(error), _sentence(error)) from None
    except yaml.YAMLError as error:
        raise UnreadableFile(source, "", f"is not YAML: {error}".splitlines()[0]) from None
    except (ValueError, RecursionError):
        message = "holds an infinite number or an alias to itself, which JSON cannot: remove it"
        raise UnreadableFile(source, "", message) from None


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""


_REMEDIES = (
    ("'\\t'", "indent with spaces, not tabs"),
    ("mapping values are not allowed", "check the indentation, and quote texts that hold ': '"),
    ("expected <block end>", "check the indentation of this line and the one above"),
    ("could not find expected ':'", "a key needs a colon and a space after it"),
    ("found unexpected end of stream", "close the quote or bracket that was opened before"),
    ("found unknown escape character", "write such texts in single quotes"),
)


def _sentence(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "unreadable"
    remedy = next((text for words, text in _REMEDIES if words in problem), "")
    return f"not valid YAML: {problem}{f': {remedy}' if remedy else ''}"


class _Loader(yaml.SafeLoader):
    """YAML as kubectl turns it into JSON."""

    # Without dates: JSON has none, and 2026-01-31 in a label is a text.
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """A map whose keys are texts; refuses a key that stands twice, of which PyYAML would take the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value!r} stands twice: remove one of the two", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return {_text(key): value for key, value in super().construct_mapping(node, deep=deep).items()}


def _text(key: Hashable) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
