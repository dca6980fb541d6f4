"""A PDF as pypdf sees it: form values, comments and layers, and a second opinion on the text."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import pypdf
from pypdf.errors import PyPdfError
from pypdf.generic import ArrayObject, DictionaryObject, PdfObject

from ingest.cleaning import clean_page

FAULTS = (
    PyPdfError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What pypdf is known to raise on files that break the rules. MemoryError is not among them."""

_PASSWORD_FIELD = 1 << 13
_COMMENTS = ("/FreeText", "/Text")
_DEEPEST = 20


class Structure:
    """An opened PDF. Pages are numbered from 1. Made by `open_structure`."""

    def __init__(self, reader: pypdf.PdfReader) -> None:
        self._reader = reader
        self.n_pages = len(reader.pages)

    def text(self, number: int) -> str | None:
        """The page's cleaned text, or None when pypdf cannot get at it."""
        try:
            return clean_page(self._reader.pages[number - 1].extract_text())
        except FAULTS:
            return None

    def notes(self, number: int) -> tuple[str, ...]:
        """Filled form fields ("name: value") and written comments ("note: text") of the page."""
        try:
            annotations = _resolved(self._reader.pages[number - 1].get("/Annots"))
            if not isinstance(annotations, ArrayObject):
                return ()
            notes = [_note(_resolved(annotation)) for annotation in annotations]
        except FAULTS:
            return ()
        return tuple(clean_page(note) for note in notes if note)

    def has_layers_off(self) -> bool:
        """Whether the document has optional content that is switched off when it is opened."""
        try:
            properties = _resolved(self._reader.root_object.get("/OCProperties", {}))
            default = _resolved(properties.get("/D", {}))
            return bool(_resolved(default.get("/OFF"))) or default.get("/BaseState") == "/OFF"
        except FAULTS:
            return False


def open_structure(source: Path | bytes, password: str | None) -> Structure | None:
    """The document's structure, or None when pypdf cannot make sense of it (or cannot decrypt it)."""
    try:
        reader = pypdf.PdfReader(io.BytesIO(source) if isinstance(source, bytes) else source, strict=False)
        if reader.is_encrypted and not reader.decrypt(password or ""):
            return None
        return Structure(reader)
    except FAULTS:
        return None


def _resolved(value: Any) -> Any:
    return value.get_object() if isinstance(value, PdfObject) else value


def _note(annotation: Any) -> str:
    if not isinstance(annotation, DictionaryObject):
        return ""
    subtype = annotation.get("/Subtype")
    if subtype in _COMMENTS:
        contents = str(_resolved(annotation.get("/Contents")) or "").strip()
        return f"note: {contents}" if contents else ""
    return _field(annotation) if subtype == "/Widget" else ""


def _field(widget: DictionaryObject) -> str:
    """ "name: value" of a filled form field; names and values may sit on its parents."""
    names: list[str] = []
    value, flags = None, 0
    node: Any = widget
    for _ in range(_DEEPEST):
        if not isinstance(node, DictionaryObject):
            break
        if "/T" in node:
            names.append(str(_resolved(node["/T"])))
        value = _resolved(node.get("/V")) if value is None else value
        flags |= int(_resolved(node.get("/Ff", 0)) or 0)
        node = _resolved(node.get("/Parent"))
    if flags & _PASSWORD_FIELD or value in (None, "", "/Off"):
        return ""
    texts = [str(_resolved(part)) for part in value] if isinstance(value, ArrayObject) else [str(value)]
    shown = ", ".join(text.removeprefix("/") for text in texts).strip()
    return f"{'.'.join(reversed(names))}: {shown}" if shown else ""
