"""Errors of the runtime, made into words."""

from app.naming import shown
from app.problems import server
from app.problems.words import Problem, begun, memory_of, reason_of, refusal, size_of
from runtime import errors as answering


def explain(error: answering.EngineError) -> Problem:
    match error:
        case answering.InvalidSetting(name=name, value=value, allowed=allowed):
            return refusal(f"The setting {name}", value, allowed)
        case answering.ModelNotFound(source=source, reason=reason):
            return Problem(
                f"There is no model “{shown(source)}”: {reason_of(reason)}.",
                "Give a folder, a .gguf file, a Hugging Face id, or starter.",
            )
        case answering.DownloadFailed(what=what, reason=reason):
            return Problem(
                f"{shown(what)} could not be downloaded: {reason_of(reason)}.",
                "Check the network and start again; what is already there is kept.",
            )
        case answering.DiskFull(path=path, needed_bytes=needed, free_bytes=free):
            return Problem(
                f"{shown(path)} needs {size_of(needed, 'bytes')} of free space and has {size_of(free, 'bytes')}.",
                "Free some space and start again.",
            )
        case answering.KvDiskFull(path=path, needed_bytes=needed, free_bytes=free):
            return Problem(
                f"The KV cache needs {size_of(needed, 'bytes')} on the disk of {shown(path)}, which has "
                f"{size_of(free, 'bytes')} free.",
                "Free some space or choose fewer pages, and ask again.",
            )
        case answering.ModelDamaged(path=path, reason=reason):
            return Problem(
                f"The model file {shown(path)} is damaged: {reason_of(reason)}.",
                "Delete it and fetch it again.",
            )
        case answering.UnsupportedModel(name=name, supported=supported):
            return Problem(f"Fullread cannot run {shown(name)} models.", f"Choose one of: {', '.join(supported)}.")
        case answering.VocabularyMismatch(target=target, draft=draft, reason=reason):
            return Problem(
                f"{shown(draft)} cannot draft for {shown(target)}: {reason_of(reason)}.",
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
                f"{begun(reason_of(what))} needs {memory_of(needed)} of memory; {memory_of(free)} are free.",
                f"Choose a smaller model or {shorter}, or close other programs.",
            )
        case answering.MemoryRanOut(n_tokens=n_tokens, mode=mode, free_bytes=free):
            return Problem(
                f"Memory ran out in mode {mode} while up to {n_tokens:,} tokens were held "
                f"({size_of(free, 'bytes')} are free again), and no other way to run the model has room.",
                "Choose fewer pages or a smaller model, or close other programs, and ask again.",
            )
        case answering.NoSuchDevice(device=device, found=found):
            return Problem(
                f"This machine has no device {shown(device)} that can be used; found: {reason_of(found)}.",
                "Leave device and mode to auto.",
            )
        case answering.TooFewGpus(wanted=wanted, found=found):
            return Problem(
                f"{wanted:,} GPUs were asked for, and this machine has {found:,} that can be used.",
                "Leave --gpus out, or give the number there is.",
            )
        case answering.RankLost(rank=rank, n_ranks=n_ranks, reason=reason):
            return Problem(
                f"Of the {n_ranks:,} processes that share the model, number {rank:,} is gone: {reason_of(reason)}.",
                "Start Fullread again, or with fewer --gpus.",
            )
        case answering.HardwareRefused(path=path, reason=reason):
            return Problem(
                f"The hardware file {shown(path)} cannot be used: {reason_of(reason)}.",
                "Compare it with what “python launch.py plan --print-hardware” prints, or leave --hardware out.",
            )
        case answering.ExtraMissing(what=what, package=package, extra=extra):
            return Problem(
                f"{shown(what)} needs the package {shown(package)}, which is not installed.",
                f"Install it with “python launch.py setup --extra {extra}” (in your own environment: pip install "
                f'".[{extra}]"), then try again.',
            )
        case answering.ServerError():
            return server.explain(error)
        case answering.RivalFailed(rival=rival, reason=reason):
            return Problem(f"{shown(rival)} stopped: {reason_of(reason)}.", "Leave it out of --against.")
        case _:
            return Problem("The model could not answer.", "Start again, or choose another model.")
