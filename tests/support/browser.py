"""A real browser, headless, driven over the DevTools' WebSocket. Only the standard library.

    with Browser() as browser:
        page = browser.page(1400, 900)
        page.open("http://127.0.0.1:6141/")
        page.wait("document.querySelector('.lamps')")
        page.press("t")
        page.picture("overview.png")

What a page says that it should not is in page.findings: exceptions, console lines, failed loads, reports about the
content's policy, and requests to another origin."""
import base64, json, os, pathlib, select, shutil, signal, socket, struct, subprocess, tempfile, time, urllib.request
from urllib.parse import urlsplit

PATIENCE = 60  # seconds for an answer


def find():
    """The path of the browser, None if there is none."""
    return next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


class Socket:
    """The client's side of a WebSocket: text messages, unfragmented when sent."""

    def __init__(self, address):
        parts = urlsplit(address)
        self.stream, self.buffer = socket.create_connection((parts.hostname, parts.port), PATIENCE), b""
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise OSError(f"no WebSocket: {head[:200]!r}")

    def fill(self):
        data = self.stream.recv(1 << 20)
        if not data:
            raise OSError("the browser closed the connection")
        self.buffer += data

    def send(self, text, opcode=1):
        data, mask = text if isinstance(text, bytes) else text.encode(), os.urandom(4)
        size = len(data)
        head = bytes([0x80 | opcode]) + (bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size) if size < 1 << 16 else
                                         b"\xff" + struct.pack(">Q", size))
        repeated = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
        self.stream.sendall(head + mask + masked)

    def frame(self):
        """(final, opcode, data) of the next frame if all of it is here, else None."""
        if len(self.buffer) < 2:
            return None
        size, at = self.buffer[1] & 0x7F, 2
        if size > 125:
            at = 4 if size == 126 else 10
            if len(self.buffer) < at:
                return None
            size = int.from_bytes(self.buffer[2:at], "big")
        if len(self.buffer) < at + size:
            return None
        first, data = self.buffer[0], self.buffer[at:at + size]
        self.buffer = self.buffer[at + size:]
        return first & 0x80, first & 0x0F, data

    def receive(self, seconds):
        """The next message, None if there was none in so many seconds."""
        whole, end = b"", time.monotonic() + seconds
        while True:
            frame = self.frame()
            if frame is None:
                left = end - time.monotonic()
                if left <= 0 and not whole:
                    return None
                if select.select([self.stream], [], [], max(0.01, left))[0]:
                    self.fill()
                continue
            final, opcode, data = frame
            if opcode == 9:
                self.send(data, 10)
            elif opcode == 8:
                raise OSError("the browser closed the WebSocket")
            elif opcode in (0, 1, 2):
                whole += data
                if final:
                    return whole.decode()


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="caravan-browser-")
        self.log = open(pathlib.Path(self.folder) / "log", "wb")
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.folder}/profile", "--no-first-run", "--disable-gpu",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
             "--no-default-browser-check", "--mute-audio", "--force-color-profile=srgb"] + (["--no-sandbox"] if os.geteuid() == 0 else []) + ["about:blank"],
            stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, start_new_session=True)
        port = pathlib.Path(self.folder) / "profile/DevToolsActivePort"
        end = time.monotonic() + PATIENCE
        while not port.exists() or len(port.read_text().split()) < 2:
            if time.monotonic() > end or self.process.poll() is not None:
                text = (pathlib.Path(self.folder) / "log").read_text(errors="replace")[-2000:]
                self.close()
                raise OSError(f"the browser does not start: {text}")
            time.sleep(0.05)
        self.address = f"http://127.0.0.1:{port.read_text().split()[0]}"

    def page(self, width=1400, height=900):
        request = urllib.request.Request(self.address + "/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return Page(json.load(answer)["webSocketDebuggerUrl"], width, height)

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Failed(Exception):
    pass


# Keys that are no characters: the name and the code of the virtual key.
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Page:
    def __init__(self, address, width, height):
        self.socket, self.number, self.findings, self.origin, self.loaded = Socket(address), 0, [], None, 0
        self.expected = ()  # parts of findings that are all right now
        for name in ("Page", "Runtime", "Log", "Network", "DOM", "Audits"):
            self.call(name + ".enable")
        self.size(width, height)

    def call(self, method, seconds=PATIENCE, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        end = time.monotonic() + seconds
        while True:
            text = self.socket.receive(max(0.01, end - time.monotonic()))
            if text is None:
                raise Failed(f"the browser does not answer to {method}")
            message = json.loads(text)
            if message.get("id") == self.number:
                if "error" in message:
                    raise Failed(f"{method}: {message['error']}")
                return message["result"]
            self.event(message)

    def event(self, message):
        method, content = message.get("method", ""), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.find("exception: " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.find("console: " + " ".join(str(a.get("value", a.get("description", a["type"]))) for a in content["args"]))
        elif method == "Log.entryAdded":
            self.find(f"log: {content['entry']['text']} {content['entry'].get('url', '')}")
        elif method == "Audits.issueAdded" and "contentSecurityPolicyIssueDetails" in content["issue"]["details"]:
            self.find(f"policy: {json.dumps(content['issue']['details'])[:400]}")
        elif method == "Network.requestWillBeSent" and self.origin is not None:
            address = content["request"]["url"]
            if not address.startswith((self.origin, "data:", "blob:" + self.origin)):
                self.find(f"a request to another origin: {address[:200]}")
        elif method == "Page.loadEventFired":
            self.loaded += 1

    def find(self, text):
        if not any(part in text for part in self.expected):
            self.findings.append(text[:600])

    def pump(self, seconds=0):
        """Takes what the browser says by itself."""
        while (text := self.socket.receive(seconds)) is not None:
            self.event(json.loads(text))

    def open(self, address):
        self.origin = address.split("#")[0] if address.startswith("file:") else "{0.scheme}://{0.netloc}/".format(urlsplit(address))
        before, end = self.loaded, time.monotonic() + PATIENCE
        self.call("Page.bringToFront")
        self.call("Page.navigate", url=address)
        while self.loaded == before:
            if time.monotonic() > end:
                raise Failed(f"{address} does not load")
            self.pump(0.02)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise Failed(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, expression, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not (value := self.evaluate(f"Boolean({expression})")):
            if time.monotonic() > end:
                raise Failed(f"never: {expression}")
            self.pump(0.03)
        return value

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def media(self, kind="screen", scheme="light"):
        self.call("Emulation.setEmulatedMedia", media=kind, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key, shift=False):
        code = KEYS.get(key)
        text = {} if code and key != "Enter" else {"text": "\r" if key == "Enter" else key}
        options = {"key": key, "windowsVirtualKeyCode": code or ord(key.upper()[0]), "modifiers": 8 if shift else 0}
        if code:
            options["code"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **options, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **options)

    def mouse(self, kind, x, y, button="left", count=1):
        """kind: mousePressed, mouseReleased or mouseMoved."""
        held = {"button": button, "buttons": 1, "clickCount": count} if kind != "mouseMoved" else {"buttons": 0}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def click(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def drag(self, x, y, to_x, to_y):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=to_x, y=to_y, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y)

    def picture(self, path, whole=False):
        content = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(content["data"]))

    def print(self, path=None):
        """The bytes of a PDF as it would be printed."""
        data = base64.b64decode(self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=False)["data"])
        if path:
            pathlib.Path(path).write_bytes(data)
        return data
