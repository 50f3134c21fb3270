"""A stand-in for gradio's frpc, and for the API that names its share servers.

Written from gradio 6.31's `tunneling.py` and `networking.py`: the arguments that the library gives, the lines that it
looks for, the JSON that it asks for. It forwards for real, from a free port of loopback to the local address. What it
does can be spoilt by `STANDIN_FRPC`, and `STANDIN_STATE` is a file by which it remembers that it was started before:

    login-once   prints a failed login the first time
    silent       never prints the address
    ends         ends without another word
    dies         ends 2 s after the address
    elsewhere    prints an address that answers 404
    mute         takes connections, and carries nothing
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path


async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy one direction until it ends."""
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()


def first() -> bool:
    """Whether it is started for the first time."""
    state = Path(os.environ["STANDIN_STATE"])
    if state.exists():
        return False
    state.touch()
    return True


async def main() -> int:
    """Play frpc."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["http"])
    parser.add_argument("-n", dest="token", required=True)
    parser.add_argument("-l", dest="port", type=int, required=True)
    parser.add_argument("-i", dest="host", required=True)
    for flag in ("--uc", "--ue", "--disable_log_color", "--tls_enable"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--sd", required=True)
    parser.add_argument("--server_addr", required=True)
    parser.add_argument("--tls_trusted_ca_file")
    given = parser.parse_args()
    how = os.environ.get("STANDIN_FRPC", "")
    print(f"2026/01/01 [I] connecting to {given.server_addr} as {given.token}", flush=True)
    if how == "login-once" and first():
        print("2026/01/01 [W] login to server failed: EOF", flush=True)
        return 1
    if how == "ends":
        return 1
    if how == "silent":
        await asyncio.Event().wait()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            if how == "elsewhere":
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            if how == "mute":
                await reader.read()
                return
            back, forth = await asyncio.open_connection(given.host, given.port)
            with contextlib.closing(forth):
                async with asyncio.TaskGroup() as group:
                    group.create_task(carry(reader, forth))
                    group.create_task(carry(back, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"2026/01/01 [I] start proxy success: http://127.0.0.1:{port}", flush=True)
    if how == "dies":
        await asyncio.sleep(2)
        return 1
    await asyncio.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
