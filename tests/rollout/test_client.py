import asyncio
import threading

import pytest
from fake_sglang import FakeSGLang

from sat_slime.rollout.client import ServerLost, ServerRefused, SGLangClient, generate_payload
from sat_slime.rollout.types import GenerationRequest

REQUESTS = [GenerationRequest(f"r{i}", (1, i), 5, 0.5, 100 + i, (3,)) for i in range(3)]
WIRE_IDS = ["r0#0", "r1#0", "r2#2"]


@pytest.fixture
def socket_file(short_path):
    return short_path / "http"


@pytest.fixture
def server(socket_file):
    fake = FakeSGLang(socket_file)
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.released.set()
    fake.shutdown()
    thread.join()
    fake.server_close()


def call(server, method, *arguments, timeout=600.0):
    async def run():
        client = SGLangClient(server.file, timeout)
        try:
            return await getattr(client, method)(*arguments)
        finally:
            await client.close()

    return asyncio.run(run())


def test_payload_is_one_sample_per_request_with_its_own_seed():
    payload = generate_payload(REQUESTS, WIRE_IDS)
    assert payload["rid"] == WIRE_IDS and payload["input_ids"] == [[1, 0], [1, 1], [1, 2]]
    assert payload["return_logprob"] is True and payload["return_routed_experts"] is True
    assert payload["sampling_params"][2] == {
        "temperature": 0.5,
        "max_new_tokens": 5,
        "stop_token_ids": [3],
        "sampling_seed": 102,
        "top_p": 1.0,
        "top_k": -1,
    }


def test_answers_come_in_order(server):
    answers = call(server, "generate", REQUESTS, WIRE_IDS)
    assert [answer["meta_info"]["id"] for answer in answers] == WIRE_IDS
    assert len(server.seen) == 1


def test_weights_are_loaded_as_a_version(server, tmp_path):
    call(server, "update_weights", str(tmp_path), 12)
    assert call(server, "generate", REQUESTS, WIRE_IDS)[0]["meta_info"]["weight_version"] == "12"


def test_weights_that_cannot_be_loaded_are_an_error_that_names_them(server, tmp_path):
    with pytest.raises(ServerRefused, match="no_such_folder"):
        call(server, "update_weights", str(tmp_path / "no_such_folder"), 1)


@pytest.mark.parametrize("fault", ["error", "garbage"])
def test_a_broken_answer_counts_as_lost(server, fault):
    server.faults.append(fault)
    with pytest.raises(ServerLost):
        call(server, "generate", REQUESTS, WIRE_IDS)


def test_a_refusal_is_not_worth_another_attempt(server):
    server.faults.append("refuse")
    with pytest.raises(ServerRefused, match="too long"):
        call(server, "generate", REQUESTS, WIRE_IDS)


def test_no_answer_in_time_counts_as_lost(server):
    server.faults.append("hang")
    with pytest.raises(ServerLost, match="no answer in time"):
        call(server, "generate", REQUESTS, WIRE_IDS, timeout=0.2)


def test_health(server):
    assert call(server, "healthy") and call(server, "can_generate")
    server.healthy = False
    assert not call(server, "healthy")


def test_a_server_that_is_gone_is_neither_healthy_nor_silent(socket_file):
    gone = FakeSGLang(socket_file)
    gone.server_close()
    assert not call(gone, "healthy")
    with pytest.raises(ServerLost):
        call(gone, "generate", REQUESTS, WIRE_IDS)
