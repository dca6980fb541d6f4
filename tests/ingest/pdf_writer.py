"""A small PDF writer for the tests, so that every trap is visible where it is used."""

from collections.abc import Mapping, Sequence

HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
FIRST_PAGE = 100  # Object number of page 1; page n has FIRST_PAGE + 2 * (n - 1), its content the next one.


def stream(data: bytes, entries: bytes = b"") -> bytes:
    """A stream object's body."""
    return b"<< /Length %d %s >>\nstream\n" % (len(data), entries) + data + b"\nendstream"


def lines(*texts: str, x: int = 72, y: int = 700, size: float = 12) -> bytes:
    """A content stream that paints lines of text from (x, y) downwards."""
    shown = (
        text.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)") for text in texts
    )
    return b"".join(
        b"BT /F1 %g Tf 1 0 0 1 %d %d Tm (%s) Tj ET\n" % (size, x, y - 14 * number, text)
        for number, text in enumerate(shown)
    )


def pdf_bytes(
    pages: Sequence[str | bytes],
    *,
    catalog: bytes = b"",
    page: bytes = b"",
    resources: bytes = b"",
    objects: Mapping[int, bytes] | None = None,
    trailer: bytes = b"",
) -> bytes:
    """A PDF with a classic cross-reference table. A page is its lines of text, or its content stream.

    `catalog`, `page`, `resources` and `trailer` are entries for those dictionaries; `objects` adds or
    replaces numbered objects (1 catalog, 2 page tree, 3 the font /F1, see FIRST_PAGE).
    """
    numbers = [FIRST_PAGE + 2 * index for index in range(len(pages))]
    bodies: dict[int, bytes] = {
        1: b"<< /Type /Catalog /Pages 2 0 R %s >>" % catalog,
        2: b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(b"%d 0 R" % n for n in numbers), len(pages)),
        3: HELVETICA,
    }
    for number, content in zip(numbers, pages, strict=True):
        bodies[number] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> %s >> %s >>" % (number + 1, resources, page)
        )
        bodies[number + 1] = stream(lines(*content.split("\n")) if isinstance(content, str) else content)
    bodies |= objects or {}
    written = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    offsets: dict[int, int] = {}
    for number in sorted(bodies):
        offsets[number] = len(written)
        written += b"%d 0 obj\n" % number + bodies[number] + b"\nendobj\n"
    table = len(written)
    size = max(bodies) + 1
    written += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        written += b"%010d 00000 n \n" % offsets[number] if number in offsets else b"0000000000 65535 f \n"
    written += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, table)
    return bytes(written)


def to_unicode(codes: Mapping[int, str]) -> bytes:
    """A ToUnicode CMap; values are hexadecimal UTF-16BE."""
    return stream(
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def"
        b" 1 begincodespacerange <0000> <FFFF> endcodespacerange\n"
        + b"%d beginbfchar\n" % len(codes)
        + b"".join(b"<%04X> <%s>\n" % (code, text.encode()) for code, text in codes.items())
        + b"endbfchar endcmap end end"
    )


def composite_font(codes: Mapping[int, str] | None, widths: bytes = b"1 30 500") -> dict[int, bytes]:
    """Objects 3 to 6: the font /F1 with two-byte codes and no embedded program; without `codes` no
    ToUnicode."""
    font = {
        3: b"<< /Type /Font /Subtype /Type0 /BaseFont /AAAAAA+Test /Encoding /Identity-H /DescendantFonts [4 0 R]"
        + (b" /ToUnicode 6 0 R >>" if codes else b" >>"),
        4: b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /AAAAAA+Test /DW 500 /W [%s] /FontDescriptor 5 0 R"
        b" /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>" % widths,
        5: b"<< /Type /FontDescriptor /FontName /AAAAAA+Test /Flags 4 /FontBBox [0 -200 1000 900] /ItalicAngle 0"
        b" /Ascent 800 /Descent -200 /CapHeight 700 /StemV 80 >>",
    }
    return font | ({6: to_unicode(codes)} if codes else {})


ALPHABET = {number + 1: f"{ord('a') + number:04X}" for number in range(26)}
"""Codes 1 to 26 for a to z."""


def coded(text: str) -> str:
    """Lower-case letters in the codes of ALPHABET, in hexadecimal."""
    return "".join(f"{ord(letter) - ord('a') + 1:04X}" for letter in text)
