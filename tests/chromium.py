"""A headless Chromium of the system, driven through its DevTools protocol over two pipes: no driver, no port.

    with Browser(width=1200) as browser:
        browser.open(path)
        browser.click(".item")
        browser.value("document.title")

Protocol: https://chromedevtools.github.io/devtools-protocol/ ; messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --remote-debugging-pipe "
    "--disable-dev-shm-usage --disable-background-networking --disable-component-update --disable-sync "
    "--disable-quic --disable-extensions"
).split()


class Browser:
    """One page. `complaints` are its uncaught errors, console errors and security reports."""

    def __init__(self, width: int = 1200, height: int = 900, dark: bool = False, timeout: float = 60):
        self.timeout, self.complaints, self.requests, self.number, self.buffer = timeout, [], [], 0, b""
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        self.read_here, write_there = os.pipe()
        read_there, self.write_here = os.pipe()
        # the browser reads from 3 and writes to 4; numbers that are neither cannot get in each other's way
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (read_there, write_there)]
        command = [PROGRAM, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "${@:3}" 3<&"$1" 4>&"$2"', "bash", *map(str, given), *command],
            pass_fds=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (read_there, write_there, *given):
            os.close(fd)
        self.ready = selectors.DefaultSelector()
        self.ready.register(self.read_here, selectors.EVENT_READ)
        self.session = None
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height, dark)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error) -> None:
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, 9)  # its own process group
            self.process.wait()
        os.close(self.read_here)
        os.close(self.write_here)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters) -> dict:
        """The result of one command. Raises RuntimeError when it is refused, TimeoutError when no answer comes."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_here, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self.buffer:
            if not self.ready.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError("the browser does not answer")
            part = os.read(self.read_here, 1 << 16)
            if not part:
                raise OSError("the browser has ended")
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict) -> None:
        method, found = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([a.get("value") or a.get("description") for a in found["args"]]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(found["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {found['message']}")

    def resize(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        touch = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=touch
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def open(self, path: Path, fragment: str = "") -> None:
        self.call("Page.navigate", url="about:blank")  # a change of the fragment alone would load nothing
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str):
        """The value of a JavaScript expression; promises are awaited. Raises RuntimeError when it throws."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", expression))
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until a JavaScript condition holds. Raises TimeoutError."""
        deadline = time.monotonic() + self.timeout
        while not self.value(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never held: {condition}")
            time.sleep(0.05)

    def place(self, selector: str, scroll: bool = True) -> tuple[float, float]:
        """The middle of the first element that a selector finds, scrolled into view and at rest."""
        program = """(async () => {
            const element = document.querySelector(SELECTOR);
            if (SCROLL) element.scrollIntoView({ block: "center", behavior: "instant" });
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            const { x, y, width, height } = element.getBoundingClientRect();
            return [x + width / 2, y + height / 2];
        })()"""
        program = program.replace("SELECTOR", json.dumps(selector)).replace("SCROLL", json.dumps(scroll))
        x, y = self.value(program)
        return x, y

    def hover(self, selector: str, scroll: bool = True) -> None:
        x, y = self.place(selector, scroll)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
