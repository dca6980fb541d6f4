"""Errors made into words: one sentence with the numbers, and one way out. Nothing else makes prose."""

from dataclasses import dataclass

from app import errors as ours
from app.amounts import data
from app.naming import shown
from ingest import errors as reading
from runtime import errors as answering


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and what the person can do about it; both whole sentences on one line."""

    sentence: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.way_out}"


def explain(error: Exception) -> Problem:
    """The words for `error`, whichever folder raised it."""
    match error:
        case reading.IngestError():
            return _explain_reading(error)
        case answering.EngineError():
            return _explain_answering(error)
        case ours.AppError():
            return _explain_ours(error)
        case OSError():
            return Problem(
                f"The system refused: {_reason(error.strerror or str(error))}.",
                "Check the disk and the permissions, then try again.",
            )
        case _:
            return Problem(
                f"Something unforeseen went wrong: {_reason(str(error)) or 'no particulars'}.",
                "Try again; if it happens again, please report it.",
            )


def _explain_reading(error: reading.IngestError) -> Problem:
    name = shown(error.name)
    match error:
        case reading.FileMissing():
            return Problem(f"There is no file {name}.", "Check the path.")
        case reading.Unreadable(reason=reason):
            return Problem(f"{name} may not be opened: {_reason(reason)}.", "Check its permissions.")
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
                f"The fonts of {name} ({_count(n_pages, 'page')}) do not say which letters they show.",
                "Run text recognition (for example ocrmypdf --force-ocr) on it first.",
            )
        case reading.NothingToRead(n_skipped=n_skipped):
            skipped = f" ({n_skipped:,} left out)" if n_skipped else ""
            return Problem(f"{name} holds no file that can be read{skipped}.", "Choose another folder or archive.")
        case reading.NoSuchPages(asked=asked, n_pages=n_pages):
            return Problem(
                f"{name} has {_count(n_pages, 'page')}, so pages “{shown(asked)}” cannot be chosen.",
                f"Choose within 1-{n_pages}, for example “1-{min(n_pages, 12)}”.",
            )
        case reading.TooLarge(size=size, limit=limit, unit=unit):
            return Problem(
                f"{name} has {_size(size, unit)}; at most {_size(limit, unit)} are read.",
                "Split it, or choose a part of it.",
            )
        case reading.TookTooLong(seconds=seconds):
            return Problem(
                f"Reading {name} took longer than {seconds:g} seconds and was stopped.",
                "Choose fewer pages, or save the file anew with another program.",
            )
        case reading.TookTooMuchMemory(limit_bytes=limit_bytes):
            return Problem(
                f"Reading {name} took more than {_size(limit_bytes, 'bytes')} of memory and was stopped.",
                "Choose fewer pages, or save the file anew with another program.",
            )
        case reading.Damaged(reason=reason):
            return Problem(
                f"{name} is damaged: {_reason(reason)}.",
                "Fetch it again, or save it anew with another program.",
            )
        case _:
            return Problem(f"{name} could not be read.", "Choose another file.")


def _explain_answering(error: answering.EngineError) -> Problem:
    match error:
        case answering.InvalidSetting(name=name, value=value, allowed=allowed):
            return _refused(f"The setting {name}", value, allowed)
        case answering.ModelNotFound(source=source, reason=reason):
            return Problem(
                f"There is no model “{shown(source)}”: {_reason(reason)}.",
                "Give a folder, a .gguf file, a Hugging Face id, or starter.",
            )
        case answering.DownloadFailed(what=what, reason=reason):
            return Problem(
                f"{shown(what)} could not be downloaded: {_reason(reason)}.",
                "Check the network and start again; what is already there is kept.",
            )
        case answering.DiskFull(path=path, needed_bytes=needed, free_bytes=free):
            return Problem(
                f"{shown(path)} needs {_size(needed, 'bytes')} of free space and has {_size(free, 'bytes')}.",
                "Free some space and start again.",
            )
        case answering.KvDiskFull(path=path, needed_bytes=needed, free_bytes=free):
            return Problem(
                f"The KV cache needs {_size(needed, 'bytes')} on the disk of {shown(path)}, which has "
                f"{_size(free, 'bytes')} free.",
                "Free some space or choose fewer pages, and ask again.",
            )
        case answering.ModelDamaged(path=path, reason=reason):
            return Problem(
                f"The model file {shown(path)} is damaged: {_reason(reason)}.",
                "Delete it and fetch it again.",
            )
        case answering.UnsupportedModel(name=name, supported=supported):
            return Problem(f"Fullread cannot run {shown(name)} models.", f"Choose one of: {', '.join(supported)}.")
        case answering.VocabularyMismatch(target=target, draft=draft, reason=reason):
            return Problem(
                f"{shown(draft)} cannot draft for {shown(target)}: {_reason(reason)}.",
                "Choose a draft model of the same family, or leave it out.",
            )
        case answering.ContextExceeded(prompt_tokens=prompt, max_tokens=answer, context=context):
            return Problem(
                f"Documents, conversation and question are {prompt:,} tokens long and the answer may take "
                f"{answer:,}; the model holds at most {context:,}.",
                "Choose fewer pages or files, or start a new chat.",
            )
        case answering.OutOfMemory(needed_bytes=needed, free_bytes=free, what=what, fitting_context=fitting):
            shorter = f"--context {fitting}, which fits" if fitting else "a smaller context"
            return Problem(
                f"{_begun(_reason(what))} needs {_memory(needed)} of memory; {_memory(free)} are free.",
                f"Choose a smaller model or {shorter}, or close other programs.",
            )
        case answering.MemoryRanOut(n_tokens=n_tokens, mode=mode, free_bytes=free):
            return Problem(
                f"Memory ran out in mode {mode} while up to {n_tokens:,} tokens were held ({_size(free, 'bytes')} are "
                "free again), and no other way to run the model has room.",
                "Choose fewer pages or a smaller model, or close other programs, and ask again.",
            )
        case answering.NoSuchDevice(device=device, found=found):
            return Problem(
                f"This machine has no device {shown(device)} that can be used; found: {_reason(found)}.",
                "Leave device and mode to auto.",
            )
        case answering.TooFewGpus(wanted=wanted, found=found):
            return Problem(
                f"{wanted:,} GPUs were asked for, and this machine has {found:,} that can be used.",
                "Leave --gpus out, or give the number there is.",
            )
        case answering.RankLost(rank=rank, n_ranks=n_ranks, reason=reason):
            return Problem(
                f"Of the {n_ranks:,} processes that share the model, number {rank:,} is gone: {_reason(reason)}.",
                "Start Fullread again, or with fewer --gpus.",
            )
        case answering.HardwareRefused(path=path, reason=reason):
            return Problem(
                f"The hardware file {shown(path)} cannot be used: {_reason(reason)}.",
                "Compare it with what “python launch.py plan --print-hardware” prints, or leave --hardware out.",
            )
        case answering.ExtraMissing(what=what, package=package, extra=extra):
            return Problem(
                f"{shown(what)} needs the package {shown(package)}, which is not installed.",
                f"Install it with “python launch.py setup --extra {extra}” (in your own environment: pip install "
                f'".[{extra}]"), then try again.',
            )
        case answering.ServerError():
            return _explain_server(error)
        case answering.RivalFailed(rival=rival, reason=reason):
            return Problem(f"{shown(rival)} stopped: {_reason(reason)}.", "Leave it out of --against.")
        case _:
            return Problem("The model could not answer.", "Start again, or choose another model.")


def _explain_server(error: answering.ServerError) -> Problem:
    url = shown(error.url)
    match error:
        case answering.ServerUnreachable(reason=reason):
            return Problem(
                f"The engine at {url} cannot be reached: {_reason(reason)}.",
                "Start it, or check the address given with --engine.",
            )
        case answering.ServerKeyRefused(has_key=has_key):
            if has_key:
                return Problem(f"The engine at {url} refuses the key that was given.", "Check FULLREAD_ENGINE_KEY.")
            return Problem(f"The engine at {url} wants a key.", "Put it into the environment as FULLREAD_ENGINE_KEY.")
        case answering.ServerRefused(status=404):
            return Problem(
                f"There is no OpenAI-compatible endpoint at {url} (status 404).",
                "Give the address before /v1, as in --engine http://127.0.0.1:8000.",
            )
        case answering.ServerRefused(status=status, reason=reason):
            return Problem(
                f"The engine at {url} refused (status {status:,}): {_reason(reason) or 'it does not say why'}.",
                "Change what it complains of, or see what the server itself printed.",
            )
        case answering.ServerLost(reason=reason):
            return Problem(
                f"The engine at {url} broke off in the middle of the answer: {_reason(reason)}.",
                "What it had written is kept; see what the server itself printed, then ask again.",
            )
        case answering.ServerModelUnclear(model=model, served=served):
            named = f", and “{shown(model)}” is not among them" if model else ""
            listed = ", ".join(map(shown, served)) or "none"
            return Problem(f"The engine at {url} has these models: {listed}{named}.", "Name one of them with --model.")
        case answering.TokenizerNeeded(model=model):
            return Problem(
                f"The engine at {url} has no tokenizer that would leave the text of documents alone.",
                f"Name the model ({shown(model)}) with --model as a folder, a .gguf file or a downloaded Hugging Face "
                "id: its own tokenizer is then used.",
            )
        case answering.TokenizerDiffers(model=model, named=named):
            return Problem(
                f"The engine at {url} runs {shown(model)}, whose tokens are not those of {shown(named)}.",
                "Name with --model the model that it runs.",
            )
        case _:
            return Problem(
                f"The engine at {url} does not say how many tokens it takes.",
                "Say it with --context, as that server was started.",
            )


def _explain_ours(error: ours.AppError) -> Problem:
    match error:
        case ours.SettingRefused(origin=origin, value=value, allowed=allowed):
            return _refused(origin, value, allowed)
        case ours.UnknownSetting(origin=origin, closest=closest):
            hint = f"Did you mean {closest}?" if closest else "See --help for those there are."
            return Problem(f"{shown(origin)} is no setting of Fullread.", hint)
        case ours.ConfigUnreadable(path=path, reason=reason):
            return Problem(
                f"The configuration file {shown(path)} cannot be read: {_reason(reason)}.",
                "Mend it or move it away.",
            )
        case ours.OpenDoor(host=host):
            return Problem(
                f"Listening on {shown(host)} would open your documents to everyone who reaches this machine.",
                "Set a key with --api-key, or listen on 127.0.0.1.",
            )
        case ours.AddressUnusable(host=host, port=port, reason=reason):
            return Problem(
                f"Fullread cannot listen on {shown(host)}, port {port}: {_reason(reason)}.",
                "Choose another port with --port, or end the program that uses this one.",
            )
        case ours.DataFolderUnusable(path=path, reason=reason):
            return Problem(
                f"Fullread cannot keep its files in {shown(path)}: {_reason(reason)}.",
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


def _refused(origin: str, value: object, allowed: str) -> Problem:
    return Problem(f"{origin} is “{shown(str(value))}”, which is not allowed.", f"Allowed: {allowed}.")


def _reason(text: str) -> str:
    """A reason from elsewhere as the end of a sentence: one line, no full stop of its own."""
    return shown(" ".join(text.split())).rstrip(" .")


def _begun(words: str) -> str:
    """Words as the beginning of a sentence."""
    return words[:1].upper() + words[1:]


def _memory(n_bytes: int) -> str:
    """As plans count it."""
    return f"{n_bytes / 2**30:,.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.0f} MiB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _size(number: int, unit: str) -> str:
    return data(number) if unit == "bytes" else f"{number:,} {unit}"
