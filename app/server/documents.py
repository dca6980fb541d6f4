"""Receiving files and folders from the page into the intake."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import anyio.to_thread
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse

from app.problems import Problem, explain
from app.ui.intake import Intake
from ingest.errors import TooLarge
from ingest.limits import Limits


async def receive(request: Request, intake: Intake, limits: Limits) -> JSONResponse:
    """Take in one upload: the parts named `files`, each with its path within what was dropped as file name.

    Parts that share their path's first folder are one document, that folder; every other part is one too.
    """
    problem = _too_large(request, limits)
    if problem is not None:
        return _refused(413, problem)
    try:
        parser = MultiPartParser(request.headers, request.stream(), max_files=limits.n_files, max_fields=1)
        form = await parser.parse()
    except MultiPartException as error:
        return _refused(400, Problem(f"The upload could not be taken: {error.message}", "Choose fewer files."))
    try:
        roots = await anyio.to_thread.run_sync(_store, form, intake.folder)
    except OSError as error:
        return _refused(507, explain(error))
    finally:
        await form.close()
    if not roots:
        return _refused(400, Problem("Nothing was received.", "Drop files or a folder."))
    intake.put(roots)
    return JSONResponse({"documents": len(roots)})


def _too_large(request: Request, limits: Limits) -> Problem | None:
    declared = request.headers.get("content-length", "")
    if not declared.isdecimal():
        return Problem("The upload does not say how large it is.", "Send a Content-Length.")
    if int(declared) > limits.file_bytes:
        return explain(TooLarge("The upload", int(declared), limits.file_bytes))
    return None


def _store(form: FormData, new_folder: Callable[[], Path]) -> list[Path]:
    """Write the parts to disk; the files and folders they make up, in the order of their first part."""
    roots: dict[str, Path] = {}
    for number, part in enumerate(form.getlist("files")):
        names = _names(part.filename or "") if isinstance(part, UploadFile) else ()
        if not isinstance(part, UploadFile) or not names:
            continue
        # Two files of one name are two documents; two parts within one folder belong together.
        key = names[0] if len(names) > 1 else f"/{number}"
        root = roots.get(key) or roots.setdefault(key, new_folder() / names[0])
        target = root.joinpath(*names[1:])
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(part.file, file)
    return list(roots.values())


def _names(path: str) -> tuple[str, ...]:
    """The parts of a path as a browser gives one; none for one that is empty, absolute or climbs out."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    climbs = any(part in ("..", "/", "//") or "\0" in part for part in parts)
    has_drive = any(part[1:2] == ":" or (":" in part and sys.platform == "win32") for part in parts)
    return () if climbs or has_drive else parts


def _refused(status: int, problem: Problem) -> JSONResponse:
    return JSONResponse({"error": {"code": status, "message": str(problem), "type": "refused"}}, status_code=status)
