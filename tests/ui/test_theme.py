import pytest

from hyperscale.ui.theme import Theme, detect

UTF8 = {"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}


def test_a_modern_terminal_gets_colours_and_symbols() -> None:
    assert detect(UTF8, encoding="utf-8", terminal=True) == Theme(unicode=True, colors=256)


def test_no_color_keeps_weight_but_drops_every_colour() -> None:
    theme = detect({**UTF8, "NO_COLOR": "1"}, encoding="utf-8", terminal=True)
    assert theme.colors == 0
    assert theme.paint("x", "failed") == "\x1b[1mx\x1b[0m"
    assert theme.paint("x", "ok") == "x"
    assert detect({**UTF8, "NO_COLOR": ""}, encoding="utf-8", terminal=True).colors == 256


def test_an_old_terminal_gets_its_own_sixteen_colours() -> None:
    assert detect({"TERM": "xterm"}, encoding="utf-8", terminal=True).colors == 16


def test_a_stream_that_is_no_terminal_gets_no_control_codes() -> None:
    theme = detect(UTF8, encoding="utf-8", terminal=False)
    assert theme.paint("x", "failed") == "x"


@pytest.mark.parametrize(
    ("environ", "encoding"),
    [
        (UTF8, "latin-1"),
        (UTF8, None),
        ({**UTF8, "LC_ALL": "C"}, "utf-8"),
        ({**UTF8, "LC_ALL": "de_DE.ISO-8859-1"}, "utf-8"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "utf-8"),  # as Python coerces it
        ({**UTF8, "TERM": "linux"}, "utf-8"),
    ],
)
def test_a_terminal_that_may_not_show_symbols_gets_ascii(
    environ: dict[str, str], encoding: str | None
) -> None:
    assert not detect(environ, encoding=encoding, terminal=True).unicode


@pytest.mark.parametrize("environ", [{}, {"LANG": "C.UTF-8"}, {"LC_CTYPE": "C.UTF-8"}])
def test_an_unset_or_utf8_locale_shows_symbols(environ: dict[str, str]) -> None:
    assert detect(environ, encoding="UTF-8", terminal=True).unicode
