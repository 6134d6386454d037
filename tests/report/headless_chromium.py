"""Headless Chromium over its DevTools pipe: messages are JSON with a zero byte at the end, no package is needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-extensions", "--hide-scrollbars"),
)


def find():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, folder, seconds=60):
        self.seconds = seconds
        ends = []  # it reads from 3 and writes to 4; ours are moved out of the way of those numbers
        for end in (*os.pipe(), *os.pipe()):
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD, 10))
            os.close(end)
        theirs_in, self.into, self.out, theirs_out = ends
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, find(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.events, self.number, self.session = b"", [], 0, None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.into, json.dumps(message).encode() + b"\0")
        answer = self.until(lambda reply: reply.get("id") == self.number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def until(self, wanted):
        """The next message that is wanted; the events before it are kept."""
        end = time.monotonic() + self.seconds
        while True:
            while b"\0" not in self.buffer:
                assert select.select([self.out], [], [], max(0, end - time.monotonic()))[0], "the browser is silent"
                more = os.read(self.out, 1 << 16)
                assert more, f"the browser ended with code {self.process.wait()}"
                self.buffer += more
            text, _, self.buffer = self.buffer.partition(b"\0")
            message = json.loads(text)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def open(self, path, width, scheme):
        """Load a page afresh, as wide as `width` pixels, in a light or a dark `scheme`."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.prefer(scheme)
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        self.until(lambda event: event.get("method") == "Page.loadEventFired")

    def prefer(self, scheme):
        """Light or dark, from now on."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def requests(self):
        """Addresses that the page requested, without its own and `data:` ones."""
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls[1:] if not url.startswith("data:")]

    def errors(self):
        """What the console shows in red."""
        events = [(event["method"], event["params"]) for event in self.events]
        return (
            [params for name, params in events if name == "Runtime.exceptionThrown"]
            + [params for name, params in events if name == "Runtime.consoleAPICalled" and params["type"] == "error"]
            + [p["entry"] for name, p in events if name == "Log.entryAdded" and p["entry"]["level"] == "error"]
        )

    def screenshot(self, path):
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        try:
            self.session = None
            self.ask("Browser.close")
            self.process.wait(timeout=20)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.into)
        os.close(self.out)
