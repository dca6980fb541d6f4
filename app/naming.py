"""Names from outside (files, pages, models) made safe to show and to put into a prompt."""

_LONGEST = 200


def shown(name: str) -> str:
    """`name` on one line, of bounded length, with every character that does not print written as an escape.

    File names are data: one may hold a newline, a terminal's escape sequence or a direction override.
    """
    plain = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in name
    )
    if len(plain) <= _LONGEST:
        return plain
    half = _LONGEST // 2 - 1
    return f"{plain[:half]}…{plain[-half:]}"
