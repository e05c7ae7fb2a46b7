"""The router hands requests on, over real HTTP."""

import asyncio
import contextlib

import pytest

aiohttp = pytest.importorskip("aiohttp")
from aiohttp import web  # noqa: E402

from sat_slime.cpu.router import application  # noqa: E402


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


async def exchange(*requests):
    """(status, JSON) of each (method, path, body), through a router with two workers."""
    async with contextlib.AsyncExitStack() as stack:
        router = await stack.enter_async_context(served(application()))
        client = await stack.enter_async_context(aiohttp.ClientSession(router))
        for name in ("a", "b"):
            url = await stack.enter_async_context(served(worker(name)))
            added = await client.post("/workers", json={"url": url, "worker_type": "regular"})
            assert added.status == 202
        answers = []
        for method, path, body in requests:
            async with client.request(method, path, json=body) as answer:
                answers.append((answer.status, await answer.json()))
        return answers


def test_workers_take_turns_and_get_the_whole_request():
    body = {"input_ids": [1, 2], "return_routed_experts": True, "sampling_params": {"temperature": 1.0}}
    answers = asyncio.run(exchange(*[("POST", "/generate?x=1", body)] * 3))
    assert [answer["name"] for _, answer in answers] == ["a", "b", "a"]
    assert all(answer["asked"] == body and answer["path"] == "/generate?x=1" for _, answer in answers)


def test_a_removed_worker_is_asked_no_more():
    answers = asyncio.run(
        exchange(
            ("GET", "/workers", None),
            ("DELETE", "/workers/0", None),
            ("GET", "/workers", None),
            ("GET", "/health", None),
            ("GET", "/health", None),
            ("DELETE", "/workers/0", None),
        )
    )
    before, removed, after, *health, again = answers
    assert [worker["id"] for worker in before[1]["workers"]] == ["0", "1"]
    assert removed[0] == 200 and again[0] == 404
    assert [worker["id"] for worker in after[1]["workers"]] == ["1"]
    assert {answer["name"] for _, answer in health} == {"b"}


def test_without_workers_a_request_is_refused_and_a_dead_one_is_an_answer_that_slime_asks_again_after():
    async def ask():
        async with contextlib.AsyncExitStack() as stack:
            async with served(worker("dead")) as dead:
                pass
            client = aiohttp.ClientSession(await stack.enter_async_context(served(application())))
            await stack.enter_async_context(client)
            before = (await client.post("/generate", json={})).status
            await client.post("/workers", json={"url": dead})
            return before, (await client.post("/generate", json={})).status

    assert asyncio.run(ask()) == (503, 502)
