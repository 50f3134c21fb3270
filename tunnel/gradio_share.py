"""A tunnel of gradio's, in a process of its own: `python -P gradio_share.py HOST PORT TOKEN SERVER`.

A script. It uses the library's own way (gradio 6.31, `gradio.networking.setup_tunnel`), which asks gradio's API for a
share server, or takes the user's own `host:port` (SERVER, else `-`), fetches frpc if there is none, and waits for the
address. In a process of its own because the library waits in a loop that nothing can interrupt, because it is
another's environment, perhaps, and because it prints what went wrong to standard error.

What it prints for us: `treering: url URL`. A frpc of the user's own, named in TREERING_FRPC, is used in place of the
library's; GRADIO_SHARE_API, if set, is asked in place of gradio's own API.
"""

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import types
from typing import IO, Any


def main(host: str, port: str, token: str, server: str) -> int:
    """Open a share link, print its address, and stay until frpc ends."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    networking, tunneling = _library()
    if api := os.environ.get("GRADIO_SHARE_API"):
        networking.GRADIO_API_SERVER = api
    frpc = os.environ.get("TREERING_FRPC") or shutil.which("frpc")
    if frpc:
        # The library looks for its own binary at a fixed path, and fetches it where that is missing.
        tunneling.BINARY_PATH = frpc
    _listen(tunneling.Tunnel)
    # It writes the share server's certificate below the working folder, which may be nobody's to write to.
    with tempfile.TemporaryDirectory(prefix="treering-gradio-") as folder:
        os.chdir(folder)
        address = networking.setup_tunnel(host, int(port), token, None if server == "-" else server, None)
        print(f"treering: url {address}", flush=True)
        (tunnel,) = tunneling.CURRENT_TUNNELS
        # Its outputs must be read on, or it stands still when a pipe is full.
        for pipe in (tunnel.proc.stdout, tunnel.proc.stderr):
            threading.Thread(target=_pass_on, args=(pipe,), daemon=True).start()
        return int(tunnel.proc.wait())


def _library() -> tuple[Any, Any]:
    """Return the library's `networking` and `tunneling`.

    These two need nothing of the rest (of `routes` they import a name that they don't use), and the rest takes 3 to
    30 s and 150 MiB, a tunnel. Where a version of the library needs more, all of it is imported.
    """
    found = importlib.util.find_spec("gradio")
    if found is not None and found.submodule_search_locations:
        package, routes = types.ModuleType("gradio"), types.ModuleType("gradio.routes")
        package.__path__, package.__file__ = list(found.submodule_search_locations), found.origin
        routes.App = object  # type: ignore[attr-defined]  # it stands in for a class
        sys.modules |= {"gradio": package, "gradio.routes": routes}
        try:
            return importlib.import_module("gradio.networking"), importlib.import_module("gradio.tunneling")
        except (ImportError, AttributeError):
            for name in [name for name in sys.modules if name == "gradio" or name.startswith("gradio.")]:
                del sys.modules[name]
    return importlib.import_module("gradio.networking"), importlib.import_module("gradio.tunneling")


class _Heard:
    """frpc's output, as the library reads it; what is read is passed on at once.

    The library shows what it read when frpc says that it failed. Of one that hangs it shows nothing, and of one that
    has ended it goes on reading, without a pause, until 30 s are over.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self.pipe = pipe

    def readline(self) -> bytes:
        """Return the next line."""
        line = self.pipe.readline()
        if not line:
            raise ValueError("frpc ended before it gave an address")
        print(line.decode("utf-8", "replace").rstrip(), flush=True)
        return line


def _listen(kind: Any) -> None:
    """Have the library's tunnels read through `_Heard`."""
    read = kind._read_url_from_tunnel_stream  # noqa: SLF001 - the library has no other way to its client's words

    def reading(tunnel: Any) -> Any:
        pipe, tunnel.proc.stdout = tunnel.proc.stdout, _Heard(tunnel.proc.stdout)
        try:
            return read(tunnel)
        finally:
            tunnel.proc.stdout = pipe

    kind._read_url_from_tunnel_stream = reading  # noqa: SLF001 - as above


def _pass_on(pipe: IO[bytes]) -> None:
    for line in pipe:
        print(line.decode("utf-8", "replace").rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
