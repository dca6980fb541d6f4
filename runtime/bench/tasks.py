"""Prompts: one document, and what is asked of it; and how much of an answer was copied."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.bench.plan import Plan, Task
from runtime.errors import InvalidSetting
from runtime.tokenizer import Tokenizer

SYSTEM = "Answer the question about the text."
QUESTION = "\n\nQuestion: What is this text about, and what are its main parts?"
QUOTE = "\n\nTask: Quote the passage that begins with the following words, word for word and at length: "
REPEAT = "\n\nHere is one passage of the text above once more, word for word:\n\n"
QUOTED_TOKENS = 16
LEAD_TOKENS = 24
MOST_COPIES = 3
CHARACTERS_PER_TOKEN = 6  # more than there are in the text of any tokenizer, so that it yields tokens enough
LONG_RUN = 8  # tokens; shorter runs of code stand in any two files


def slices(ids: Sequence[int], length: int, n: int) -> list[Sequence[int]]:
    """`n` different runs of `length` tokens, side by side where the text is long enough.

    Raises `InvalidSetting` where it has not so many.
    """
    spare = len(ids) - length
    if spare < n - 1:
        raise InvalidSetting("contexts", length, f"at most {len(ids) - n + 1:,} tokens, which is all the text there is")
    step = min(length, spare // max(n - 1, 1))
    return [ids[start : start + length] for start in range(0, n * step, step)] if n > 1 else [ids[:length]]


def prompts(tokenizer: Tokenizer, text: Sequence[int], plan: Plan) -> dict[Task, list[int]]:
    """The planned tasks' prompts over one document, each as long as its ids `text` and equal up to its own end.

    `continue` goes on with the document, `question` asks about all of it, `quote` asks for a passage of it by its first
    words. `repeat` is the copying task: it gives a passage of the document once more, as often as there is
    room, at most `MOST_COPIES` times, and then its beginning, which even a model that follows no instruction continues
    with the rest. Raises `InvalidSetting` where the text is too short for that.
    """
    frame = tokenizer.chat_frame(SYSTEM)
    start = passage_start(tokenizer, text)
    passage = text[start : start + LEAD_TOKENS + plan.answer_tokens]
    quoted = " ".join(tokenizer.decode(passage[:QUOTED_TOKENS]).split())
    heading = tokenizer.encode(REPEAT)
    spare = len(text) - len(frame.opening) - start - len(passage) - len(heading) - LEAD_TOKENS
    n_copies = max(0, min(MOST_COPIES, spare // (len(heading) + len(passage))))
    endings: dict[Task, list[int]] = {
        "continue": [],
        "question": [*tokenizer.encode(QUESTION), *frame.user_to_assistant],
        "quote": [*tokenizer.encode(f"{QUOTE}“{quoted}”"), *frame.user_to_assistant],
        "repeat": [*n_copies * [*heading, *passage], *heading, *passage[:LEAD_TOKENS]],
    }
    room = len(frame.opening) + max(len(endings[task]) for task in plan.tasks)
    if start + len(passage) + room > len(text):
        least = (len(passage) + room) * 4 // 3 + 1
        raise InvalidSetting("contexts", len(text), f"at least {least:,} tokens, with answers of {plan.answer_tokens}")
    made = {}
    for task in plan.tasks:
        n_document = len(text) - len(frame.opening) - len(endings[task])
        made[task] = [*frame.opening, *text[:n_document], *endings[task]]
    return made


def passage_start(tokenizer: Tokenizer, text: Sequence[int]) -> int:
    """Where the passage to repeat begins: an eighth into the text, at the next function or class, else line."""
    first, last = len(text) // 8, len(text) // 4
    lines = [i for i in range(first, last) if tokenizer.decode([text[i - 1]]).endswith("\n")]
    heads = (i for i in lines if tokenizer.decode(text[i : i + 4]).startswith(("def ", "class ")))
    return next(heads, lines[0] if lines else first)


@dataclass(frozen=True, slots=True)
class Copied:
    """Tokens in runs of `LONG_RUN` or more that stand elsewhere as well: all of them, and those of the longest run."""

    total: int
    longest: int


def copied(prompt: Sequence[int], answer: Sequence[int]) -> Copied:
    """How much of `answer` stands in `prompt` token for token, read from the left in the longest runs there are."""
    return _repeated(prompt, answer, 0)


def looped(answer: Sequence[int]) -> Copied:
    """How much of `answer` stands earlier in itself: small models go round in circles, which is easy to draft."""
    return _repeated(answer, answer, 1)


def _repeated(source: Sequence[int], answer: Sequence[int], first: int) -> Copied:
    """Runs from `answer[first]` on that begin in `source`, which where it is the answer itself must be before them."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i in range(len(source) - LONG_RUN + 1):
        places[tuple(source[i : i + LONG_RUN])].append(i)
    total = longest = 0
    at = first
    while at < len(answer):
        found = places[tuple(answer[at : at + LONG_RUN])]
        run = max((_common(source, i, answer, at) for i in found if source is not answer or i < at), default=0)
        total, longest = total + run, max(longest, run)
        at += run or 1
    return Copied(total, longest)


def _common(source: Sequence[int], i: int, answer: Sequence[int], at: int) -> int:
    length = 0
    while i + length < len(source) and at + length < len(answer) and source[i + length] == answer[at + length]:
        length += 1
    return length
