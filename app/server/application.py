"""The application: the page at /, /health, and where the page's files go in. Wrapped in `security.Guard`."""

import contextlib
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, JSONResponse

from app.assistant import Assistant
from app.server.documents import receive
from app.server.security import Guard, Policy
from app.settings import Settings
from app.ui.assets import ICON, SCRIPT, STYLE
from app.ui.desk import Desk
from app.ui.intake import Intake
from ingest.limits import Limits

_FRESH = {"Cache-Control": "no-cache"}  # asked for anew after an update
_END_SECONDS = 0.5  # what a running answer gets to end in when the server ends


def build(assistant: Assistant, settings: Settings) -> FastAPI:
    """The whole application over `assistant`. Gradio takes seconds to import, so that happens here."""
    quiet_gradio()
    import gradio as gr

    from app.ui.layout import HEAD
    from app.ui.page import page
    from app.ui.theme import theme

    desk, intake, limits = Desk(assistant), Intake(assistant), Limits()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            desk.close(_END_SECONDS)
            intake.close()

    app = FastAPI(
        title="Fullread",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        middleware=[
            Middleware(Guard, policy=Policy(settings.host, settings.api_key)),
            # No origin is allowed. Once this is here, Gradio adds no CORS headers (its own echo origins).
            Middleware(CORSMiddleware, allow_origins=[]),
        ],
    )

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "model": assistant.facts.model, "mode": assistant.facts.mode})

    @app.post("/api/documents")
    async def documents(request: Request) -> JSONResponse:
        return await receive(request, intake, limits)

    @app.get("/page.css")
    async def style() -> FileResponse:
        return FileResponse(STYLE, headers=_FRESH)

    @app.get("/page.js")
    async def script() -> FileResponse:
        return FileResponse(SCRIPT, headers=_FRESH)

    blocks = page(assistant, desk, intake)
    return gr.mount_gradio_app(  # type: ignore[no-any-return]
        app,
        blocks,
        path="/",
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        show_error=False,
        max_file_size=0,
        favicon_path=str(ICON),
        theme=theme(),
        head=HEAD,
    )


def quiet_gradio() -> None:
    """Leave nothing about Gradio to the environment: no telemetry, no sharing, no other front end.

    Gradio reads these variables when it is imported, and for error reports nothing but the variable.
    """
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
