"""Text from outside made into HTML that can neither run nor fetch anything. Pure."""

import html

from markdown_it import MarkdownIt

from app.naming import shown

# Links and images would let a document, through the model's answer, make the browser fetch an address or
# offer one to click. Left out, their source stands in the answer as written; so do reference definitions,
# which would vanish.
_UNTRUSTED = ("link", "image", "autolink", "reference", "html_block", "html_inline", "linkify")


def text(value: str) -> str:
    """`value` as the content or the quoted attribute of an element."""
    return html.escape(value, quote=True)


def name(value: str) -> str:
    """A name (of a file, page, model) on one line, isolated from the direction of the words around it."""
    return f"<bdi>{text(shown(value))}</bdi>"


def markdown(source: str) -> str:
    """A model's words: paragraphs, lists, tables, emphasis, code; never a link, an image or its own tag."""
    rules = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    return str(rules.disable(_UNTRUSTED, ignoreInvalid=True).render(source))


def amount(number: int, noun: str) -> str:
    """A count with its noun: "1 page", "2,048 pages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def seconds(value: float) -> str:
    """A time as a person reads one: "0.4 s", "54 s", "3 min 20 s"."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes:,} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def bar(share: float, label: str, *, role: str = "progressbar", words: str = "") -> str:
    """A bar filled to `share` per cent; `words` say the same in numbers."""
    spoken = f' aria-valuetext="{text(words)}"' if words else ""
    return (
        f'<div class="bar" role="{role}" aria-label="{text(label)}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{share:.0f}"{spoken}><div class="bar-fill" style="width:{share:.1f}%"></div></div>'
    )
