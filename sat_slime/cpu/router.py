"""A router that hands requests on as they are, in place of sglang_router.

PyPI's sglang-router 0.3.2 drops `return_routed_experts` from a request, without which there is nothing to replay;
slime's image has a fork of it that is not on PyPI. This router lacks balancing by cache and load (workers take turns),
health checks, retries, metrics, and separate workers for prefill and decode.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any

LONGEST_BODY = 2**30
"""The most bytes that a request may have."""


def replace_router(launch_router: Any) -> None:
    """Puts `serve` in place of the function by which slime starts its router, in a process of its own."""
    launch_router.launch_router = serve


def serve(args: Namespace | Any) -> None:
    """Serves until the process ends. args: sglang_router's RouterArgs, of which host and port are used."""
    from aiohttp import web

    web.run_app(application(), host=args.host, port=args.port, print=None, handle_signals=False, access_log=None)


def application() -> Any:
    """Return the router: `POST /workers {"url": ...}` adds a worker, GET lists them, DELETE removes one by its id; any
    other request goes to the next worker, and its answer back."""
    import aiohttp
    from aiohttp import web

    key = web.AppKey("client", aiohttp.ClientSession)
    workers: dict[str, str] = {}
    turns, ids = itertools.count(), itertools.count()

    async def add(request: Any) -> Any:
        worker = str(next(ids))
        workers[worker] = (await request.json())["url"]
        return web.json_response({"status": "accepted", "worker_id": worker}, status=202)

    async def show(_: Any) -> Any:
        shown = [{"id": worker, "url": url, "is_healthy": True} for worker, url in workers.items()]
        return web.json_response({"workers": shown})

    async def remove(request: Any) -> Any:
        removed = workers.pop(request.match_info["id"], None)
        return web.json_response({}, status=404 if removed is None else 200)

    async def hand_on(request: Any) -> Any:
        if not workers:
            return web.json_response({"error": "no workers"}, status=503)
        url = list(workers.values())[next(turns) % len(workers)]
        headers = {"Content-Type": request.content_type}
        body = await request.read()
        try:
            async with request.app[key].request(
                request.method, url + request.path_qs, data=body, headers=headers
            ) as answer:
                whole = await answer.read()
            return web.Response(body=whole, status=answer.status, content_type=answer.content_type)
        except aiohttp.ClientError as error:  # the worker died: slime asks again
            return web.json_response({"error": f"{url}: {error}"}, status=502)

    async def client(app: Any) -> AsyncIterator[None]:
        # SGLang's server closes a connection after 5 s without a request, so none may be kept that long here.
        unlimited = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), connector=unlimited) as app[key]:
            yield

    app = web.Application(client_max_size=LONGEST_BODY)
    app.cleanup_ctx.append(client)
    app.add_routes([web.post("/workers", add), web.get("/workers", show), web.delete("/workers/{id}", remove)])
    app.add_routes([web.route("*", "/{path:.*}", hand_on)])
    return app
