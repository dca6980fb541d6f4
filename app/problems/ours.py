"""Errors of the program itself, made into words."""

from app import errors as ours
from app.naming import shown
from app.problems.words import Problem, reason_of, refusal


def explain(error: ours.AppError) -> Problem:
    match error:
        case ours.SettingRefused(origin=origin, value=value, allowed=allowed):
            return refusal(origin, value, allowed)
        case ours.UnknownSetting(origin=origin, closest=closest):
            hint = f"Did you mean {closest}?" if closest else "See --help for those there are."
            return Problem(f"{shown(origin)} is no setting of Fullread.", hint)
        case ours.ConfigUnreadable(path=path, reason=reason):
            return Problem(
                f"The configuration file {shown(path)} cannot be read: {reason_of(reason)}.",
                "Mend it or move it away.",
            )
        case ours.OpenDoor(host=host):
            return Problem(
                f"Listening on {shown(host)} would open your documents to everyone who reaches this machine.",
                "Set a key with --api-key, or listen on 127.0.0.1.",
            )
        case ours.AddressUnusable(host=host, port=port, reason=reason):
            return Problem(
                f"Fullread cannot listen on {shown(host)}, port {port}: {reason_of(reason)}.",
                "Choose another port with --port, or end the program that uses this one.",
            )
        case ours.DataFolderUnusable(path=path, reason=reason):
            return Problem(
                f"Fullread cannot keep its files in {shown(path)}: {reason_of(reason)}.",
                "Choose another folder with --data-dir.",
            )
        case ours.WrongUsage(what=what, instead=instead):
            return Problem(what, instead)
        case ours.UnknownChat():
            return Problem("This chat is no longer there.", "Start a new chat.")
        case ours.UnknownEntry():
            return Problem("This document is no longer in the library.", "Add it again.")
        case ours.NotReady(name=name):
            return Problem(f"{shown(name)} has not been read.", "Wait until it is ready, or add it again.")
        case ours.DocumentsTooLong(used=used, limit=limit, context=context):
            return Problem(
                f"The documents are {used:,} tokens long; the model reads at most {limit:,} of them "
                f"({context:,} with the question and the answer).",
                "Choose fewer pages (--pages in a terminal) or fewer files.",
            )
        case _:
            return Problem("Fullread could not do that.", "Try again.")
