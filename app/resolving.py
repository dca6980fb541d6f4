"""Settings decided once: command line, environment, configuration file, default."""

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import platformdirs

from app.errors import ConfigUnreadable, SettingRefused, UnknownSetting
from app.settings import Settings
from runtime.config import DeviceChoice, DraftCacheChoice, DrafterChoice, DtypeChoice, ModeChoice
from runtime.errors import InvalidSetting

PREFIX = "FULLREAD_"
_ELSEWHERE = frozenset({"FULLREAD_CONFIG"})  # read here, but no setting of its own


def config_path(environ: Mapping[str, str]) -> Path:
    """The configuration file: `FULLREAD_CONFIG`, or config.toml in the user's configuration folder."""
    named = environ.get("FULLREAD_CONFIG")
    return Path(named) if named else Path(platformdirs.user_config_dir("fullread", False)) / "config.toml"


def resolve(given: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """The settings of a run: `given` on the command line (by field name), else environment, file, default.

    Raises `SettingRefused`, `UnknownSetting`, `ConfigUnreadable`, each saying where, or `OpenDoor`.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for layer in (_from_file(config_path(environ)), _from_environment(environ), _from_command_line(given)):
        for name, (origin, raw) in layer.items():
            values[name], origins[name] = _parse(name, origin, raw), origin
    try:
        return replace(Settings(), **values)  # type: ignore[arg-type]  # _parse gives each field its type
    except InvalidSetting as error:
        origin = origins.get(error.name.replace("-", "_"), error.name)
        raise SettingRefused(origin, error.value, error.allowed) from error


_Layer = dict[str, tuple[str, object]]  # field name -> where it was said, what was said


def _from_command_line(given: Mapping[str, str]) -> _Layer:
    return {name: (f"--{name.replace('_', '-')}", value) for name, value in given.items()}


def _from_environment(environ: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in _ELSEWHERE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _PARSERS:
            closest = _closest(name)
            raise UnknownSetting(f"The environment variable {variable}", closest and f"{PREFIX}{closest.upper()}")
        layer[name] = (f"The environment variable {variable}", value)
    return layer


def _from_file(path: Path) -> _Layer:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigUnreadable(str(path), error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigUnreadable(str(path), str(error)) from error
    layer: _Layer = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _PARSERS:
            closest = _closest(name)
            raise UnknownSetting(f"“{key}” in {path}", closest and closest.replace("_", "-"))
        layer[name] = (f"“{key}” in {path}", value)
    return layer


def _closest(name: str) -> str | None:
    return next(iter(difflib.get_close_matches(name, _PARSERS, n=1)), None)


def _parse(name: str, origin: str, raw: object) -> object:
    allowed, parse = _PARSERS[name]
    try:
        return parse(raw)
    except ValueError as error:
        raise SettingRefused(origin, raw, allowed) from error


def _whole(raw: object) -> int:
    if isinstance(raw, str) or type(raw) is int:
        return int(raw)
    raise ValueError(raw)


def _number(raw: object) -> float:
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        return float(raw)
    raise ValueError(raw)


def _text(raw: object) -> str:
    if isinstance(raw, str) and raw:
        return raw
    raise ValueError(raw)


def _switch(raw: object) -> bool:
    said = str(raw).strip().lower()
    if said in {"1", "true", "yes", "on"}:
        return True
    if said in {"0", "false", "no", "off"}:
        return False
    raise ValueError(raw)


def _path(raw: object) -> Path:
    return Path(_text(raw)).expanduser()


def _one_of(*choices: str) -> tuple[str, Callable[[object], str]]:
    def choose(raw: object) -> str:
        if raw in choices:
            return str(raw)
        raise ValueError(raw)

    return ", ".join(choices), choose


_Parser = tuple[str, Callable[[object], object]]  # what is allowed, in words; and the reading of one value
_KINDS: dict[object, _Parser] = {
    str: ("a text that is not empty", _text),
    str | None: ("a text that is not empty", _text),
    int: ("a whole number", _whole),
    int | None: ("a whole number", _whole),
    float: ("a number", _number),
    bool: ("true or false", _switch),
    Path: ("the path of a folder", _path),
    Path | None: ("the path of a file", _path),
    ModeChoice: _one_of(*get_args(ModeChoice)),
    DeviceChoice: _one_of(*get_args(DeviceChoice)),
    DtypeChoice: _one_of(*get_args(DtypeChoice)),
    DrafterChoice: _one_of(*get_args(DrafterChoice)),
    DraftCacheChoice: _one_of(*get_args(DraftCacheChoice)),
}
_PARSERS: dict[str, _Parser] = {setting.name: _KINDS[setting.type] for setting in fields(Settings)}
