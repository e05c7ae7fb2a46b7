"""The router hands requests on, over real HTTP."""

import asyncio
import contextlib

import pytest

aiohttp = pytest.importorskip("aiohttp")
from aiohttp import web  # noqa: E402

from sat_slime.cpu.router import application  # noqa: E402

BODY = {"input_ids": [1, 2], "return_routed_experts": True, "sampling_params": {"temperature": 1.0}}


@contextlib.asynccontextmanager
async def served(app):
    """Serves an application on a free port, and yields its URL."""
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def worker(name):
    """A server that answers with its name and the request."""

    async def answer(request):
        asked = await request.json() if request.can_read_body else None
        status = 418 if request.path == "/teapot" else 200
        return web.json_response({"name": name, "path": request.path_qs, "asked": asked}, status=status)

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    return app


def test_workers_come_take_turns_are_removed_and_die():
    async def story():
        async with contextlib.AsyncExitStack() as stack:
            client = aiohttp.ClientSession(await stack.enter_async_context(served(application())))
            await stack.enter_async_context(client)

            async def ask(method, path, body=None):
                async with client.request(method, path, json=body) as answer:
                    return answer.status, await answer.json()

            assert (await ask("POST", "/generate", BODY))[0] == 503  # no worker yet
            async with served(worker("a")) as a, served(worker("b")) as b:
                for url in (a, b):
                    assert (await ask("POST", "/workers", {"url": url, "worker_type": "regular"}))[0] == 202
                answers = [await ask("POST", "/generate?x=1", BODY) for _ in range(3)]
                assert [answer["name"] for _, answer in answers] == ["a", "b", "a"]
                assert all(answer["asked"] == BODY and answer["path"] == "/generate?x=1" for _, answer in answers)
                assert (await ask("GET", "/teapot"))[0] == 418
                assert [one["id"] for one in (await ask("GET", "/workers"))[1]["workers"]] == ["0", "1"]
                assert [(await ask("DELETE", "/workers/0"))[0] for _ in range(2)] == [200, 404]
                assert [one["id"] for one in (await ask("GET", "/workers"))[1]["workers"]] == ["1"]
                assert {(await ask("GET", "/health"))[1]["name"] for _ in range(2)} == {"b"}
            # The worker died: after this answer slime asks again.
            assert (await ask("POST", "/generate", BODY))[0] == 502

    asyncio.run(story())
