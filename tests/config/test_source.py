import re

import pytest

from sat_slime.config.source import ConfigError, Source, merged, read_file, read_layers


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def read_source(path):
    """The settings of a file, with all of its layers merged."""
    values, origins = {}, {}
    for layer in read_layers(path):
        values, origins = merged(values, layer.values), origins | layer.origins
    return Source(values, origins)


def test_exponents_are_numbers_and_what_only_looks_like_one_is_text(tmp_path):
    for text in ("1e-4", "1E-4", "1.0e-4", ".1e-3", "+1e-4", "0.0001"):
        assert read_source(write(tmp_path, "a.yaml", f"lr: {text}")).values == {"lr": pytest.approx(1e-4)}
    for text in ("e4", "1e", "v1e-4", "1e-4x", "'1e-4'"):
        assert read_source(write(tmp_path, "a.yaml", f"name: {text}")).values == {"name": text.strip("'")}


def test_keys_remember_file_and_line_through_extends(tmp_path):
    base = write(tmp_path, "base.yaml", "a: 1\nsection:\n  b: 2\n  c: 3\n")
    child = write(tmp_path, "child.yaml", "extends: base.yaml\nsection:\n  c: 4\n")
    source = read_source(child)
    assert source.values == {"a": 1, "section": {"b": 2, "c": 4}}
    assert source.origin(("section", "b")) == f"{base}:3"
    assert source.origin(("section", "c")) == f"{child}:3"
    assert source.origin(("section", "c", "unheard-of")) == f"{child}:3"


def test_extends_is_relative_to_its_file_and_chains(tmp_path):
    (tmp_path / "deep").mkdir()
    write(tmp_path, "top.yaml", "a: 1\nb: 1\nc: 1")
    write(tmp_path, "deep/middle.yaml", "extends: ../top.yaml\nb: 2\nc: 2")
    leaf = write(tmp_path, "leaf.yaml", "extends: deep/middle.yaml\nc: 3")
    assert read_source(leaf).values == {"a": 1, "b": 2, "c": 3}


def test_missing_parent_names_its_line_and_a_similar_file(tmp_path):
    write(tmp_path, "base.yaml", "")
    child = write(tmp_path, "child.yaml", "a: 1\nextends: bas.yaml")
    with pytest.raises(ConfigError, match=rf"^{child}:2: extends bas.yaml, but .*did you mean .*base\.yaml"):
        read_source(child)


def test_numbers_are_those_of_base_ten_and_sixteen(tmp_path):
    text = "a: [0, 10, -1, 0.5, 1e-4, 0x10, 1_000, '010', '1:30']"
    assert read_source(write(tmp_path, "a.yaml", text)).values == {"a": [0, 10, -1, 0.5, 1e-4, 16, 1000, "010", "1:30"]}


FAULTS = [
    *((f"a: {number}", rf":1: .*{number} is a number of base 8") for number in ("010", "-07")),
    *((f"a: {number}", rf":1: .*{number} is a number of base 60") for number in ("1:30", "1:30.5", "1:30:00")),
    ("section:\n  lag: 1\n  lr: 2\n  lag: 3\n", r":4: section.lag is already set in line 2"),
    ("x: &x {a: 1}\ny: *x", r":2: not valid YAML: \*x stands for .*: write it out"),  # which may grow without end
    ("a: [1", ":[12]: not valid YAML"),
    ("a:\n\t- b", ":2: not valid YAML"),
    ("a: 1\n---\nb: 2", ":2: not valid YAML"),
    ("a: !!python/object:os.system x", ":1: not valid YAML"),
    ("- a", ":1: expected settings `key: value`, found a list"),
    ("just text", ":1: expected settings `key: value`, found 'just text'"),
    ("{a: " * 100_000, ".*: not valid YAML: "),  # what is nested without end ends no process
    ("- " * 100_000, ".*: not valid YAML: "),
    ("[" * 100_000, ".*: not valid YAML: "),
    ("a: 1\nb: \x01", r":2: the character U\+0001 is no text: the file is damaged"),
    (b"\xff\xfe\x00", ": cannot be read: not UTF-8"),
    *((text, ": holds no settings: write some") for text in ("", "# nothing\n", "---\n", "null", "{}")),
    *((f"seed: 1\nextends: {parent}", ":2: extends is .*; it takes the path") for parent in ("", "null", "[a]", "3")),
    ("extends: a.yaml", r": extends itself \(.*a\.yaml -> .*a\.yaml\)"),
]


@pytest.mark.parametrize("text, told", FAULTS, ids=lambda value: repr(value)[:40])
def test_what_is_not_settings_is_one_line_with_its_place(tmp_path, text, told):
    path = tmp_path / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_file(path) if "extends" not in str(text) else read_source(path)
    (line,) = caught.value.errors
    assert re.match(f"{path}{told}", line) and "\n" not in line, line


def test_what_is_below_is_read_in_the_same_way(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="folder: cannot be read"):
        read_source(write(tmp_path, "a.yaml", "extends: folder"))
    write(tmp_path, "empty.yaml", "")
    with pytest.raises(ConfigError, match=r"empty.yaml: holds no settings"):
        read_source(write(tmp_path, "b.yaml", "extends: empty.yaml\nseed: 1"))
