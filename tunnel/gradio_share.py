"""A tunnel of gradio's, in a process of its own: `python -P gradio_share.py HOST PORT TOKEN SERVER`.

A script. It uses the library's own way (gradio 6.31, `gradio.networking.setup_tunnel`), which asks gradio's API for a
share server, or takes the user's own `host:port` (SERVER, else `-`), fetches frpc if there is none, and waits for the
address. In a process of its own because importing gradio takes seconds and 150 MiB, because the library waits in a loop
that nothing can interrupt, and because it prints what went wrong to standard error.

What it prints for us: `treering: url URL`. A frpc of the user's own, named in TREERING_FRPC, is used in place of the
library's; GRADIO_SHARE_API, if set, is asked in place of gradio's own API.
"""

import os
import shutil
import sys
import tempfile
import threading
from typing import IO


def main(host: str, port: str, token: str, server: str) -> int:
    """Open a share link, print its address, and stay until frpc ends."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from gradio import networking, tunneling

    if api := os.environ.get("GRADIO_SHARE_API"):
        networking.GRADIO_API_SERVER = api
    frpc = os.environ.get("TREERING_FRPC") or shutil.which("frpc")
    if frpc:
        # The library looks for its own binary at a fixed path, and fetches it where that is missing.
        tunneling.BINARY_PATH = frpc
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


def _pass_on(pipe: IO[bytes]) -> None:
    for line in pipe:
        print(line.decode("utf-8", "replace").rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
