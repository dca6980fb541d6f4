"""Jupyter notebooks: cells in order with their short text outputs, pictures named but not shown."""

import json
from typing import Any

_LONGEST_OUTPUT = 2000


def cells_of(text: str) -> str | None:
    """The notebook in `text` (format 3 or later) as plain text, or None when it is no notebook."""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(notebook, dict):
        return None
    cells = notebook.get("cells")
    if cells is None and isinstance(notebook.get("worksheets"), list):
        cells = [
            cell
            for sheet in notebook["worksheets"]
            if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)
            for cell in sheet["cells"]
        ]
    if not isinstance(cells, list):
        return None
    shown = [_cell(number, cell) for number, cell in enumerate(cells, 1) if isinstance(cell, dict)]
    return "\n\n".join(shown) + "\n"


def _cell(number: int, cell: dict[str, Any]) -> str:
    source = _joined(cell.get("source", cell.get("input", "")))
    parts = [f"# [cell {number}: {cell.get('cell_type', 'unknown')}]", source.rstrip("\n")]
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else []:
        if isinstance(output, dict):
            parts += _output(output)
    return "\n".join(parts)


def _output(output: dict[str, Any]) -> list[str]:
    data = output.get("data")
    data = data if isinstance(data, dict) else {}
    text = _joined(output.get("text", data.get("text/plain", "")))
    if output.get("output_type") in ("error", "pyerr"):
        text = f"{output.get('ename', '')}: {output.get('evalue', '')}"
    shown = []
    if text.strip():
        n_more = len(text) - _LONGEST_OUTPUT
        shown.append(f"# [output]\n{text[:_LONGEST_OUTPUT].rstrip()}")
        if n_more > 0:
            shown.append(f"# [{n_more:,} more characters of output left out]")
    shown += [f"# [{kind} left out]" for kind in data if isinstance(kind, str) and kind.startswith("image/")]
    return shown


def _joined(value: object) -> str:
    """A multi-line string as notebooks have it: one string or a list of them."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
