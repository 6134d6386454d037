"""What stands between a client and a server: TLS, and a proxy. Both pass on whatever comes, byte by byte."""

import contextlib
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from urllib.parse import urlsplit

import pytest


def relay(one, other):
    """Until either side has hung up."""

    def pass_on(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=pass_on, args=(other, one), daemon=True)
    back.start()
    pass_on(one, other)
    back.join(10)


class Front(socketserver.ThreadingTCPServer):
    """Listens on 127.0.0.1, and hands each connection to `handle`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, handle):
        self.heads = []  # what was asked of a proxy
        super().__init__(("127.0.0.1", 0), lambda request, *_: handle(request))
        self.port = self.server_address[1]

    def handle_error(self, *_):
        """A client that does not trust us hangs up."""

    @contextlib.contextmanager
    def running(self):
        thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A key and its self-made certificate for 127.0.0.1: -> their files."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes certificates, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


@contextlib.contextmanager
def tls_before(port, certificate):
    """-> the https:// address of a server that speaks plain HTTP on a port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])

    def handle(plain):
        with (
            context.wrap_socket(plain, server_side=True) as secure,
            socket.create_connection(("127.0.0.1", port)) as to,
        ):
            relay(secure, to)

    with Front(handle).running() as front:
        yield f"https://127.0.0.1:{front.port}"


@contextlib.contextmanager
def proxy():
    """-> a proxy: `port`, and `heads`, the first lines of what it was asked."""

    def handle(client):
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1 << 16)
        front.heads.append(head.decode(errors="replace"))
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        whole = urlsplit(f"//{target}" if method == "CONNECT" else target)
        with socket.create_connection((whole.hostname, whole.port)) as to:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                to.sendall(head.replace(target.encode(), whole.path.encode(), 1))
            relay(client, to)

    front = Front(handle)
    with front.running():
        yield front
