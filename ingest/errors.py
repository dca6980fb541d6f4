"""Why a file could not be read. Every error carries its numbers; the words for people are made in the app."""


class IngestError(Exception):
    """Root of everything `ingest` raises on purpose. `name` is the file as the person knows it."""

    def __init__(self, name: str, *details: object) -> None:
        super().__init__(name, *details)
        self.name = name


class FileMissing(IngestError):
    """There is no such file."""


class Unreadable(IngestError):
    """The file is there but may not be opened; `reason` is the operating system's word for it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.reason = reason


class EmptyFile(IngestError):
    """The file holds no bytes, or no pages."""


class NotAPdf(IngestError):
    """Named .pdf, but the bytes are not a PDF."""


class UnknownFormat(IngestError):
    """Neither a PDF nor text nor an archive that can be read."""


class PasswordNeeded(IngestError):
    """The file is encrypted and no password was given."""


class WrongPassword(IngestError):
    """The file is encrypted and the given password does not open it."""


class NoText(IngestError):
    """No page holds text (a scan, as a rule)."""

    def __init__(self, name: str, n_pages: int) -> None:
        super().__init__(name, n_pages)
        self.n_pages = n_pages


class Undecodable(IngestError):
    """The pages show glyphs, but their fonts do not say which letters they are."""

    def __init__(self, name: str, n_pages: int) -> None:
        super().__init__(name, n_pages)
        self.n_pages = n_pages


class NothingToRead(IngestError):
    """A folder or archive without a single readable file. `n_skipped` were left out, each with a reason."""

    def __init__(self, name: str, n_skipped: int) -> None:
        super().__init__(name, n_skipped)
        self.n_skipped = n_skipped


class NoSuchPages(IngestError):
    """Pages were asked for that the document does not have."""

    def __init__(self, name: str, asked: str, n_pages: int) -> None:
        super().__init__(name, asked, n_pages)
        self.asked, self.n_pages = asked, n_pages


class TooLarge(IngestError):
    """More bytes (or files, pages) than the limit."""

    def __init__(self, name: str, size: int, limit: int, unit: str = "bytes") -> None:
        super().__init__(name, size, limit, unit)
        self.size, self.limit, self.unit = size, limit, unit


class TookTooLong(IngestError):
    """The limited child process passed its wall-clock limit and was ended."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(name, seconds)
        self.seconds = seconds


class TookTooMuchMemory(IngestError):
    """The limited child process passed its memory limit and was ended."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        super().__init__(name, limit_bytes)
        self.limit_bytes = limit_bytes


class Damaged(IngestError):
    """The file is broken or hostile in a way the readers cannot mend; `reason` says how, in a few words."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.reason = reason
