"""Settings: who wins, what is refused, and that the refusal says where it came from."""

from pathlib import Path

import pytest

from app.errors import ConfigUnreadable, OpenDoor, SettingRefused, UnknownSetting
from app.problems import explain
from app.resolving import config_path, resolve
from app.settings import Settings


@pytest.fixture
def config(tmp_path):
    """Writes a configuration file and gives the environment that names it."""

    def write(text: str) -> dict[str, str]:
        path = tmp_path / "config.toml"
        path.write_text(text, encoding="utf-8")
        return {"FULLREAD_CONFIG": str(path)}

    return write


def test_command_line_beats_environment_beats_file_beats_default(config):
    """Each layer gives way to the one nearer to the person."""
    environ = config('top-k = 1\ntop_p = 0.1\nmin-p = 0.1\nmodel = "file"') | {
        "FULLREAD_TOP_P": "0.2",
        "FULLREAD_MIN_P": "0.2",
    }
    settings = resolve({"min_p": "0.3"}, environ)
    assert (settings.top_k, settings.top_p, settings.min_p) == (1, 0.2, 0.3)
    assert (settings.model, settings.gamma) == ("file", Settings().gamma)


def test_every_setting_can_come_from_each_place(config):
    """One table: what the command line knows, the environment and the file know too."""
    values = {
        "model": "m", "draft_model": "d", "context": "1024", "device": "cpu", "dtype": "bfloat16",
        "mode": "cpu", "hardware": "machine.toml", "gpus": "1",
        "threads": "2", "gamma": "3", "budget": "256", "chunk_size": "16", "plain": "true",
        "retrieval": "off", "drafter": "merged", "draft_cache": "retrieval",
        "temperature": "0", "top_p": "0.5", "top_k": "7", "min_p": "0.1", "repetition_penalty": "1.1",
        "presence_penalty": "0.5", "frequency_penalty": "-0.5",
        "seed": "5", "max_tokens": "9", "password": "p", "data_dir": "somewhere", "host": "::1",
        "port": "0", "api_key": "k", "no_setup": "1",
    }  # fmt: skip
    assert set(values) | {"engine", "engine_key"} == set(Settings.__dataclass_fields__)  # not beside those above
    from_line = resolve(values, config(""))
    from_environment = resolve({}, config("") | {f"FULLREAD_{name.upper()}": v for name, v in values.items()})
    from_file = resolve({}, config("".join(f'{name.replace("_", "-")} = "{v}"\n' for name, v in values.items())))
    assert from_line == from_environment == from_file
    assert from_line.data_dir == Path("somewhere")
    assert (from_line.engine_config().mode, from_line.engine_config().hardware) == ("cpu", Path("machine.toml"))
    assert from_line.plain is from_line.no_setup is True
    speculation = from_line.engine_config().speculation
    assert (speculation.enabled, speculation.retrieval) == (False, False)
    assert (speculation.drafter, speculation.draft_cache) == ("merged", "retrieval")
    assert from_line.sampling().is_greedy
    assert (from_line.sampling().presence_penalty, from_line.sampling().frequency_penalty) == (0.5, -0.5)


@pytest.mark.parametrize(
    ("given", "environ", "text", "origin"),
    [
        ({"gamma": "99"}, {}, "", "--gamma"),
        ({"chunk_size": "x"}, {}, "", "--chunk-size"),
        ({"temperature": "nan"}, {}, "", "--temperature"),
        ({"device": "tpu"}, {}, "", "--device"),
        ({"mode": "disk"}, {}, "", "--mode"),
        ({"mode": "gpu", "device": "cpu"}, {}, "", "--mode"),
        ({"presence_penalty": "3"}, {}, "", "--presence-penalty"),
        ({"frequency_penalty": "-3"}, {}, "", "--frequency-penalty"),
        ({"drafter": "trees"}, {}, "", "--drafter"),
        ({"drafter": "model"}, {}, "", "--drafter"),
        ({"retrieval": "perhaps"}, {}, "", "--retrieval"),
        ({"port": "70000"}, {}, "", "--port"),
        ({"model": ""}, {}, "", "--model"),
        ({}, {"FULLREAD_TOP_P": "2"}, "", "FULLREAD_TOP_P"),
        ({}, {"FULLREAD_PLAIN": "perhaps"}, "", "FULLREAD_PLAIN"),
        ({}, {}, "max-tokens = 0", "max-tokens"),
        ({}, {}, "context = 3.5", "context"),
        ({}, {}, "seed = true", "seed"),
        ({}, {}, "model = ['a']", "model"),
    ],
)
def test_a_bad_value_says_where_it_came_from(config, given, environ, text, origin):
    """The sentence names the option, the variable or the key, and what is allowed."""
    with pytest.raises(SettingRefused) as refused:
        resolve(given, config(text) | environ)
    problem = explain(refused.value)
    assert origin in problem.sentence
    assert problem.way_out.startswith("Allowed: ")


def test_an_unknown_key_says_what_was_meant(config):
    """A slip in a name is not passed over in silence, and nothing outside our prefix is looked at."""
    with pytest.raises(UnknownSetting) as in_environment:
        resolve({}, config("") | {"FULLREAD_TOPP": "1", "OTHER": "1"})
    assert "FULLREAD_TOPP" in explain(in_environment.value).sentence
    assert "FULLREAD_TOP_P" in explain(in_environment.value).way_out
    with pytest.raises(UnknownSetting) as in_file:
        resolve({}, config("tempreature = 1"))
    assert "config.toml" in explain(in_file.value).sentence
    assert "temperature" in explain(in_file.value).way_out


@pytest.mark.parametrize("text", ["top-p = ", "\x00", "[a"])
def test_a_broken_file_is_refused(config, text):
    """A file that is not TOML is named with the reason."""
    with pytest.raises(ConfigUnreadable) as refused:
        resolve({}, config(text))
    assert "config.toml" in explain(refused.value).sentence


def test_no_file_is_fine(tmp_path):
    """Without a configuration file the defaults hold."""
    assert resolve({}, {"FULLREAD_CONFIG": str(tmp_path / "none.toml")}) == Settings()
    assert config_path({}).name == "config.toml"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org"])
def test_beyond_this_machine_a_key_is_needed(host):
    """An address others can reach is refused without a key, and taken with one."""
    with pytest.raises(OpenDoor):
        Settings(host=host)
    assert Settings(host=host, api_key="k").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(host):
    """These addresses are reached from this machine only."""
    assert Settings(host=host).is_loopback


def test_secrets_are_not_shown():
    """Printing the settings gives away neither key nor password."""
    assert "hush" not in repr(Settings(api_key="hush", password="hush", engine_key="hush"))


def test_only_a_hub_model_needs_the_hub(tmp_path):
    """starter, folders and .gguf files are local."""
    assert not Settings().needs_hub
    assert not Settings(model=str(tmp_path)).needs_hub
    assert not Settings(model="gone.gguf").needs_hub
    assert Settings(model="someone/something").needs_hub
    assert Settings(draft_model="someone/something").needs_hub
