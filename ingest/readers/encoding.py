"""Bytes to text: which encoding, and what was lost. Pure functions of bytes."""

import codecs
import re
from dataclasses import dataclass

import charset_normalizer

from ingest.document import Flag

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # Before UTF-16: its mark starts with that of UTF-16.
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BINARY_STARTS = (
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"7z\xbc\xaf",
    b"\x28\xb5\x2f\xfd",
    b"\x7fELF",
    b"MZ\x90",
    b"\xca\xfe\xba\xbe",
    b"\xcf\xfa\xed\xfe",
    b"\x00asm",
    b"\xd0\xcf\x11\xe0",
)
_CONTROLS = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
_MOST_CONTROLS = 0.02
_MOST_NULS = 0.05
_DETECTOR_BYTES = 256 * 1024
# What cp1252 text in the languages of western Europe uses above ASCII.
_WESTERN = frozenset("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØŒÙÚÛÜßàáâãäåæçèéêëìíîïñòóôõöøœùúûüÿ€£§°«»¡¿©®·–—‘’“”„…•ªº±²µ \xa0")
_MOST_ACCENTS = 0.3
_NON_ASCII = re.compile(rb"[\x80-\xff]")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text and the encoding it was in. Flags name no pages and no file: the caller knows them."""

    text: str
    encoding: str
    flags: tuple[Flag, ...] = ()


def decode(data: bytes) -> Decoded | None:
    """`data` as text, or None when it is binary. A byte order mark is no part of the text.

    Strict UTF-8 is tried before any guess: detectors take valid UTF-8 for code pages. A guess, a removed NUL
    and bytes shown as U+FFFD are each told by a flag.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _lenient(data[len(mark) :], encoding)
    if data.startswith(_BINARY_STARTS):
        return None
    if b"\0" in data:
        return _wide(data) or _without_nuls(data)
    if len(_CONTROLS.findall(data)) > _MOST_CONTROLS * len(data):
        return None
    try:
        return Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return _guessed(data)


def _lenient(data: bytes, encoding: str) -> Decoded:
    try:
        return Decoded(data.decode(encoding), encoding)
    except UnicodeDecodeError:
        return _replaced(data, encoding)


def _replaced(data: bytes, encoding: str) -> Decoded:
    text = data.decode(encoding, "replace")
    return Decoded(text, encoding, (Flag("replaced", detail=f"invalid {encoding}"),))


def _wide(data: bytes) -> Decoded | None:
    """UTF-16 without a mark, told by every second byte of ASCII text being zero."""
    even, odd = data[::2], data[1::2]
    for encoding, zeros, letters in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros.count(0) > 0.4 * len(zeros) and letters.count(0) < 0.02 * len(letters):
            try:
                return Decoded(data.decode(encoding), encoding, (Flag("decoded_as", detail=encoding),))
            except UnicodeDecodeError:
                return None
    return None


def _without_nuls(data: bytes) -> Decoded | None:
    """Text with a stray NUL or two in it."""
    n_nuls = data.count(0)
    if n_nuls > _MOST_NULS * len(data) or _CONTROLS.search(data):
        return None
    try:
        text = data.replace(b"\0", b"").decode("utf-8")
    except UnicodeDecodeError:
        return None
    return Decoded(text, "utf-8", (Flag("nul_removed", detail=f"{n_nuls:,}"),))


def _guessed(data: bytes) -> Decoded | None:
    replaced = data.decode("utf-8", "replace")
    n_lost = replaced.count("\ufffd")
    n_valid = sum(character > "\x7f" for character in replaced) - n_lost
    if n_valid > 4 * n_lost:
        return _replaced(data, "utf-8")
    western = _western(data)
    if western is not None:
        return western
    match = charset_normalizer.from_bytes(data[:_DETECTOR_BYTES]).best()
    if match is None:
        # Mostly ASCII with a few bytes that are nothing: better shown than dropped.
        return _replaced(data, "utf-8") if n_lost < 0.02 * len(data) else None
    try:
        text = data.decode(match.encoding)
    except UnicodeDecodeError:
        text = data.decode(match.encoding, "replace")
    return Decoded(text, match.encoding, (Flag("decoded_as", detail=match.encoding),))


def _western(data: bytes) -> Decoded | None:
    """cp1252, where every byte above ASCII is a usual letter or mark of it and they are few among the
    letters.

    A detector cannot tell it from cp1250 on a few accents, and the west is likelier.
    """
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return None
    accents = [character for character in text if character > "\x7f"]
    n_letters = sum(map(str.isalpha, text))
    if len(accents) > _MOST_ACCENTS * n_letters or not _WESTERN.issuperset(accents):
        return None
    return Decoded(text, "cp1252", (Flag("decoded_as", detail="cp1252"),))
