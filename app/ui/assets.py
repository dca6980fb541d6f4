"""Where the page's own files lie."""

from pathlib import Path

import assets

FOLDER = Path(next(iter(assets.__path__)))
STYLE = FOLDER / "page.css"
ICON = FOLDER / "icon.png"
SCRIPT = FOLDER / "page.js"
