"""Fonts and colours handed to Gradio; everything else is in `assets/page.css`."""

from typing import Any

import gradio as gr

SANS = [
    "-apple-system",
    "Segoe UI",
    "Roboto",
    "Ubuntu",
    "Cantarell",
    "Noto Sans",
    "Liberation Sans",
    "sans-serif",
]
MONO = ["ui-monospace", "SF Mono", "Cascadia Mono", "Noto Sans Mono", "Liberation Mono", "monospace"]


def theme() -> Any:
    """Fonts of the system alone (nothing is fetched), paper and ink as colours, in light and dark."""
    return gr.themes.Base(
        primary_hue="teal", neutral_hue="stone", font=SANS, font_mono=MONO, radius_size="md", text_size="md"
    ).set(
        body_background_fill="#faf9f6",
        body_background_fill_dark="#161614",
        body_text_color="#1e1d1b",
        body_text_color_dark="#ebe8e1",
    )
