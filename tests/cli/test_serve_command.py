import socket

from command_line import sat_slime_command


def test_what_is_wrong_is_a_line(tmp_path):
    result = sat_slime_command("serve", tmp_path / "none")
    assert result.exit_code == 2 and "is not a folder" in result.output
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = sat_slime_command("serve", tmp_path, "--port", port)
    assert result.exit_code == 2 and f"port {port}: " in result.output and "choose another one" in result.output
