"""Passwords of URLs: in no config, message or file, and back where something is made."""

from __future__ import annotations

import pytest

from penstock.datasets.files.passwords import hidden, masked, revealed
from penstock.pipeline.config.app import main
from penstock.pipeline.config.compose import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.instantiate import build_nested

URL = "postgresql+psycopg://me:geh%40eim:7@host:5432/db?sslmode=require"
MASKED = "postgresql+psycopg://me:***@host:5432/db?sslmode=require"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, MASKED),
        (f"two {URL} of {URL} them", f"two {MASKED} of {MASKED} them"),
        ("mysql://me:p@ss@host/db", "mysql://me:***@host/db"),
        ("mysql://me@srv:geheim@host/db", "mysql://me@srv:***@host/db"),
        ("x:///db?PWD=geheim&a=b", "x:///db?PWD=***&a=b"),
        ("x:///db?user=me&password=geheim&a=b", "x:///db?user=me&password=***&a=b"),
    ],
)
def test_a_password_is_masked(text, shown):
    assert masked(text) == masked(shown) == shown
    assert revealed(hidden({"a": [text]})["a"][0]) == text


@pytest.mark.parametrize("text", ["a/b:c@2x.jpg", "pipe:curl http://host:80/a@2.tar", "a@b://c"])
def test_text_without_a_password_is_unchanged(text):
    assert masked(text) == text


def test_configs_mask_a_password_and_components_receive_it():
    config = compose(["dataset=sql", f"dataset.storage.url={URL}"])
    assert config["dataset"]["storage"]["url"] == MASKED
    assert build_nested(config["dataset"]["storage"]["url"]) == URL


def test_mistakes_and_sweeps_do_not_show_it(capsys):
    with pytest.raises(ConfigError) as error:
        compose(["dataset=sql", f"dataset.storage.ulr={URL}", f"loader.batch_size={URL}"])
    assert "geh" not in str(error.value) and "me:***@host" in str(error.value)
    typed = ["dataset=sql", f"dataset.storage.url={URL}"]
    assert main([*typed, "--cfg", "job"]) == 0
    assert main([*typed, "seed=1,2", "-m"]) == 2  # a sweep writes what is typed to a file
    told = capsys.readouterr()
    assert "geh" not in told.out + told.err and MASKED in told.out


def test_a_password_that_another_process_masked_must_be_typed_again():
    with pytest.raises(ValueError, match=r"me:\*\*\*@other/db: its password was left out"):
        revealed("mysql://me:***@other/db")
