"""Media types (JSON, MessagePack), and requests and answers as bytes in either."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from ingest.errors import InvalidRequest, UnsupportedMedia
from ingest.http.wire.sealed_halves import as_json, as_msgpack

T = TypeVar("T")
JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
_decoders: dict[tuple[Any, bool], Any] = {}


def media_type(content_type: bytes | None) -> str:
    """JSON or MSGPACK; UnsupportedMedia for anything else. Without a Content-Type it is JSON."""
    if content_type is None or content_type == b"application/json":
        return JSON
    bare = content_type.split(b";", 1)[0].strip().lower()
    if bare == b"application/json":
        return JSON
    if bare in (b"application/msgpack", b"application/x-msgpack", b"application/vnd.msgpack"):
        return MSGPACK
    raise UnsupportedMedia(f"Content-Type: {bare[:64].decode('latin-1')!r} is not understood; send {JSON} or {MSGPACK}")


def accepted_media(accept: bytes | None, otherwise: str) -> str:
    """What the answer is to be in. Problems are JSON always."""
    if accept is None or accept == b"*/*":
        return otherwise
    if b"msgpack" in accept:
        return MSGPACK
    return JSON if b"json" in accept else otherwise


_json_encoder, _msgpack_encoder = msgspec.json.Encoder(enc_hook=as_json), msgspec.msgpack.Encoder(enc_hook=as_msgpack)


def encode(answer: Any, media: str) -> bytes:
    return _json_encoder.encode(answer) if media == JSON else _msgpack_encoder.encode(answer)


def decode(content: bytes, media: str, shape: type[T]) -> T:
    """The request; InvalidRequest names the field that is wrong."""
    key = (shape, media == JSON)
    decoder = _decoders.get(key)
    if decoder is None:
        module: Any = msgspec.json if media == JSON else msgspec.msgpack
        decoder = _decoders[key] = module.Decoder(shape)
    try:
        found: T = decoder.decode(content)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not {'JSON in UTF-8' if media == JSON else 'msgpack'}: {error}", "body") from None
    return found


def convert(values: Mapping[str, Any], shape: type[T]) -> T:
    """The parameters of a query: texts, where numbers are wanted too."""
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None


_WHERE: Final = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD_OF: Final = re.compile(r"^Object (?:missing required|contains unknown) field `(?P<name>[^`]*)`")


def _invalid(error: msgspec.ValidationError) -> InvalidRequest:
    found = _WHERE.match(str(error))
    text, path = (found["text"], found["path"] or "") if found else (str(error), "")
    named = _FIELD_OF.match(text)
    if named is not None:
        path = f"{path}.{named['name']}".lstrip(".")
        text = "is missing" if "missing" in text else "there is no such field"
    field = path.replace("[...]", "")
    return InvalidRequest(f"{field or 'body'}: {text[0].lower()}{text[1:]}", field or "body")
