"""Capture: every socket and every file.

    wire bytes → events → record → store → graph
    sse          dialects, engines   recorder    relay

`relay` is the one file where agents' sockets and engines' sockets meet; `sse`, `dialects`, `engines` and `recorder` are
plain objects that are fed and read; `store` holds the database; `rollouts` the rules; `api` the control plane; `app`
wires them up.
"""
