"""The page put together: components, listeners, queue."""

from typing import Any

import gradio as gr

from app.assistant import Assistant
from app.ui import layout, listeners
from app.ui.desk import Desk
from app.ui.intake import Intake


def page(assistant: Assistant, desk: Desk, intake: Intake) -> Any:
    """The page as Gradio Blocks, ready to be mounted."""
    with gr.Blocks(title="Fullread", analytics_enabled=False, fill_width=True) as blocks:
        listeners.connect(blocks, layout.place(assistant.facts), assistant, desk, intake)
    blocks.queue(api_open=False, default_concurrency_limit=None)
    return blocks
