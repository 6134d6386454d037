"""`xshare watch` where it cannot watch, and what a view is made of. On a real server: test_server_watched."""

import json

import pytest
from fake_server import played  # noqa: F401
from rich.console import Console
from typer.testing import CliRunner

from xshare.cli import app
from xshare.cli.watch_view import view
from xshare.engines.client import Http, ServerError
from xshare.engines.server_metrics import Between, Reading, read
from xshare.errors import XShareError

VLLM = 'vllm:generation_tokens_total{engine="0",model_name="m"} %d\nvllm:num_requests_running{engine="0"} 3.0\n'
OURS = """xshare:on{engine="0",policy="k0=0,rho=0.7"} 1.0
xshare:cost{engine="0"} 0.0
xshare:steps_pruned_total{engine="0"} 20.0
xshare:steps_bypassed_total{engine="0",reason="prefill"} 5.0
"""


def watch(url, *words):
    return CliRunner().invoke(app, ["watch", url, "--once", "--interval", "0.01", *words])


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("", "is no vLLM server: its /metrics holds none of vLLM's figures"),
        ("<html>hello world 2</html>\n", "is no vLLM server"),
        ("process_open_fds 51.0\n", "is no vLLM server"),
        (VLLM % 1, "shows no figures of xshare: start it with an xshare key in --additional-config, with metrics on"),
    ],
)
def test_a_server_that_cannot_be_watched(played, page, sentence):  # noqa: F811
    played.metrics = page
    with pytest.raises(ServerError, match=sentence):
        raise watch(played.url).exception


def test_what_is_no_server_at_all():
    with pytest.raises(ServerError, match=r"no server answers at http://127.0.0.1:1: Connection refused"):
        raise watch("http://127.0.0.1:1").exception
    with pytest.raises(ServerError, match="'localhost:8000' is no address"):
        raise watch("localhost:8000").exception
    with pytest.raises(XShareError, match="interval must be a number of seconds above 0, not -1"):
        raise watch("http://127.0.0.1:1", "--interval", "-1").exception


def test_before_any_step_was_sampled(played):  # noqa: F811
    played.metrics = VLLM % 100 + OURS
    result = watch(played.url)
    assert result.exit_code == 0
    assert "balanced (rho=0.7): on\n0.0 tokens/s" in result.output
    assert "nothing is known of experts" in result.output
    assert json.loads(watch(played.url, "--json").output)["experts_active"] is None


def figures(samples, *values):
    """Metrics with one value per layer, over `samples` steps."""
    names = ("experts_native", "experts_active", "mass_kept", "smallest_kept")
    lines = [f'xshare:{name}{{engine="0",layer="{n}"}} {v}' for name in names for n, v in enumerate(values)]
    return "\n".join([*lines, f'xshare:rows_protected{{engine="0"}} 1.5\nxshare:samples{{engine="0"}} {samples}\n'])


def reading(played, tokens, more="", time_s=0.0):  # noqa: F811
    played.metrics = VLLM % tokens + OURS + more
    return Reading(**{**vars(read(Http(played.url, 5))), "time_s": time_s})


def test_between_two_readings(played):  # noqa: F811
    first, last = reading(played, 100, figures(2, 8, 8)), reading(played, 300, figures(4, 6, 9), time_s=4.0)
    between = Between(first, last)
    assert between.tokens_per_s == 50
    assert between.experts.by_layer["experts_native"] == [4, 10]  # of the two steps since
    assert between.experts.mean["rows_protected"] == 1.5
    assert Between(last, last).experts.by_layer["experts_native"] == [6, 9]  # nothing new: since the change of policy
    assert Between(last, last).tokens_per_s is None
    assert last.follows(first)
    assert not reading(played, 20).follows(first)  # started again


def test_layers_that_do_not_fit_are_those_that_keep_most(played):  # noqa: F811
    scraped = reading(played, 1, figures(1, *(0.9 - 0.01 * layer for layer in range(30))))
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(view("http://h", Between(scraped, scraped), height=25, trouble="gone"))
    text = console.export_text()
    assert "11 of 30 layers, those that keep the smallest shares:" in text
    assert "smallest share kept 0.610 (layer 29)" in text
    assert [line.split()[0] for line in text.splitlines()[-12:-1]] == [str(layer) for layer in range(19, 30)]
    assert text.endswith("gone; this is the last that was seen\n")
    assert len(text.splitlines()) <= 25
