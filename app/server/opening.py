"""What the server answers before the model is there: how far it is, or why it will not come."""

import threading

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from app.problems import Problem
from app.server import plain
from app.server.security import Guard, Policy
from app.ui.assets import STYLE
from runtime.events import Progress


class Opening:
    """How far fetching and loading the model has come. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._problem: Problem | None = None

    def report(self, progress: Progress) -> None:
        with self._lock:
            self._progress = progress

    def fail(self, problem: Problem) -> None:
        with self._lock:
            self._problem = problem

    @property
    def problem(self) -> Problem | None:
        with self._lock:
            return self._problem

    def page(self) -> str:
        with self._lock:
            return plain.failed(self._problem) if self._problem else plain.loading(self._progress)


def application(opening: Opening, policy: Policy) -> Starlette:
    """The page of a server whose model is not there yet, and /health, which says 503."""

    async def page(_: Request) -> Response:
        return HTMLResponse(opening.page(), status_code=503 if opening.problem else 200)

    async def health(_: Request) -> Response:
        problem = opening.problem
        said = str(problem) if problem else "Loading model"
        error = {"code": 503, "message": said, "type": "unavailable_error"}
        return JSONResponse({"error": error}, status_code=503)

    async def style(_: Request) -> Response:
        return FileResponse(STYLE)

    return Starlette(
        routes=[Route("/", page), Route("/health", health), Route("/page.css", style)],
        middleware=[Middleware(Guard, policy=policy)],
    )
