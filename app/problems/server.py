"""Errors of an engine elsewhere, made into words."""

from app.naming import shown
from app.problems.words import Problem, reason_of
from runtime import errors as answering


def explain(error: answering.ServerError) -> Problem:
    url = shown(error.url)
    match error:
        case answering.ServerUnreachable(reason=reason):
            return Problem(
                f"The engine at {url} cannot be reached: {reason_of(reason)}.",
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
                f"The engine at {url} refused (status {status:,}): {reason_of(reason) or 'it does not say why'}.",
                "Change what it complains of, or see what the server itself printed.",
            )
        case answering.ServerLost(reason=reason):
            return Problem(
                f"The engine at {url} broke off in the middle of the answer: {reason_of(reason)}.",
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
