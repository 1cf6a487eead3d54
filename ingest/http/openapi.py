"""OpenAPI 3.1, made from the table of routes and the shapes in wire/. A test keeps `docs/openapi.json` equal to it."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from ingest.http.app import Route
from ingest.http.problems import Problem
from ingest.http.wire import codec

_REF: Final = "#/components/schemas/{name}"
_INTRODUCTION: Final = (
    "Send a half, run your local transaction, say how it ended. "
    "Errors are problem+json: `code` is stable, `field` names what is wrong."
)


@lru_cache(maxsize=4)
def document(routes: tuple[Route, ...]) -> bytes:
    """The document as JSON text, ending in a newline."""
    routes = tuple(route for route in routes if not route.hidden)
    shapes = [shape for route in routes for shape in (route.answer, route.body, route.query) if shape is not None]
    schemas, components = msgspec.json.schema_components([*shapes, Problem], ref_template=_REF)
    at = iter(schemas)
    paths: dict[str, Any] = {}
    for route in routes:
        found = {name: next(at) if getattr(route, name) is not None else None for name in ("answer", "body", "query")}
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, found, components)
    content = {
        "openapi": "3.1.0",
        "info": {
            "title": "Escrow",
            "version": version("escrow-mq-server"),
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in sorted(components.items()) if not name.endswith("Query")},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _operation(route: Route, found: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    media = (codec.JSON, codec.MSGPACK) if route.path.startswith("/v1/") and route.media == codec.JSON else (route.media,)
    schema = found["answer"] or {"type": "string"}
    responses: dict[str, Any] = {
        "200": {"description": "OK", "content": {each: {"schema": schema} for each in media}},
    }
    for status in sorted({*route.problems, *((401, 403) if route.role else ())}):
        problem = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": problem}
    operation: dict[str, Any] = {"summary": route.summary, "operationId": _id_of(route), "responses": responses}
    if route.role:
        operation["description"] = f"Role: {route.role}."
        operation["security"] = [{}, {"token": []}]
    parameters = [*_path_parameters(route), *_query_parameters(found["query"], components)]
    if parameters:
        operation["parameters"] = parameters
    if found["body"] is not None:
        operation["requestBody"] = {"required": True, "content": {each: {"schema": found["body"]} for each in media}}
    return operation


def _id_of(route: Route) -> str:
    words = [word.strip("{}") for word in route.path.replace(".", "_").replace("-", "_").split("/") if word and word != "v1"]
    return "_".join([route.method.lower(), *words])


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": segment[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for segment in route.segments
        if segment.startswith("{")
    ]


def _query_parameters(query: Any, components: dict[str, Any]) -> list[dict[str, Any]]:
    if query is None:
        return []
    schema = components[query["$ref"].rsplit("/", 1)[1]]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each} for name, each in schema["properties"].items()
    ]
