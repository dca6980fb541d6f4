"""What goes wrong between a person and Fullread, beyond reading (`ingest`) and answering (`runtime`).

Every error carries its particulars; `app/problems` alone makes prose of it.
"""


class AppError(Exception):
    """Root of everything `app` raises on purpose."""


class SettingRefused(AppError):
    """A setting has a value outside what is allowed. `origin` says where the value came from."""

    def __init__(self, origin: str, value: object, allowed: str) -> None:
        super().__init__(origin, value, allowed)
        self.origin, self.value, self.allowed = origin, value, allowed


class UnknownSetting(AppError):
    """The environment or the configuration file names a setting that does not exist."""

    def __init__(self, origin: str, closest: str | None = None) -> None:
        super().__init__(origin, closest)
        self.origin, self.closest = origin, closest


class ConfigUnreadable(AppError):
    """The configuration file cannot be read, or is not TOML."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class OpenDoor(AppError):
    """Listening beyond this machine was asked for without a key that keeps strangers out."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


class AddressUnusable(AppError):
    """The page cannot listen on this address and port."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host, self.port, self.reason = host, port, reason


class DataFolderUnusable(AppError):
    """Fullread cannot keep its files in the data folder."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class WrongUsage(AppError):
    """A command line that asks for nothing Fullread can do; `what` and `instead` are whole sentences."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)
        self.what, self.instead = what, instead


class UnknownChat(AppError):
    """There is no conversation with this id (any more)."""

    def __init__(self, chat_id: str) -> None:
        super().__init__(chat_id)
        self.chat_id = chat_id


class UnknownEntry(AppError):
    """There is no document with this id in the library (any more)."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(entry_id)
        self.entry_id = entry_id


class NotReady(AppError):
    """The document is still being read, or could not be read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class DocumentsTooLong(AppError):
    """The chosen documents take more tokens than the context leaves for them. Nothing was computed."""

    def __init__(self, used: int, limit: int, context: int) -> None:
        super().__init__(used, limit, context)
        self.used, self.limit, self.context = used, limit, context
