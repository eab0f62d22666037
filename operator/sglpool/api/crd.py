"""The CustomResourceDefinition, generated from the pydantic models.

pydantic speaks JSON Schema, the API server takes the structural subset of OpenAPI 3.0: this module translates one
into the other and attaches CEL rules, list keys, printer columns and the scale subresource. Not here: any field.
"""

import re
from typing import Any

from sglpool.api import names, patterns
from sglpool.api.base import Manifest, Model, Rule
from sglpool.api.pool import InferencePoolSpec
from sglpool.api.status import PENDING_STATUS, InferencePoolStatus

Schema = dict[str, Any]

_DROPPED = frozenset({"title", "examples", "additionalProperties", "$defs", "propertyNames"})

NAME_RULES = (
    Rule(
        cel=f"size(self.metadata.name) <= {names.MAX_POOL_NAME_LENGTH}",
        message=f"metadata.name is longer than {names.MAX_POOL_NAME_LENGTH} characters, and labels made from it would "
        "pass Kubernetes' limit of 63: shorten it",
        check=lambda name: len(name) <= names.MAX_POOL_NAME_LENGTH,
    ),
    Rule(
        cel=f"self.metadata.name.matches('{patterns.POOL_NAME}')",
        message="metadata.name must start with a letter, hold only a-z, 0-9 and '-', and not end with '-', because "
        "Services are named after it: rename it",
        check=lambda name: re.fullmatch(patterns.POOL_NAME, name) is not None,
    ),
)
"""Rules of the object's name; their twins take the name."""

COLUMNS = (
    ("Model", "string", ".spec.model.name", 0, "Served model name."),
    ("Ready", "string", ".status.summary.ready", 0, "Ready of wanted replicas."),
    ("Running", "integer", ".status.load.runningRequests", 0, "Requests in flight."),
    ("KV%", "integer", ".status.load.kvUtilizationPercent", 0, "KV cache in use, percent."),
    ("GPUs", "string", ".status.summary.gpus", 0, "GPUs in use by type."),
    ("Scaling", "string", ".status.summary.scaling", 0, "Why it has its size, and what moves: updates and drains."),
    ("Status", "string", '.status.conditions[?(@.type=="Ready")].reason', 0, "Reason of condition Ready."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since creation."),
    ("Endpoint", "string", ".status.endpoint", 1, "Base URL inside the cluster."),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1, "Message of condition Ready."),
)


def build_crd() -> Manifest:
    """The CRD of InferencePool as a Kubernetes manifest."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            "labels": {"app.kubernetes.io/name": "sglpool", "app.kubernetes.io/part-of": "sglpool"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["sglpool"],
                "categories": ["sglang"],
            },
            "versions": [_version()],
        },
    }


def _version() -> Manifest:
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": text}
        for name, kind, path, priority, text in COLUMNS
    ]
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": _root()},
    }


def _root() -> Schema:
    return {
        "type": "object",
        "description": "A pool of SGLang replicas that serve one model to coding agents. Not the kind of the same name "
        "in the Gateway API Inference Extension: this one is inferencepools.sglpool.io.",
        "required": ["spec"],
        "x-kubernetes-validations": [_validation(rule) for rule in NAME_RULES],
        "properties": {
            "apiVersion": {"type": "string", "description": "sglpool.io/v1alpha1"},
            "kind": {"type": "string", "description": "InferencePool"},
            "metadata": {"type": "object"},
            "spec": structural_schema(InferencePoolSpec),
            "status": {**structural_schema(InferencePoolStatus), "default": PENDING_STATUS},
        },
    }


def structural_schema(model: type[Model]) -> Schema:
    """The structural schema of a model and everything under it.

    Raises:
        TypeError: A field has a shape that a structural schema cannot express.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    definitions = document.get("$defs", {})
    classes = {model.__name__: model} | {cls.__name__: cls for cls in _subclasses(Model)}
    schema = _convert({**document, "$model": model.__name__}, definitions, classes)
    schema["description"] = document["description"]
    return schema


def _subclasses(cls: type[Model]) -> list[type[Model]]:
    return [c for sub in cls.__subclasses__() for c in (sub, *_subclasses(sub))]


def _convert(node: Schema, definitions: dict[str, Schema], classes: dict[str, type[Model]]) -> Schema:
    """Translate one node of JSON Schema."""
    node = _resolve(node, definitions)
    model = classes.get(node.pop("$model", ""))
    out: Schema = {}
    for key, value in node.items():
        match key:
            case "properties":
                out[key] = {name: _convert(child, definitions, classes) for name, child in value.items()}
            case "items":
                out[key] = _convert(value, definitions, classes)
            case "additionalProperties" if isinstance(value, dict) and value:
                out[key] = _convert(value, definitions, classes)
            case "exclusiveMinimum":
                out |= {"minimum": value, "exclusiveMinimum": True}
            case "const":
                out["enum"] = [value]
            case "prefixItems" | "oneOf" | "allOf" | "patternProperties" | "anyOf":
                raise TypeError(f"{key} has no structural form: {node}")
            case _ if key not in _DROPPED:
                out[key] = value
    _settle_default(out)
    if out.get("type") == "array":
        out |= _list_type(node["items"], definitions, classes)
    if out.get("type") == "string" and "maxLength" not in out and "enum" not in out:
        out["maxLength"] = 1024
    if model is not None and model.rules:
        out["x-kubernetes-validations"] = [_validation(rule) for rule in model.rules if rule.cel is not None]
    return out


def _resolve(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Inline `$ref` and optional types; what stands beside a reference wins over what it refers to."""
    node = dict(node)
    if "anyOf" in node:
        options = [option for option in node.pop("anyOf") if option.get("type") != "null"]
        if node.get("default", ...) is None:
            del node["default"]
        if len(options) == 1:
            return _resolve({**options[0], **node}, definitions)
        if {option.get("type") for option in options} == {"integer", "string"}:
            return {"x-kubernetes-int-or-string": True, **node}
        raise TypeError(f"a union has no structural form: {options}")
    if "$ref" in node:
        name = node.pop("$ref").rpartition("/")[2]
        return _resolve({**definitions[name], **node, "$model": name}, definitions)
    return node


def _settle_default(schema: Schema) -> None:
    """Objects default to `{}` when something inside has a default; empty lists and maps need none."""
    default = schema.get("default")
    if "properties" in schema:
        inside = any("default" in child for child in schema["properties"].values())
        if "default" in schema and inside and not schema.get("required"):
            schema["default"] = {}
        else:
            schema.pop("default", None)
    elif default in ([], {}, ()):
        schema.pop("default")


def _list_type(items: Schema, definitions: dict[str, Schema], classes: dict[str, type[Model]]) -> Schema:
    model = classes.get(_resolve(items, definitions).get("$model", ""))
    if model is None or model.list_map_key is None:
        return {"x-kubernetes-list-type": "atomic"}
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [model.list_map_key]}


def _validation(rule: Rule) -> Schema:
    out: Schema = {"rule": rule.cel, "message": rule.message}
    if rule.field_path is not None:
        out["fieldPath"] = rule.field_path
    return out
