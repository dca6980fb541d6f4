"""Errors of reading documents, made into words."""

from app.naming import shown
from app.problems.words import Problem, counted, reason_of, size_of
from ingest import errors as reading


def explain(error: reading.IngestError) -> Problem:
    name = shown(error.name)
    match error:
        case reading.FileMissing():
            return Problem(f"There is no file {name}.", "Check the path.")
        case reading.Unreadable(reason=reason):
            return Problem(f"{name} may not be opened: {reason_of(reason)}.", "Check its permissions.")
        case reading.EmptyFile():
            return Problem(f"{name} is empty.", "Choose another file.")
        case reading.NotAPdf():
            return Problem(
                f"{name} is named like a PDF but is not one.", "Open it in a PDF reader to see what it holds."
            )
        case reading.UnknownFormat():
            return Problem(
                f"{name} is neither a PDF nor text.",
                "Fullread reads PDF, text and source files, folders and zip.",
            )
        case reading.PasswordNeeded():
            return Problem(f"{name} is encrypted.", "Give its password (--password in a terminal).")
        case reading.WrongPassword():
            return Problem(f"The password does not open {name}.", "Check it and try again.")
        case reading.NoText(n_pages=n_pages):
            where = "its only page" if n_pages == 1 else f"any of its {n_pages:,} pages"
            return Problem(
                f"{name} holds no text on {where}; it is probably a scan.",
                "Run text recognition (for example ocrmypdf) on it first.",
            )
        case reading.Undecodable(n_pages=n_pages):
            return Problem(
                f"The fonts of {name} ({counted(n_pages, 'page')}) do not say which letters they show.",
                "Run text recognition (for example ocrmypdf --force-ocr) on it first.",
            )
        case reading.NothingToRead(n_skipped=n_skipped):
            skipped = f" ({n_skipped:,} left out)" if n_skipped else ""
            return Problem(f"{name} holds no file that can be read{skipped}.", "Choose another folder or archive.")
        case reading.NoSuchPages(asked=asked, n_pages=n_pages):
            return Problem(
                f"{name} has {counted(n_pages, 'page')}, so pages “{shown(asked)}” cannot be chosen.",
                f"Choose within 1-{n_pages}, for example “1-{min(n_pages, 12)}”.",
            )
        case reading.TooLarge(size=size, limit=limit, unit=unit):
            return Problem(
                f"{name} has {size_of(size, unit)}; at most {size_of(limit, unit)} are read.",
                "Split it, or choose a part of it.",
            )
        case reading.TookTooLong(seconds=seconds):
            return Problem(
                f"Reading {name} took longer than {seconds:g} seconds and was stopped.",
                "Choose fewer pages, or save the file anew with another program.",
            )
        case reading.TookTooMuchMemory(limit_bytes=limit_bytes):
            return Problem(
                f"Reading {name} took more than {size_of(limit_bytes, 'bytes')} of memory and was stopped.",
                "Choose fewer pages, or save the file anew with another program.",
            )
        case reading.Damaged(reason=reason):
            return Problem(
                f"{name} is damaged: {reason_of(reason)}.",
                "Fetch it again, or save it anew with another program.",
            )
        case _:
            return Problem(f"{name} could not be read.", "Choose another file.")
