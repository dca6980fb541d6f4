"""Which levels draft for which: the composition is chosen here, once an answer."""

from collections.abc import Sequence

from runtime.choices import Choices
from runtime.config import Sampling, Speculation
from runtime.drafter import Drafter
from runtime.drafters.lookup import LookupDrafter
from runtime.drafters.model import ModelDrafter, feed_window
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.streaming import StreamingStore
from runtime.models.decoder import Decoder
from runtime.scorer import Scorer


def compose(
    target: Decoder,
    draft: Decoder | None,
    retrieval: RetrievalStore | None,
    ids: Sequence[int],
    speculation: Speculation,
    sampling: Sampling,
    choices: Choices,
) -> Drafter:
    """The drafter for the target over its full cache, after the prompt `ids`.

    With a retrieval cache it is the target over that cache, drafted for in turn; without one, what lies below drafts
    for the full cache directly. At the bottom is the draft model over its StreamingLLM cache, or lookup.
    """
    bottom: Drafter = LookupDrafter(ids)
    if draft is not None:
        store = StreamingStore(
            draft.spec.n_layers,
            draft.spec.n_kv_heads,
            draft.spec.head_dim,
            draft.dtype,
            draft.device,
            speculation.sinks,
            speculation.window,
        )
        feed_window(draft, store, ids[:-1])
        bottom = ModelDrafter(Scorer(draft, store, sampling), choices)
    if retrieval is None:
        return bottom
    scorer = Scorer(target, retrieval, sampling)
    return SpeculativeDrafter("retrieval", scorer, bottom, speculation.inner_gamma, choices)
