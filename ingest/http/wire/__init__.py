"""Shapes of requests and answers (msgspec), a module for each kind of caller, and their encoding (`codec`).

Validation, JSON, MessagePack and the schemas of /openapi.json follow from each declaration. docs/http-api.md explains
them.
"""
