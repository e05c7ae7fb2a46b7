import pytest

from sat_slime.config.source import ConfigError, Source, merged, plain_values, read_layers


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


def test_extends_circle(tmp_path):
    write(tmp_path, "a.yaml", "extends: b.yaml")
    with pytest.raises(ConfigError, match=r"b\.yaml -> .*a\.yaml -> .*b\.yaml"):
        read_source(write(tmp_path, "b.yaml", "extends: a.yaml"))


def test_missing_parent_names_its_line_and_a_similar_file(tmp_path):
    write(tmp_path, "base.yaml", "")
    child = write(tmp_path, "child.yaml", "a: 1\nextends: bas.yaml")
    with pytest.raises(ConfigError, match=rf"^{child}:2: extends bas.yaml, but .*did you mean .*base\.yaml"):
        read_source(child)


def test_numbers_of_another_base_are_refused(tmp_path):
    for number in ("010", "-07", "1:30", "1:30.5", "1:30:00"):
        with pytest.raises(ConfigError, match=rf"a.yaml:1: .*{number} is a number of base (8|60)"):
            read_source(write(tmp_path, "a.yaml", f"a: {number}"))
        assert read_source(write(tmp_path, "a.yaml", f"a: '{number}'")).values == {"a": number}
    text = "a: [0, 10, -1, 0.5, 1e-4, 0x10, 1_000]"
    assert read_source(write(tmp_path, "a.yaml", text)).values == {"a": [0, 10, -1, 0.5, 1e-4, 16, 1000]}


def test_repeated_key_names_both_lines(tmp_path):
    path = write(tmp_path, "a.yaml", "section:\n  lag: 1\n  lr: 2\n  lag: 3\n")
    with pytest.raises(ConfigError, match=rf"^{path}:4: section.lag is already set in line 2"):
        read_source(path)


def test_aliases_which_may_grow_without_end_are_refused(tmp_path):
    path = write(tmp_path, "a.yaml", "x: &x {a: 1}\ny: *x")
    with pytest.raises(ConfigError, match=rf"^{path}:2: not valid YAML: \*x stands for .*: write it out"):
        read_source(path)


@pytest.mark.parametrize(
    "text",
    ["a: [1", "a:\n\t- b", "- a", "just text", "a: 1\n---\nb: 2", "a: !!python/object:os.system x", "a: &x 1\nb: *y"],
)
def test_what_is_not_settings_is_one_line(tmp_path, text):
    path = write(tmp_path, "a.yaml", text)
    with pytest.raises(ConfigError) as caught:
        read_source(path)
    assert len(caught.value.errors) == 1
    assert caught.value.errors[0].startswith(f"{path}:")
    assert "\n" not in caught.value.errors[0]


@pytest.mark.parametrize("text", ["{a: " * 100_000, "- " * 100_000, "[" * 100_000])
def test_what_is_nested_without_end_ends_no_process(tmp_path, text):
    path = write(tmp_path, "a.yaml", text)
    with pytest.raises(ConfigError, match=f"^{path}.*: not valid YAML: "):
        plain_values(path)


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_source(tmp_path)
    binary = tmp_path / "a.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_source(binary)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null", "{}"])
def test_a_file_without_settings_is_refused(tmp_path, text):
    path = write(tmp_path, "a.yaml", text)
    with pytest.raises(ConfigError, match=f"^{path}: holds no settings: write some"):
        read_source(path)
    with pytest.raises(ConfigError, match=f"^{path}: holds no settings"):
        read_source(write(tmp_path, "b.yaml", "extends: a.yaml\nseed: 1"))


@pytest.mark.parametrize("parent", ["", "null", "[a.yaml]", "3"])
def test_extends_names_a_file(tmp_path, parent):
    path = write(tmp_path, "a.yaml", f"seed: 1\nextends: {parent}")
    with pytest.raises(ConfigError, match=f"^{path}:2: extends is .*; it takes the path of one YAML file"):
        read_source(path)
