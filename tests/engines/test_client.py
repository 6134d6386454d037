"""Keys, TLS and proxies, as the clients of OpenAI-compatible servers have them: real sockets, a real certificate."""

import ssl

import pytest
from fake_server import played  # noqa: F401
from tls_and_proxy import certificate, proxy, tls_before  # noqa: F401

from xshare.engines.client import Access, Http, ServerError
from xshare.engines.prometheus_text import samples

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """An environment that names no proxy, key or certificate."""
    for name in (*PROXIES, *map(str.lower, PROXIES), "OPENAI_API_KEY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def models(url, **access):
    return Http(url, 10, Access(**access)).ask_json("/v1/models")


def completion(url, **access):
    with Http(url, 10, Access(**access)).open("/v1/completions", {"prompt": "a", "max_tokens": 3}) as answer:
        return answer.read().count(b"w ")


def test_the_key_is_what_is_named_or_the_environments(played, monkeypatch):  # noqa: F811
    completion(played.url)
    monkeypatch.setenv("OPENAI_API_KEY", "environment")
    completion(played.url)
    completion(played.url, key="named")
    assert played.keys == [None, "Bearer environment", "Bearer named"]
    assert "named" not in repr(Access("named"))


@pytest.mark.parametrize("key", ["se\ncret", "sécret", "se\x00cret"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key):
    with pytest.raises(ServerError, match="holds characters that no HTTP header may") as refused:
        Http("http://127.0.0.1:1", 1, Access(key))
    assert "cret" not in str(refused.value)


def test_an_address_with_a_password_is_refused_and_the_password_not_shown():
    with pytest.raises(ServerError, match=r"'example\.org' must be named without a user or password") as refused:
        Http("https://me:secret@example.org", 1)
    assert "secret" not in str(refused.value)


def test_a_self_made_certificate(played, certificate, monkeypatch):  # noqa: F811
    with tls_before(played.server_port, certificate) as url:
        with pytest.raises(
            ServerError, match=r"is not trusted, self.signed certificate: name the file .* --ca-file or"
        ):
            models(url)
        assert models(url, ca_file=certificate[1]) == played.models
        assert completion(url, ca_file=certificate[1]) == 3
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
        assert models(url) == played.models
        with pytest.raises(ServerError, match=r"is not trusted, .*Hostname mismatch|is not trusted, .*not valid for"):
            models(url.replace("127.0.0.1", "localhost"))


def test_what_a_certificate_file_may_not_be(tmp_path):
    with pytest.raises(ServerError, match=r"certificate file '.*none.pem' does not exist"):
        models("https://127.0.0.1:1", ca_file=tmp_path / "none.pem")
    (tmp_path / "text.pem").write_text("no certificate")
    with pytest.raises(ServerError, match=r"certificate file '.*text.pem' holds no certificate in PEM form"):
        models("https://127.0.0.1:1", ca_file=tmp_path / "text.pem")


def test_https_of_a_server_that_speaks_http(played):  # noqa: F811
    with pytest.raises(ServerError, match="speaks no TLS that is known here"):
        models(played.url.replace("http", "https"))


def test_through_a_proxy(played, certificate, monkeypatch):  # noqa: F811
    with proxy() as between, tls_before(played.server_port, certificate) as secure:
        address = f"127.0.0.1:{between.port}"
        monkeypatch.setenv("HTTP_PROXY", f"http://me:se%20cret@{address}")
        monkeypatch.setenv("HTTPS_PROXY", address)
        assert models(played.url + "/v1") == played.models
        assert completion(played.url) == 3
        assert models(secure, ca_file=certificate[1], key="k") == played.models
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert models(played.url) == played.models
    plain, _, tunnel = between.heads
    assert plain.startswith(f"GET {played.url}/v1/models HTTP/1.1")
    assert "Proxy-Authorization: Basic bWU6c2UgY3JldA==" in plain
    assert tunnel.startswith(f"CONNECT {secure.removeprefix('https://')} HTTP/1.")
    assert "Bearer" not in tunnel  # the key goes through the tunnel alone


def test_a_proxy_that_cannot_be_used_or_reached(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@127.0.0.1:1")
    with pytest.raises(
        ValueError, match=r"proxy 'socks5://127.0.0.1' of the environment cannot be used: expected"
    ) as no:
        Http("http://127.0.0.1:1", 1)
    assert "secret" not in str(no.value)
    monkeypatch.setenv("ALL_PROXY", "http://me:secret@127.0.0.1:1")
    with pytest.raises(ServerError, match=r"no server answers at http://127.0.0.1:2 through the proxy 127.0.0.1:1: "):
        models("http://127.0.0.1:2")


def test_the_systems_certificates_are_trusted_beside_ones_own(certificate):  # noqa: F811
    own = Http("https://127.0.0.1:1", 1, Access(ca_file=certificate[1]))._tls
    assert own.cert_store_stats()["x509_ca"] >= ssl.create_default_context().cert_store_stats()["x509_ca"]
    assert own.verify_mode == ssl.CERT_REQUIRED


def test_a_page_of_metrics_and_one_that_is_none():
    page = '# HELP a b\na:b{c="d\\"e\\\\f",g="h"} 1.5\nplain 2 1700000000\nbad value\n<p>1 2</p>\nn NaN\n'
    metrics = list(samples(page))
    assert [(sample.name, sample.labels) for sample in metrics] == [
        ("a:b", {"c": 'd"e\\f', "g": "h"}),
        ("plain", {}),
        ("n", {}),
    ]
    assert [sample.value for sample in metrics[:2]] == [1.5, 2]
    assert not list(samples("<html>hello world</html>"))
