"""What each system of a bench drafts with."""

from dataclasses import replace

from runtime.bench.plan import System
from runtime.config import DraftCacheChoice, DrafterChoice, Speculation


def speculation_of(system: System, configured: Speculation) -> Speculation:
    """The hierarchy called `system`, in the sizes of the `configured` one, which "triforce" is as it stands.

    The others are named for their levels from the top down; "model-chunks" is the draft model over the chunks that the
    target's attention chooses.
    """
    match system:
        case "plain":
            return replace(configured, enabled=False)
        case "triforce":
            return replace(configured, enabled=True)
        case "lookup":
            return _levels(configured, False, "lookup")
        case "retrieval":
            return _levels(configured, True, "none")
        case "retrieval-lookup":
            return _levels(configured, True, "lookup")
        case "model":
            return _levels(configured, False, "model")
        case "model-chunks":
            return _levels(configured, False, "model", "retrieval")
        case "merged":
            return _levels(configured, False, "merged")
        case "retrieval-model":
            return _levels(configured, True, "model")
        case "retrieval-merged":
            return _levels(configured, True, "merged")


def _levels(
    configured: Speculation, retrieval: bool, drafter: DrafterChoice, draft_cache: DraftCacheChoice = "streaming"
) -> Speculation:
    return replace(configured, enabled=True, retrieval=retrieval, drafter=drafter, draft_cache=draft_cache)
