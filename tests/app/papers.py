"""Small real PDFs, made for a test."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def write_pdf(path: Path, pages: Sequence[Sequence[str]]) -> Path:
    """A PDF of `pages`, each a sequence of lines of Latin text, in Helvetica."""
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
            NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
        }
    )
    for lines in pages:
        page = writer.add_blank_page(612, 792)
        escaped = [line.translate({ord(char): f"\\{char}" for char in "\\()"}) for line in lines]
        shown = " ".join(f"({line}) Tj T*" for line in escaped)
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 11 Tf 60 740 Td 14 TL {shown} ET".encode("cp1252"))
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
        page[NameObject("/Contents")] = writer._add_object(content)
    buffer = BytesIO()
    writer.write(buffer)
    path.write_bytes(buffer.getvalue())
    return path
